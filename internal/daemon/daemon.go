// SPDX-License-Identifier: Apache-2.0

// Package daemon is `overlane run`: it follows what is on the node, measures,
// lets the governor decide and carries out what it decides.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/bridgehooks"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/sense"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// Options are what a daemon needs to know.
type Options struct {
	StateDir  string
	Underlays []string
	Cores     []int // configured, sorted; the cores that flows may be steered to
	// Online reads the cores that are online, sorted; nil: all stay it.
	Online func() ([]int, error)
	Mode   governor.Mode
	Tier   governor.Tier
	Limits governor.Limits
	// Topology is how the cores are wired.
	Topology governor.Topology
	// Apart reads the cores that containers have for themselves, sorted: nothing is steered there. nil: none.
	Apart func() ([]int, error)
	// Microflows are elephants, split.
	Microflows Microflows
	// Aggregate joins datagrams of one flow that come in a row.
	Aggregate governor.Mode
	// Express hands frames from the NICs straight to the pods.
	Express governor.Mode
	// AsleepBelow is from how many packets a second on, of one core, the daemon looks closely;
	// 0: 10000. See asleepBelow.
	AsleepBelow float64
	// SkipUnusedHooks has bridges leave out netfilter's hooks of IP while they are unused.
	SkipUnusedHooks bool
	// Rules name flows for priority; without any it is off.
	Rules    []rules.Rule
	Priority Priority
	Version  string
	Tiers    []control.TierStatus
	// NoGuard says why the order guard does not hold on this node, nil where it does:
	// a daemon whose pipeline is off starts all the same.
	NoGuard error
	// GuardianVerb is the argument that makes this program a guardian.
	GuardianVerb []string
	Log          *slog.Logger
	// Metrics is where they are served, for the status; nil: nowhere.
	Metrics func() control.Metrics
}

// farewell bounds how long a stopping daemon waits for flows to leave lanes.
const farewell = time.Second

// Daemon is a running instance.
type Daemon struct {
	opts      Options
	log       *slog.Logger
	dir       *apply.Dir
	locked    *apply.Locked
	host      *host.Host   // once the node has been scanned
	claim     *apply.Claim // nil if it could not be known whether there is another daemon
	guard     *apply.Guardian
	scanner   *node.Scanner
	dp        *datapath.Datapath
	places    *xdp.Places // for XDP programs
	gov       *governor.Governor
	trial     *trial.Trial // of the pipeline
	trials    *trial.Trials
	pipe      *pipeline
	micro     microflows
	aggr      *aggregate.Aggregate
	demand    demand
	expr      *express.Express
	bridge    *bridgehooks.Hooks
	prio      *priority                 // nil without rules
	prioPast  datapath.PriorityCounters // of the times before, when there were rules
	added     []rules.Rule              // at run time
	sensor    sense.Sensor
	cookie    uint64
	drops     map[int]uint64 // of the backlogs, at the start
	since     time.Time
	off       bool            // asked to end
	evict     bool            // another program wants a device of ours
	check     mechanism.Check // of what is ours
	retry     time.Time
	armErr    error // why the last attempt to put the pipeline in place failed
	online    []int // at the last poll
	polled    time.Time
	lost      map[int]bool // cores that were offline since NICs' threads were bound
	apart     []int        // cores that containers have for themselves, at the last poll
	apartWhy  string       // they could not be read then
	cores     []int        // configured and online
	sampling  samplingLevel
	refit     governor.Refit
	before    map[int]governor.Core // as they were when the pipeline was put in place
	avoid     []int                 // cores that tasks need, and whose lanes flows have left
	polls     polls
	lastAlive time.Time // the last heartbeat
	useless   bool      // no hop was worth it, in the last window
	quiet     time.Time // since when hardly a packet has come
	woken     time.Time // when it was last asleep
	idle      idleBackoff
	lively    time.Time // when packets last came, as isAwake saw it
	softnet   sense.Softnet
	softirqs  sense.Softirqs
	tunnels   sense.Overlay
	pace      mechanism.Pace
	requests  chan func()
	// questions change nothing.
	questions chan func()
	ended     chan struct{}
}

