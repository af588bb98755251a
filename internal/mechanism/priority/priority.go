// SPDX-License-Identifier: Apache-2.0

// Package priority lets flows of the latency class overtake bulk. It is in place as long as there are rules, or flows
// that profit: bulk makes way only while latency traffic is about.
package priority

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

const name = string(plan.ByPriority)

// Host is what it borrows of the daemon.
type Host interface {
	mechanism.Host
	// Entries are what the journal has. ForgetEnded drops those of threads that have ended.
	Entries() []apply.Entry
	ForgetEnded() error
	// CarryOutWhole writes the journal and then the settings, all or none.
	CarryOutWhole(steps []plan.Step) error
	// RulesChanged has the log tell which rules have come into force, and which no longer are.
	RulesChanged(was, now []rules.Rule)
	BeginCensus() (mechanism.Census, error)
	Places() *xdp.Places
	// Cores are those that flows may be steered to, sorted.
	Cores() []int
	Trials() *trial.Trials

	// ClearNICs has the other mechanisms leave the NICs' places for XDP programs, and the lanes. They may come back
	// where priority is not.
	ClearNICs(context.Context) error
	// StopExpress has frames take no path that priority's program knows.
	StopExpress(context.Context) error
	// PipelineArmed tells whether the pipeline is in place, Split whether it cuts flows into micro-flows.
	PipelineArmed() bool
	Split() bool
}

// Kernel is what it needs of datapath.Datapath.
type Kernel interface {
	LoadPriority() (*datapath.Priority, error)
	// StrayedLanes are the cores whose lanes run elsewhere, EndLanes ends some.
	StrayedLanes() ([]int, error)
	EndLanes(which func(core int) bool) error
}

// Priority is the mechanism.
type Priority struct {
	mechanism.Base
	host   Host
	dp     Kernel
	opts   Options
	added  []rules.Rule // at run time
	since  time.Time
	placed *placed                   // nil: nothing is
	past   datapath.PriorityCounters // of the times before
	demand demand
	lost   map[int]bool // cores that were offline since NICs' threads were bound
}

// New is a priority without rules, which nothing is in place for.
func New(h Host, dp Kernel, opts Options, since time.Time) *Priority {
	opts.Rules = nil
	p := &Priority{host: h, dp: dp, opts: opts, since: since, lost: map[int]bool{}}
	p.demand.trial = trial.New(name, forLatency, trial.Settles)
	return p
}

// Tries is mechanism.Mechanism's.
func (p *Priority) Tries() []*trial.Trial { return []*trial.Trial{p.demand.trial} }

// Configure takes over new options. An error changes nothing, but for one of what is to be taken back.
func (p *Priority) Configure(ctx context.Context, opts Options) error {
	was := p.opts
	opts.Tier, opts.NoGuard = was.Tier, was.NoGuard
	configured := opts.Rules
	opts.Rules = was.Rules
	p.opts = opts
	if was.NoThreads != opts.NoThreads || was.Fair != opts.Fair || was.Sync != opts.Sync {
		if _, err := p.Stop(ctx); err != nil {
			return err
		}
	}
	if err := p.useRules(ctx, p.added, configured); err != nil {
		p.opts = was
		return err
	}
	return nil
}

// OnNIC tells whether its program is on an underlay, Pollers on which cores latency traffic may be then.
func (p *Priority) OnNIC() bool { return p.placed.onNIC() }

// Pollers are the cores that have polled NICs lately; nil: it is not in place.
func (p *Priority) Pollers() []int {
	if p.placed == nil {
		return nil
	}
	return p.placed.pollers()
}

// InPlace tells whether bulk may be in lanes.
func (p *Priority) InPlace() bool { return p.placed != nil }

// Tracing is mechanism.Mechanism's.
func (p *Priority) Tracing() mechanism.Tracing {
	return mechanism.Tracing{Windows: p.noDemand() == "", Steady: p.placed != nil || p.demand.census != nil}
}

// Step is mechanism.Mechanism's.
func (p *Priority) Step(_ context.Context, now time.Time) error {
	return errors.Join(p.poll(now), p.stepRealtime(now))
}

