// SPDX-License-Identifier: Apache-2.0

// Package daemon is `overlane run`: it follows what is on the node, measures,
// lets the governor decide and carries out what it decides.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
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
	// Spared are cores that are set apart for something else, and are not among these: what runs there is not
	// interrupted to sample tasks.
	Spared []int
	// Online reads the cores that are online, sorted.
	Online func() ([]int, error)
	// Apart reads the cores that containers have for themselves, sorted: nothing is steered there.
	Apart func() ([]int, error)
	// AsleepBelow is from how many packets a second on, of one core, the daemon looks closely;
	// 0: 10000. See asleepBelow.
	AsleepBelow float64

	// Pipeline spreads the stages of flows over cores, and splits elephants.
	Pipeline pipeline.Options
	// Priority lets flows that its rules name overtake others.
	Priority priority.Options
	// Aggregate joins datagrams of one flow that come in a row.
	Aggregate governor.Mode
	// Express hands frames from the NICs straight to the pods.
	Express governor.Mode
	// SkipUnusedHooks has bridges leave out netfilter's hooks of IP while they are unused.
	SkipUnusedHooks bool

	Version string
	Tiers   []control.TierStatus
	// GuardianVerb is the argument that makes this program a guardian.
	GuardianVerb []string
	Log          *slog.Logger
	// Metrics is where they are served, for the status; nil: nowhere.
	Metrics func() control.Metrics
}

// Daemon is a running instance.
type Daemon struct {
	opts     Options
	log      *slog.Logger
	closers  []func() error // of what was started, in that order
	guard    *apply.Guardian
	scanner  *node.Scanner
	dp       *datapath.Datapath
	host     *host.Host  // once the kernel side is loaded
	places   *xdp.Places // for XDP programs
	mechs    *mechanisms
	trials   *trial.Trials
	cookie   uint64
	backlogs sense.Backlogs
	since    time.Time
	off      bool     // asked to end
	online   []int    // at the last poll
	returns  []uint32 // of each core that was on its way offline, at the last poll
	polled   time.Time
	apart    []int  // cores that containers have for themselves, at the last poll
	apartWhy string // they could not be read then
	cores    []int  // configured and online

	sensor    sense.Sensor
	sampling  samplingLevel
	lastAlive time.Time // the last heartbeat
	quiet     time.Time // since when hardly a packet has come
	woken     time.Time // when it was last asleep
	idle      idleBackoff
	lively    time.Time // when packets last came, as isAwake saw it
	softnet   sense.Softnet
	softirqs  sense.Softirqs
	tunnels   sense.Overlay
	received  sense.Received
	look      func(context.Context) (take func(), err error) // at the node, beside the loop
	scans     chan scan                                      // gets the scan under way, nil: there is none
	pace      mechanism.Pace
	nics      mechanism.Check // of what keeps programs from them
	journal   mechanism.Check // of whether its file can be rewritten

	requests chan func()
	// questions change nothing.
	questions chan func()
	ended     chan struct{}
}