// Start takes the lock, restores what an earlier daemon left behind, starts the
// guardian and loads the kernel side. Nothing on any device changes yet.
func Start(ctx context.Context, opts Options) (*Daemon, error) {
	if opts.AsleepBelow == 0 {
		opts.AsleepBelow = asleepBelow
	}
	d := &Daemon{opts: opts, log: slog.New(host.GoneHandler{Handler: opts.Log.Handler()}), since: time.Now(), lost: map[int]bool{}, requests: make(chan func()), questions: make(chan func()), ended: make(chan struct{})}
	if err := d.start(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *Daemon) start(ctx context.Context) error {
	home, err := netns.Current()
	if err != nil {
		return err
	}
	defer home.Close()
	if d.cookie, err = home.Cookie(); err != nil {
		return err
	}
	if d.dir, err = apply.Open(d.opts.StateDir, d.cookie); err != nil {
		return err
	}
	if d.locked, err = d.dir.Lock(); err != nil {
		return err
	}
	if d.claim, err = apply.ClaimNamespace(home); errors.Is(err, apply.ErrBusy) {
		return err
	} else if err != nil {
		d.log.Warn("a daemon with another state directory would not be noticed", "reason", err)
	}
	finder := apply.NewFinder()
	rep, err := d.locked.Restore(finder)
	if err = errors.Join(err, finder.Close()); err != nil {
		return fmt.Errorf("restore what an earlier run left behind: %w", err)
	}
	for _, r := range rep.Results {
		d.log.Info("restored after an earlier run", "result", r.String())
	}
	if d.opts.Tier == governor.XDP && d.opts.prioritises(len(d.opts.Rules)) {
		return ErrTierXDP
	}
	d.log.Info("start", "version", d.opts.Version, "kernel", kernelRelease(), "tier", d.opts.Tier.String(), "cores", config.CPUList(d.opts.Cores), "netns", d.cookie, "state_dir", d.opts.StateDir)
	if d.guard, err = d.locked.StartGuardian(append(slices.Clone(d.opts.GuardianVerb), d.dir.GuardianArgs()...), os.Stderr); err != nil {
		return err
	}
	if d.dp, err = datapath.Load(); err != nil {
		return err
	}
	d.dp.Meanwhile(d.answer)
	if err := d.dp.HeldBy(d.guard); err != nil {
		return err
	}
	if err := d.dp.SetTuning(tuning); err != nil {
		return err
	}
	if d.scanner, err = node.NewScanner(node.Options{Underlays: d.opts.Underlays, OwnXDP: d.dp.Owns}); err != nil {
		return err
	}
	d.host = host.New(d.log, host.NewChanges(d.log, d.cookie), d.locked, d.dp, d.scanner)
	if err = d.host.Scan(ctx); err != nil {
		return fmt.Errorf("scan node: %w", err)
	}
	known, err := xdp.Remember(d.dir)
	if err != nil {
		d.log.Warn("what was found out about NICs is lost", "reason", err)
	}
	d.places = xdp.New(xdp.OnNode(d.scanner), known, d.host.Changes.InOrder())
	d.places.Look(d.host.Snapshot().Underlays)
	// The tunnels are told to the tracepoint at once: it is what tells overlay
	// packets from others.
	if err := d.dp.SetTunnels(tunnelDevices(d.scanner, d.host.Snapshot()), underlayDevices(d.scanner, d.host.Snapshot())); err != nil && !errors.Is(err, datapath.ErrTooManyTunnels) {
		return err
	}
	if d.drops, err = sense.BacklogDrops(); err != nil {
		return err
	}
	d.gov = governor.New(d.opts.Mode, d.opts.Limits)
	d.micro.gov = governor.New(d.opts.Microflows.Mode, d.opts.Limits)
	d.newTrials()
	d.aggr = aggregate.New(others{d.host, d}, d.opts.Aggregate)
	d.bridge = bridgehooks.New(others{d.host, d}, d.opts.SkipUnusedHooks, d.since)
	d.pipe = d.newPipeline()
	d.host.Offline, d.host.Meanwhile = d.isOffline, d.meanwhile
	if d.opts.Online != nil {
		if d.online, err = d.opts.Online(); err != nil {
			return err
		}
	}
	d.polled = time.Now()
	d.pollApart()
	if err := d.useCores(); err != nil {
		return err
	}
	if err := d.useRules(ctx, nil, d.opts.Rules); err != nil {
		return err
	}
	d.host.Changes.Rules(nil, d.opts.Rules)
	d.host.Changes.Flush()
	return nil
}

// Run works until ctx ends, then leaves the node as it was found.
func (d *Daemon) Run(ctx context.Context) error {
	tick := time.NewTicker(d.sampling.window())
	defer tick.Stop()
	poll := time.NewTicker(shortcut.PollEvery)
	defer poll.Stop()
	defer close(d.ended)
	for ctx.Err() == nil && !d.off {
		var err error
		select {
		case <-ctx.Done():
		case <-tick.C:
			err = d.step(ctx, time.Now())
			tick.Reset(d.window())
		case <-d.news():
			err = d.rescan(ctx)
		case <-d.changedPaths():
			err = d.followSync(time.Now())
		case <-d.expr.Changed():
			err = d.expr.Follow(ctx, time.Now())
		case <-d.bridge.Changed():
			err = d.bridge.Follow(time.Now())
		case <-d.aggr.Changed():
			err = d.aggr.RulesChanged(time.Now())
		case <-d.pollTimes(poll.C):
			err = d.poll(ctx, time.Now())
		case fn := <-d.requests:
			fn()
		case fn := <-d.questions:
			fn()
		case <-d.guard.Done():
			err = errors.New("the guardian has ended: nothing would restore the node after a crash")
		}
		d.host.Changes.Flush()
		if err != nil && ctx.Err() == nil {
			return errors.Join(err, d.stop())
		}
	}
	return d.stop()
}

// news are the events of the node, which wait for as long as the last full scan is to be made up for:
// until the window then under way ends.
func (d *Daemon) news() <-chan struct{} {
	if !d.pace.Due(time.Now()) {
		return nil
	}
	return d.scanner.Events()
}

func (d *Daemon) rescan(ctx context.Context) error {
	defer d.pace.Scanned(time.Now())
	if err := d.host.Scan(ctx); err != nil {
		d.log.Warn("scan failed, will be repeated", "reason", err)
		return nil
	}
	snap := d.host.Snapshot()
	d.places.Look(snap.Underlays)
	if err := d.followPriority(ctx); err != nil {
		d.log.Warn("some underlays could not be followed", "reason", err)
	}
	d.placeThreads()
	d.aggr.Rescanned()
	d.expr.Rescanned()
	d.bridge.Rescanned()
	if !d.pipe.armed {
		err := d.dp.SetTunnels(tunnelDevices(d.scanner, snap), underlayDevices(d.scanner, snap))
		if errors.Is(err, datapath.ErrTooManyTunnels) {
			return nil
		}
		return err
	}
	return d.follow(ctx)
}

// follow makes the pipeline fit the node, and takes it off where another program
// has taken over a device, or has let go of one.
func (d *Daemon) follow(ctx context.Context) error {
	began := time.Now()
	err := d.pipe.follow(d.host.Snapshot())
	d.check.Made(began)
	switch {
	case errors.Is(err, errChangedHands):
		d.log.Info("pipeline is taken off", "mechanism", "pipeline", "reason", err)
		d.evict = true
		return nil
	case errors.Is(err, errMore):
		d.check.Again()
		return nil
	}
	if err != nil {
		d.log.Warn("some devices could not be followed", "reason", err)
	}
	return nil
}

// step takes one window: measure, decide, act.
func (d *Daemon) step(ctx context.Context, now time.Time) error {
	if only, err := d.trials.Settled(); only || err != nil {
		return err
	}
	if err := errors.Join(d.heartbeat(now), d.pollOnline(now), d.pollPriority(now), d.stepRealtime(now), d.aggr.Step(now), d.expr.Step(ctx, now), d.bridge.Step(now)); err != nil {
		return err
	}
	in, ok, err := d.measure(now)
	if err != nil || !ok {
		return err
	}
	if err := errors.Join(d.stepDemand(ctx, in), d.expr.Prove(ctx, in)); err != nil {
		return err
	}
	split := in
	micro, err := d.stepMicroflows(&split)
	if err != nil {
		return err
	}
	if d.prio != nil {
		d.prio.sawPolls(in, d.host.Entries())
	}
	d.polls.saw(in, d.pipe.armed)
	switch {
	case micro.State != governor.Standby:
		in.Layout = governor.Layout{Reason: "micro-flows act instead"}
	case d.pipe.armed:
		in.Layout = d.pipe.layout
	case d.opts.Mode == governor.Auto && d.aggr.Watches():
		in.Layout = governor.Layout{Reason: aggregate.WatchedFirst}
	default:
		in.Layout = d.place(in, d.opts.Limits.Short(in, d.tier() == governor.XDP))
	}
	d.trial.Bar(&in)
	d.useless = in.Layout.None() && split.Layout.None()
	before := d.gov.Last()
	dec := d.gov.Step(in)
	if dec.State != before.State {
		d.log.Info("pipeline "+dec.State.String(), "mechanism", "pipeline", "reason", dec.Reason)
	}
	// One of them at a time: the other one's flows drain first.
	if d.pipe.armed && d.pipe.layout.Split || !d.pipe.armed && micro.State == governor.Active {
		d.pipe.hold = d.opts.Microflows.Hold
		if err := d.pipe.splitInto(d.split(split)); err != nil {
			return err
		}
		d.trial.Leave()
		return d.act(ctx, micro, split, d.micro.trial, d.opts.Microflows.Mode)
	}
	d.micro.trial.Leave()
	return d.act(ctx, dec, in, d.trial, d.opts.Mode)
}

// act makes what is in place agree with the decision. t: as it is forced by no configuration, flows
// are steered as far as that has shown that it pays.
func (d *Daemon) act(ctx context.Context, dec governor.Decision, in governor.Input, t *trial.Trial, mode governor.Mode) error {
	d.refitLanes(in, dec)
	if err := d.avoidCores(dec, t.Name); err != nil {
		return err
	}
	if dec.State != governor.Active || mode == governor.Forced || !d.pipe.armed {
		t.Leave()
	}
	if d.pipe.armed && (dec.State == governor.Standby || d.evict || d.pipe.stale(d.cores) || d.prio.inTheWay(d.pipe.layout)) {
		err := d.pipe.recall(ctx, d.sampling.window()/2)
		if errors.Is(err, datapath.ErrFlowsOut) {
			return nil // looked at again in the next window
		}
		d.evict = false
		return err
	}
	if d.pipe.armed && d.check.Due(in.Now) {
		if err := d.follow(ctx); err != nil {
			return err
		}
	}
	switch dec.State {
	case governor.Parked:
		return d.pipe.callBack()
	case governor.Active:
		if !d.pipe.armed {
			// Without traffic the daemon does not know yet which cores poll the NIC.
			if len(in.Pollers()) == 0 || in.Now.Before(d.retry) {
				return nil
			}
			d.before, d.avoid = in.Cores, nil
			over := d.host.Begins(t.Name)
			d.armErr = d.pipe.arm(ctx, d.host.Snapshot(), in.Layout)
			over()
			var left *xdp.Left
			if errors.As(d.armErr, &left) {
				// Said already. The next window places it behind the NIC's stage.
				d.armErr = nil
				_, err := d.pipe.disarm(ctx)
				return err
			}
			if err := d.armErr; err != nil {
				d.log.Error("pipeline could not be put in place", "mechanism", t.Name, "reason", err, "again_in", mechanism.RetryAfter)
				d.retry = in.Now.Add(mechanism.RetryAfter)
				_, undo := d.pipe.disarm(ctx)
				return undo
			}
		}
		return d.steer(in, t, mode, dec.Helped)
	}
	return nil
}

// steer lets the flows of the helped cores be steered, or calls them back, as the trial says.
func (d *Daemon) steer(in governor.Input, t *trial.Trial, mode governor.Mode, helped []int) error {
	on := true
	if mode != governor.Forced {
		var err error
		tried := t.Judge.Trying()
		if on, err = d.trials.Try(t, in, d.situationOf(t.Name, in), d.steered, d.concerns(helped)); err != nil {
			return err
		}
		if tried && !t.Judge.Trying() {
			d.micro.forget()
		}
	}
	if !on {
		return d.pipe.callBack()
	}
	return d.pipe.steer(helped)
}

var tuning = datapath.Tuning{RebalanceQueue: 128}

// stop brings the node back and ends the guardian.
func (d *Daemon) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_, err := d.stopMechanisms(ctx)
	err = errors.Join(err, d.demand.endCensus(), d.places.ReleaseAll(xdp.Pipeline, xdp.Microflows, xdp.Express))
	if d.host != nil {
		d.host.Changes.Flush()
	}
	err = errors.Join(err, d.close())
	if err != nil {
		d.log.Error("stop", "reason", err)
	} else {
		d.log.Info("stop")
	}
	return err
}