// Decide is mechanism.Mechanism's.
func (p *Priority) Decide(ctx context.Context, in governor.Input) error {
	err := p.stepDemand(ctx, in)
	if p.placed != nil {
		p.placed.sawPolls(in, p.host.Entries())
	}
	return err
}

// Rescanned is mechanism.Mechanism's.
func (p *Priority) Rescanned(ctx context.Context) error {
	if err := p.follow(ctx); err != nil {
		p.host.Log().Warn("some underlays could not be followed", "reason", err)
	}
	p.placeThreads()
	return nil
}

// CoreLost is mechanism.Mechanism's.
func (p *Priority) CoreLost(core int) { p.lost[core] = true }

// CoresChanged is mechanism.Mechanism's.
func (p *Priority) CoresChanged() error {
	if p.placed != nil {
		if err := p.placed.dp.StartLanes(p.host.Cores(), p.placed.two, eager); err != nil {
			return err
		}
	}
	p.placeThreads()
	return nil
}

// Stop is mechanism.Mechanism's. Bulk is on the stock path again before.
func (p *Priority) Stop(ctx context.Context) (apply.Report, error) { return p.stop(ctx) }

// Close is mechanism.Mechanism's.
func (p *Priority) Close() error { return p.demand.endCensus() }

// Report is mechanism.Mechanism's.
func (p *Priority) Report() []control.Mechanism { return []control.Mechanism{p.report()} }

// Skipped is mechanism.Mechanism's.
func (p *Priority) Skipped() []plan.Skip {
	switch {
	case p.placed == nil:
		return nil
	case p.placed.sync == nil:
		return p.placed.skipped
	}
	return slices.Concat(p.placed.skipped, p.placed.sync.without)
}

// Fill is mechanism.Mechanism's.
func (p *Priority) Fill(st *control.Status, _ names.Names) error {
	frames, err := p.ruleFrames()
	if err != nil {
		return err
	}
	for i, r := range slices.Concat(p.added, p.opts.Rules) {
		st.Rules = append(st.Rules, control.Rule{Rule: r, Added: i < len(p.added), Packets: frames[r.Name]})
	}
	if st.SparseFlows, err = p.sparseFlows(); err != nil {
		return err
	}
	c, err := p.Counters()
	if err != nil {
		return err
	}
	n := &st.Counters
	n.LatencyPackets, n.LatencyHeld, n.LatencyExcess = c.Latency, c.LatencyHeld, c.LatencyExcess
	n.ShortCut, n.Bridged = c.ShortCut, c.Bridged
	n.BulkShortCut, n.BulkBridged = c.BulkShortCut, c.BulkBridged
	n.BulkPackets, n.BulkLane, n.Refused = c.Bulk, c.BulkLane, c.Refused
	return nil
}

// placed is what is in place as long as there are rules, or a demand.
type placed struct {
	dp       *datapath.Priority
	attached map[node.DevKey]*datapath.PriorityHook
	skipped  []plan.Skip // underlays without its program
	since    time.Time

	polled  map[int]time.Time // cores that have polled a NIC lately, by when they last did
	two     bool              // latency has lanes, too: a NIC is polled in softirq
	frames  map[string]uint64 // of rules, by name, before the list last changed
	checked time.Time
	budget  budget
	sync    *shortcuts // nil in mode batch

	realtime realtime
}

// Options are what the operator has asked for.
type Options struct {
	// Rules name flows; without any it is off, but for Auto and OnDemand.
	Rules []rules.Rule
	// Tier is the pipeline's: its XDP program and priority's are for the same place.
	Tier governor.Tier
	// NoGuard says why the order guard does not hold on this node, nil where it does.
	NoGuard error

	// Off: rules are kept, and do nothing.
	Off bool
	// No is why they do nothing though they are not switched off; nil: they do.
	No error
	// Sync: latency traffic goes from the tunnels straight to the pods, where it may.
	Sync bool
	// Auto: flows that no rule fits are latency as long as they are small and sparse.
	Auto bool
	// OnDemand: the same while there are no rules, where a trial shows that it pays.
	OnDemand bool
	// NoThreads: NICs are polled as before, and latency has a lane of its own.
	NoThreads bool
	// Fair: threads that poll NICs never run in real time.
	Fair bool
	// BulkShare is how much of a core's time latency leaves to bulk, from 0 to 1.
	BulkShare float64
}