// Start takes the lock, restores what an earlier daemon left behind, starts the
// guardian and loads the kernel side. Nothing on any device changes yet.
func Start(ctx context.Context, opts Options) (*Daemon, error) {
	opts.Priority.Tier = opts.Pipeline.Tier
	if opts.AsleepBelow == 0 {
		opts.AsleepBelow = asleepBelow
	}
	d := &Daemon{opts: opts, log: slog.New(host.WithoutGone(opts.Log.Handler())), since: time.Now(), requests: make(chan func()), questions: make(chan func()), ended: make(chan struct{})}
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
	dir, err := apply.Open(d.opts.StateDir, d.cookie)
	if err != nil {
		return err
	}
	d.atEnd(dir.Close)
	locked, err := dir.Lock()
	if err != nil {
		return err
	}
	d.atEnd(locked.Unlock)
	claim, err := apply.ClaimNamespace(home)
	switch {
	case err == nil:
		d.atEnd(claim.Close)
	case errors.Is(err, apply.ErrBusy):
		return err
	default:
		d.log.Warn("a daemon with another state directory would not be noticed", "reason", err)
	}
	finder := apply.NewFinder()
	rep, err := locked.Restore(finder)
	if err = errors.Join(err, finder.Close()); err != nil {
		return fmt.Errorf("restore what an earlier run left behind: %w", err)
	}
	for _, r := range rep.Results {
		if r.Outcome == apply.Kept {
			d.log.Warn("not restored after an earlier run", "result", r.String())
			continue
		}
		d.log.Info("restored after an earlier run", "result", r.String())
	}
	if err := d.opts.Priority.Fits(); err != nil {
		return err
	}
	d.log.Info("start", "version", d.opts.Version, "kernel", kernelRelease(), "tier", d.opts.Pipeline.Tier.String(), "cores", config.CPUList(d.opts.Cores), "netns", d.cookie, "state_dir", d.opts.StateDir)
	if d.guard, err = locked.StartGuardian(d.opts.GuardianVerb); err != nil {
		return err
	}
	d.atEnd(func() error {
		if len(locked.Entries()) > 0 {
			return nil // it restores them
		}
		return d.guard.Release()
	})
	if d.dp, err = datapath.Load(d.opts.Spared...); err != nil {
		return err
	}
	d.atEnd(d.dp.Close)
	if err := d.dp.HeldBy(d.guard); err != nil {
		return err
	}
	if err := d.dp.SetTuning(pipeline.Tuning); err != nil {
		return err
	}
	if d.scanner, err = node.NewScanner(node.Options{Underlays: d.opts.Underlays, OwnXDP: d.dp.Owns}); err != nil {
		return err
	}
	d.atEnd(d.scanner.Close)
	d.host = host.New(d.log, host.NewChanges(d.log, d.cookie), locked, d.dp, d.scanner)
	d.atEnd(d.host.Close)
	d.look = d.host.Look
	if err = d.host.Scan(ctx); err != nil {
		return fmt.Errorf("scan node: %w", err)
	}
	known, err := xdp.Remember(dir)
	if err != nil {
		d.log.Warn("what was found out about NICs is lost", "reason", err)
	}
	d.places = xdp.New(xdp.OnNode(d.scanner), known, d.host.Changes.InOrder())
	d.places.Look(d.host.Snapshot().Underlays)
	// The tunnels are told to the tracepoint at once: it is what tells overlay
	// packets from others.
	if err := d.host.SetTunnels(d.host.Snapshot()); err != nil && !errors.Is(err, datapath.ErrTooManyTunnels) {
		return err
	}
	if _, err = d.backlogs.Drops(); err != nil {
		return err
	}
	d.mechs = newMechanisms(arbiter{d.host, d}, d.opts)
	d.dp.Meanwhile(d.answer)
	d.trials = trial.NewTrials(d.log, d.total, d.mechs.tries()...)
	if d.online, err = d.opts.Online(); err != nil {
		return err
	}
	if d.returns, err = d.dp.Returns(); err != nil {
		return err
	}
	d.polled = time.Now()
	d.pollApart()
	if err := d.useCores(); err != nil {
		return err
	}
	if err := d.mechs.configure(ctx, d.opts); err != nil {
		return err
	}
	d.host.Changes.Flush()
	return nil
}

// Run works until ctx ends, then leaves the node as it was found.
func (d *Daemon) Run(ctx context.Context) error {
	tick := time.NewTicker(d.sampling.window())
	defer tick.Stop()
	poll := time.NewTicker(shortcut.PollEvery)
	defer poll.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer close(d.ended)
	for ctx.Err() == nil && !d.off {
		events := []event{
			on(ctx.Done(), func(struct{}) error { return nil }),
			on(tick.C, func(time.Time) error {
				err := d.step(ctx, time.Now())
				tick.Reset(d.trials.Window(d.sampling.window()))
				return err
			}),
			on(d.news(), func(struct{}) error { d.rescan(ctx); return nil }),
			on(d.scans, func(s scan) error { return d.rescanned(ctx, s) }),
			on(d.requests, func(fn func()) error { fn(); return nil }),
			on(d.questions, func(fn func()) error { fn(); return nil }),
			on(d.guard.Done(), func(struct{}) error {
				return errors.New("the guardian has ended: nothing would restore the node after a crash")
			}),
		}
		if d.mechs.any(mechanism.Mechanism.Polls) {
			events = append(events, on(poll.C, func(time.Time) error { return d.poll(ctx, time.Now()) }))
		}
		err := first(append(events, d.mechs.changes(ctx)...))
		d.host.Changes.Flush()
		if err != nil && ctx.Err() == nil {
			cancel()
			return errors.Join(err, d.stop())
		}
	}
	cancel() // a scan under way, for which closing the scanner waits
	if err := d.stop(); !d.off {
		return err
	}
	return nil // off has told what failed, and a service manager is not to start it again
}

// poll has mechanisms read again what makes no event.
func (d *Daemon) poll(ctx context.Context, now time.Time) error {
	return d.mechs.each(func(m mechanism.Mechanism) error {
		if !m.Polls() {
			return nil
		}
		return m.Poll(ctx, now)
	})
}