// stopMechanisms takes back what each of them has changed.
func (d *Daemon) stopMechanisms(ctx context.Context) (all apply.Report, err error) {
	for _, stop := range []func() (apply.Report, error){
		func() (apply.Report, error) { return d.pipe.disarm(ctx) },
		func() (apply.Report, error) { return d.expr.Stop(ctx) },
		func() (apply.Report, error) { return d.stopPriority(ctx) },
		func() (apply.Report, error) { return d.bridge.Stop(time.Now()) },
		d.aggr.Stop,
	} {
		rep, e := stop()
		all.Add(rep)
		err = errors.Join(err, e)
	}
	return all, err
}

// close lets go of everything; what is journalled stays for the guardian unless
// it was restored.
func (d *Daemon) close() error {
	var errs []error
	if d.host != nil {
		errs = append(errs, d.host.Close())
	}
	d.tunnels.Close()
	if d.dp != nil {
		errs = append(errs, d.dp.Close())
	}
	if d.scanner != nil {
		errs = append(errs, d.scanner.Close())
	}
	if d.guard != nil && len(d.host.Entries()) == 0 {
		errs = append(errs, d.guard.Release())
	}
	if d.claim != nil {
		errs = append(errs, d.claim.Close())
	}
	if d.locked != nil {
		errs = append(errs, d.locked.Unlock())
	}
	if d.dir != nil {
		errs = append(errs, d.dir.Close())
	}
	return errors.Join(errs...)
}

// meanwhile is what does not wait while the daemon waits for the kernel. Flows that are steered do: on
// them the daemon is to decide, and it does not.
func (d *Daemon) meanwhile() {
	d.expr.Meanwhile()
	d.bridge.Meanwhile(time.Now())
	if d.pipe.steering {
		return
	}
	if err := d.heartbeat(time.Now()); err != nil {
		d.log.Warn("no heartbeat", "reason", err)
	}
}

func (d *Daemon) newPipeline() *pipeline {
	return &pipeline{
		host: d.host, dp: d.dp,
		cores: d.dp.CPUs(), attached: map[node.DevKey]io.Closer{}, refused: map[node.DevKey]refusal{}, places: d.places, lost: map[int]bool{},
		express: d.expr.Claims, wants: d.pipelineWants,
	}
}

// Cookie is that of the namespace that the daemon owns.
func (d *Daemon) Cookie() uint64 { return d.cookie }

// Close ends a daemon that never ran.
func (d *Daemon) Close() error {
	close(d.ended)
	return d.stop()
}