// What a flow may send in a tenth of a second, at most, to be sparse by itself: what
// two thousand small requests a second come to.
const (
	sparseFrames = 200
	sparseBytes  = 64 << 10
)

// tuning is what the kernel side goes by.
func (p *Priority) tuning() datapath.PriorityTuning {
	t := bulkTuning
	t.LatencyShare = 1 - p.opts.BulkShare
	if p.opts.Auto || p.demand.on {
		t.SparseFrames, t.SparseBytes = sparseFrames, sparseBytes
	}
	if p.demand.on && !p.demand.trial.On() {
		t.Window = 0 // bulk does not make way
	}
	return t
}

// bulkTuning: latency traffic that pauses for longer than the window finds bulk on
// the stock path again. The lane's room is what a TCP window needs: with 512 frames each
// connection lost some again and again; what is in it waits some milliseconds at most.
var bulkTuning = datapath.PriorityTuning{Window: 50 * time.Millisecond, Room: 2000}

// eager is how the latency class's threads are scheduled.
var eager = datapath.LaneSched{Nice: plan.EagerNice, Slice: plan.EagerSlice}

// prioritises tells whether priority acts without a trial, with so many rules.
func (o Options) prioritises(rules int) bool {
	return !o.Off && o.No == nil && (rules > 0 || o.Auto)
}

// ErrTierXDP says that two mechanisms want the NIC's XDP hook.
var ErrTierXDP = errors.New("priority and the pipeline's tier xdp cannot be combined: set \"tier: tc\", or \"priority: {mode: off}\"")

// Fits tells whether it can be had beside the pipeline's tier: ErrTierXDP.
func (o Options) Fits() error {
	if o.Tier == governor.XDP && o.prioritises(len(o.Rules)) {
		return ErrTierXDP
	}
	return nil
}

// useRules puts lists of rules in force: those that were added at run time, then those
// of the configuration. An error changes nothing.
func (p *Priority) useRules(ctx context.Context, added, configured []rules.Rule) error {
	list := slices.Concat(added, configured)
	for i, r := range list {
		if slices.ContainsFunc(list[:i], func(o rules.Rule) bool { return o.Name == r.Name }) {
			return fmt.Errorf("there is a rule %q already", r.Name)
		}
	}
	table, err := rules.Compile(list)
	if err != nil {
		return err
	}
	if len(list) > 0 {
		p.demand.on = false // what it has put in place stays, for the rules
	}
	switch {
	case !p.opts.prioritises(len(list)) && (p.opts.Off || p.opts.No != nil || !p.demand.on):
		_, err = p.stop(ctx)
	case p.placed == nil:
		err = p.start(ctx, table)
	default:
		if err = p.keepRuleFrames(); err == nil {
			// A NIC that was left alone by itself may be asked for now.
			err = errors.Join(p.placed.dp.SetRules(table), p.placed.dp.SetTuning(p.tuning()), p.follow(ctx))
		}
	}
	if err == nil {
		p.host.RulesChanged(slices.Concat(p.added, p.opts.Rules), list)
		p.added, p.opts.Rules = added, configured
	}
	return err
}

// ruleFrames counts the frames of each rule in force, by name.
func (p *Priority) ruleFrames() (map[string]uint64, error) {
	sum := map[string]uint64{}
	if p.placed == nil {
		return sum, nil
	}
	now, err := p.placed.dp.RuleFrames()
	if err != nil {
		return nil, err
	}
	for i, r := range slices.Concat(p.added, p.opts.Rules) {
		if i < len(now) {
			sum[r.Name] = p.placed.frames[r.Name] + now[i]
		}
	}
	return sum, nil
}

// maxSparse bounds what status tells of flows.
const maxSparse = 50