// news are the events of the node, which wait for as long as the last full scan is to be made up for:
// until the window then under way ends. Those that come during a scan have another one follow.
func (d *Daemon) news() <-chan struct{} {
	if d.scans != nil || !d.pace.Due(time.Now()) {
		return nil
	}
	return d.scanner.Events()
}

// scan is one that has ended.
type scan struct {
	began time.Time
	take  func()
	err   error
}

// rescan begins a scan, unless one is under way. The loop goes on meanwhile: of hundreds of devices a scan takes longer
// than flows can wait, and it waits for all that changes devices.
func (d *Daemon) rescan(ctx context.Context) {
	if d.scans != nil {
		return
	}
	began, scans := time.Now(), make(chan scan, 1)
	d.scans = scans
	go func() {
		take, err := d.look(ctx)
		scans <- scan{began, take, err}
	}()
}

// rescanned has mechanisms go by what a scan has found.
func (d *Daemon) rescanned(ctx context.Context, s scan) error {
	d.scans = nil
	defer d.pace.Scanned(s.began)
	if s.err != nil {
		d.log.Warn("scan failed, will be repeated", "reason", s.err)
		return nil
	}
	s.take()
	d.places.Look(d.host.Snapshot().Underlays)
	return d.mechs.each(func(m mechanism.Mechanism) error { return m.Rescanned(ctx) })
}

// step takes one window: measure, and have each mechanism decide and act.
func (d *Daemon) step(ctx context.Context, now time.Time) error {
	if only, err := d.trials.Settled(); only || err != nil {
		return err
	}
	if d.journal.Due(now) {
		began := time.Now()
		_ = d.host.SyncJournal() // log and status say it
		d.journal.Made(began)
	}
	err := errors.Join(d.heartbeat(now), d.pollOnline(now), d.pollNICs(ctx, now), d.mechs.each(func(m mechanism.Mechanism) error { return m.Step(ctx, now) }))
	if err != nil {
		return err
	}
	in, ok, err := d.measure(now)
	if err != nil || !ok {
		return err
	}
	for _, m := range d.mechs.all {
		if err := m.Decide(ctx, in); err != nil {
			return err
		}
	}
	return nil
}

// heartbeat tells the programs that the daemon decides. Without it flows drain by themselves.
func (d *Daemon) heartbeat(now time.Time) error {
	was := d.lastAlive
	d.lastAlive = now
	if late := now.Sub(was); !was.IsZero() && late > datapath.WatchdogTimeout && d.mechs.any(func(m mechanism.Mechanism) bool { return m.Steers() != mechanism.NotSteered }) {
		d.log.Warn("flows drained meanwhile", "reason", fmt.Sprintf("the daemon did not get to decide for %s", late.Round(100*time.Millisecond)))
	}
	return d.dp.Heartbeat()
}

// stop brings the node back and ends the guardian.
func (d *Daemon) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), mechanism.DrainFor)
	defer cancel()
	_, err := d.mechs.stop(ctx)
	err = errors.Join(err, d.mechs.each(func(m mechanism.Mechanism) error { return m.Close() }))
	d.host.Changes.Flush()
	err = errors.Join(err, d.close())
	if err != nil {
		d.log.Error("stop", "reason", err)
	} else {
		d.log.Info("stop")
	}
	return err
}

// atEnd has close do something, before what it was told of earlier.
func (d *Daemon) atEnd(fn func() error) { d.closers = append(d.closers, fn) }

// close lets go of everything; what is journalled stays for the guardian unless
// it was restored.
func (d *Daemon) close() error {
	d.tunnels.Close()
	d.received.Close()
	var errs []error
	for _, fn := range slices.Backward(d.closers) {
		errs = append(errs, fn())
	}
	return errors.Join(errs...)
}

// meanwhile is what does not wait while the daemon waits for the kernel. Flows that are steered do: on
// them the daemon is to decide, and it does not.
func (d *Daemon) meanwhile() {
	for _, m := range d.mechs.all {
		m.Meanwhile(time.Now())
	}
	if d.steers() {
		return
	}
	if err := d.heartbeat(time.Now()); err != nil {
		d.log.Warn("no heartbeat", "reason", err)
	}
}

// Cookie is that of the namespace that the daemon owns.
func (d *Daemon) Cookie() uint64 { return d.cookie }

// Close ends a daemon that never ran.
func (d *Daemon) Close() error {
	close(d.ended)
	return d.stop()
}