// sparseFlows tells which flows are latency by themselves, and why.
func (p *Priority) sparseFlows() (list []control.SparseFlow, err error) {
	if p.placed == nil || !p.opts.Auto && !p.demand.on {
		return nil, nil
	}
	flows, err := p.placed.dp.SparseFlows()
	if err != nil {
		return nil, err
	}
	for _, f := range flows[:min(len(flows), maxSparse)] {
		where := fmt.Sprintf("vni %d", f.VNI)
		if f.Host {
			where = "host"
		}
		list = append(list, control.SparseFlow{
			Flow: fmt.Sprintf("%s %s > %s, %s", rules.ProtoName(f.Proto), f.Src, f.Dst, where),
			Core: f.Core,
			Reason: fmt.Sprintf("at most %d packets and %d bytes in a tenth of a second, for %s; %d and %d in the last",
				sparseFrames, sparseBytes, f.For, f.Frames, f.Bytes),
		})
	}
	return list, nil
}

// keepRuleFrames remembers them before the list changes.
func (p *Priority) keepRuleFrames() (err error) {
	p.placed.frames, err = p.ruleFrames()
	return err
}

// poll checks what is in place.
func (p *Priority) poll(now time.Time) error {
	if p.placed == nil || now.Sub(p.placed.checked) < mechanism.CheckEvery {
		return nil
	}
	p.placed.checked = now
	c, err := p.Counters()
	if err != nil {
		return err
	}
	// Thousands of rules take as many system calls: only where there is something to say.
	if c.LatencyExcess > p.placed.budget.excess {
		frames, err := p.ruleFrames()
		if err != nil {
			return err
		}
		for _, r := range slices.Concat(p.added, p.opts.Rules) {
			if r.Class != rules.Latency {
				delete(frames, r.Name)
			}
		}
		p.placed.budget.exceeded(now, c.LatencyExcess, frames)
	}
	if err := p.followSync(now); err != nil {
		p.host.Log().Warn("some redirect paths could not be followed", "reason", err)
	}
	return p.renewLanes()
}

// sawPolls remembers which cores poll NICs. Threads do where they are bound, whether
// anything comes or not.
func (a *placed) sawPolls(in governor.Input, owned []apply.Entry) {
	for cpu, c := range in.Cores {
		if c.Rate > 0 {
			a.polled[cpu] = in.Now
		}
	}
	for _, th := range boundThreads(owned) {
		a.polled[th.sched.Cores[0]] = in.Now
	}
	maps.DeleteFunc(a.polled, func(_ int, last time.Time) bool { return in.Now.Sub(last) >= mechanism.PolledFor })
}

// pollers are the cores on which latency traffic may be: all that have polled a NIC lately.
func (a *placed) pollers() []int { return slices.Sorted(maps.Keys(a.polled)) }

// start puts priority in place.
func (p *Priority) start(ctx context.Context, table *rules.Table) error {
	if p.opts.Tier == governor.XDP {
		return ErrTierXDP
	}
	if p.opts.NoGuard != nil {
		return fmt.Errorf("priority cannot keep flows in order here: %w", p.opts.NoGuard)
	}
	if err := p.host.ClearNICs(ctx); err != nil {
		return err
	}
	defer p.host.Begins(name)()
	in := &placed{attached: map[node.DevKey]*datapath.PriorityHook{}, since: time.Now(), polled: map[int]time.Time{}, frames: map[string]uint64{}, budget: budget{excess: p.past.LatencyExcess},
		realtime: realtime{on: !p.opts.Fair}}
	var err error
	if in.dp, err = p.dp.LoadPriority(); err != nil {
		return err
	}
	p.placed = in
	// Bulk stays where it is until the NICs' threads are where they will be.
	err = errors.Join(in.dp.SetTuning(datapath.PriorityTuning{}), in.dp.SetRules(table), in.dp.StartLanes(p.host.Cores(), false, eager))
	if err == nil && p.opts.Sync {
		err = in.startSync(p.host.Watchers())
	}
	if err == nil {
		err = p.follow(ctx)
	}
	if err == nil {
		err = in.dp.SetTuning(p.tuning())
	}
	if err != nil {
		_, undo := p.stop(context.Background())
		return errors.Join(err, undo)
	}
	return nil
}

// onNIC tells that priority's program is on an underlay.
func (a *placed) onNIC() bool { return a != nil && len(a.attached) > 0 }

// noThreads says why no thread polls a NIC for priority.
func (p *Priority) noThreads(u node.Underlay) string {
	if p.opts.NoThreads {
		return "threads are switched off by configuration"
	}
	return fmt.Sprintf("others receive for %s", u.Name)
}

// makeWayFor has micro-flows and the pipeline's lanes taken off before priority's program comes to a NIC
// that has not taken it so far: they did not stand back while none did.
func (p *Priority) makeWayFor(ctx context.Context, u node.Underlay) error {
	if p.placed.onNIC() || p.host.Places().Bars(u, p.wants()) != "" {
		return nil
	}
	return p.host.ClearNICs(ctx)
}

// hook attaches the hook to an underlay.
func (p *Priority) hook(u node.Underlay, two bool) (h *datapath.PriorityHook, err error) {
	err = p.host.Places().Take(u, p.wants(), func() (io.Closer, error) {
		return p.host.Attach(u.Dev, func(at datapath.Device) (io.Closer, error) {
			h, err = p.placed.dp.AttachXDP(at, two)
			return h, err
		})
	})
	return h, err
}

// follow attaches the hook to the underlays that lack it.
func (p *Priority) follow(ctx context.Context) error {
	if p.placed == nil {
		return nil
	}
	in := p.placed
	want := map[node.DevKey]bool{}
	var errs []error
	in.skipped = nil
	for _, u := range p.host.Snapshot().Underlays {
		want[u.Key()] = true
		if in.attached[u.Key()] != nil {
			continue
		}
		if err := p.makeWayFor(ctx, u); err != nil {
			return err
		}
		two := p.opts.NoThreads || u.Master()
		if two {
			in.two = true
			if err := in.dp.StartLanes(p.host.Cores(), true, eager); err != nil {
				return err
			}
		}
		l, err := p.hook(u, two)
		var left *xdp.Left
		switch {
		case err == nil && two:
			in.attached[u.Key()] = l
			p.host.Log().Info("the NIC is polled in softirq: latency traffic has a lane of its own", "device", u.Dev, "reason", p.noThreads(u))
		case err == nil:
			in.attached[u.Key()] = l
			err := p.threadNAPI(u)
			if err == nil {
				continue
			}
			p.host.Log().Info("the NIC is polled in softirq: latency traffic has a lane of its own", "device", u.Dev, "reason", err)
			in.two = true
			if err := errors.Join(in.dp.StartLanes(p.host.Cores(), true, eager), l.TwoLanes()); err != nil {
				errs = append(errs, err)
			}
		case errors.Is(err, node.ErrGone):
		case errors.As(err, &left):
			in.skipped = append(in.skipped, plan.Skip{What: u.Dev.String(), Reason: left.Reason})
		default:
			errs = append(errs, err)
		}
	}
	for key := range in.attached {
		if !want[key] {
			errs = append(errs, p.host.Places().Release(key, xdp.Priority))
			delete(in.attached, key)
		}
	}
	return errors.Join(append(errs, p.besideRealtime(), p.followSync(time.Now()))...)
}

// renewLanes makes new bulk lanes on cores that were offline, or were about to be: the
// threads of the old ones may run elsewhere, and the hook knows.
func (p *Priority) renewLanes() error {
	if p.placed == nil {
		return nil
	}
	strayed, err := p.dp.StrayedLanes()
	if err != nil {
		return err
	}
	back := func(core int) bool { return slices.Contains(strayed, core) && slices.Contains(p.host.Cores(), core) }
	if !slices.ContainsFunc(strayed, back) {
		return nil
	}
	if err := p.dp.EndLanes(back); err != nil {
		return err
	}
	for _, core := range strayed {
		p.lost[core] = true
	}
	err = p.placed.dp.StartLanes(p.host.Cores(), p.placed.two, eager)
	p.placeThreads()
	return err
}

// stop takes it off, once bulk is on the stock path again.
func (p *Priority) stop(ctx context.Context) (rep apply.Report, err error) {
	defer func() { p.demand.on = false }()
	if p.placed == nil {
		return rep, nil
	}
	// Its hook goes.
	err = p.host.StopExpress(ctx)
	err = errors.Join(err, p.drainBulk(ctx))
	err = errors.Join(err, p.placed.dp.BesideRealtime(nil, eager))
	// Settings first, as the guardian does: many drivers reset the NIC when a program goes, and since Linux 6.17
	// threaded = 0 waits, with the device's lock, for a NAPI that a reset has disabled, and the reset for that lock
	// (napi_stop_kthread, net/core/dev.c; seen to hang on igb).
	rep, e := p.host.Restore(plan.ByPriority, nil)
	err = errors.Join(err, e, p.host.Places().ReleaseAll(xdp.Priority))
	clear(p.placed.attached)
	past, e := p.Counters()
	if err = errors.Join(err, e); e == nil {
		p.past = past
	}
	err = errors.Join(err, p.placed.close())
	p.placed = nil
	return rep, err
}

// Counters count since the daemon started.
func (p *Priority) Counters() (datapath.PriorityCounters, error) {
	if p.placed == nil {
		return p.past, nil
	}
	now, err := p.placed.dp.Counters()
	return p.past.Add(now), err
}

// waitPromoted waits until no core sends bulk to its lane, and the lanes are empty.
func (p *Priority) waitPromoted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mechanism.DrainFor)
	defer cancel()
	var demoted int
	err := datapath.Await(ctx, func() (bool, error) {
		n, err := p.placed.dp.Demoted()
		demoted = n
		return n == 0, err
	})
	if errors.Is(err, datapath.ErrFlowsOut) {
		return fmt.Errorf("bulk is in the lanes of %d cores: %w", demoted, err)
	}
	return err
}

func (a *placed) close() error {
	var errs []error
	if a.sync != nil {
		errs = append(errs, a.sync.close())
	}
	return errors.Join(append(errs, a.dp.Close())...)
}

// AddRule puts one more rule in force. An error changes nothing.
func (p *Priority) AddRule(ctx context.Context, r rules.Rule) error {
	return p.useRules(ctx, append(slices.Clone(p.added), r), p.opts.Rules)
}

// DelRule takes away a rule that was added at run time. An error changes nothing.
func (p *Priority) DelRule(ctx context.Context, ruleName string) error {
	named := func(r rules.Rule) bool { return r.Name == ruleName }
	switch {
	case slices.ContainsFunc(p.added, named):
		return p.useRules(ctx, slices.DeleteFunc(slices.Clone(p.added), named), p.opts.Rules)
	case slices.ContainsFunc(p.opts.Rules, named):
		return fmt.Errorf("rule %q is the configuration's: take it out of the file, and send the daemon SIGHUP", ruleName)
	}
	return fmt.Errorf("there is no rule %q", ruleName)
}

// report is what priority does.
func (p *Priority) report() control.Mechanism {
	m := control.Mechanism{Name: "priority", State: control.Off, Reason: "there are no rules", Since: p.since}
	switch o := p.opts; {
	case o.Off:
		m.Reason = "switched off by configuration"
	case o.No != nil && (o.Auto || len(p.added)+len(p.opts.Rules) > 0):
		m.State, m.Reason = control.Unsupported, o.No.Error()
	}
	if p.placed == nil {
		if why := p.tooDear(); why != "" && !p.opts.Off && p.opts.OnDemand && p.opts.No == nil && len(p.added)+len(p.opts.Rules) == 0 {
			m.State, m.Reason = control.Standby, why
			return m
		}
		if why := p.demand.gov.Last().Reason; why != "" && p.noDemand() == "" {
			m.State, m.Reason = control.Standby, why
		}
		return m
	}
	var by []string
	switch n := len(p.added) + len(p.opts.Rules); n {
	case 0:
	case 1:
		by = append(by, "1 rule")
	default:
		by = append(by, fmt.Sprintf("%d rules", n))
	}
	if p.opts.Auto || p.demand.on {
		by = append(by, "small, sparse flows")
	}
	m.State, m.Since = control.Active, p.placed.since
	m.Reason = strings.Join(by, " and ") + "; bulk makes way while latency traffic is about"
	if p.placed.sync != nil {
		m.Reason += "; it goes " + p.placed.sync.reason()
	}
	if why := p.placed.realtime.why; why != "" {
		m.Reason += "; " + why
	}
	if why := p.demand.trial.Reason(); p.demand.on && why != "" {
		m.Reason += "; " + why
	}
	if over := p.placed.budget.reason(time.Now()); over != "" {
		m.Reason = over
	}
	if len(p.placed.attached) == 0 {
		m.State, m.Reason = control.Standby, p.noNIC()
	}
	return m
}
