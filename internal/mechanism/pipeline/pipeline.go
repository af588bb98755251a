// SPDX-License-Identifier: Apache-2.0

// Package pipeline spreads the stages of a flow's receive path over cores, and cuts flows that are too much for one
// core into micro-flows, which a resequencer puts in order again. Both have one actuator: what is in place is for
// one of them at a time.
package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

const (
	name           = string(plan.ByPipeline)
	microflowsName = "microflows"
)

// watchedFirst is why it waits while aggregation watches.
const watchedFirst = "it is watched first whether datagrams come in a row, and can cross the overlay as one packet"

// Host is what it borrows of the daemon.
type Host interface {
	mechanism.Host
	// Readings are how devices receive, as of a while ago, and the settings that any mechanism has changed.
	Readings() (devices node.Reader, ours map[plan.Setting]plan.Owned)
	// Entries are what the journal has.
	Entries() []apply.Entry
	// Unneeded is what a mechanism has changed and needs no more, on devices that live on.
	Unneeded(by plan.Owner, needed func(plan.Setting) bool) ([]apply.Entry, error)
	// SetTunnels tells the programs which tunnels and underlays of a node to look at.
	SetTunnels(node.Snapshot) error
	Places() *xdp.Places
	// Passed waits until what came before it has left the stack.
	Passed(context.Context) error
	// Offline tells cores that poll no more.
	Offline(core int) bool
	// Meanwhile is to be called while it waits for the kernel.
	Meanwhile()
	// Cores are those that flows may be steered to, sorted.
	Cores() []int
	// BacklogDrops are what the backlogs have dropped since the daemon started.
	BacklogDrops() (map[int]uint64, error)
	// Window is how long a window is.
	Window() time.Duration
	Trials() *trial.Trials

	// PriorityOnNIC tells whether priority's program is on an underlay, PriorityCores on which cores latency traffic
	// may be then.
	PriorityOnNIC() bool
	PriorityCores() []int
	// Aggregation joins so many datagrams a second.
	Aggregation() governor.State
	Joined() float64
	// Express tells of a pod that its packets come straight from the NIC.
	Express(node.Pod) bool
}

// Kernel is what it needs of datapath.Datapath.
type Kernel interface {
	CPUs() int
	Cores() ([]datapath.Core, error)
	Counters() (datapath.Counters, error)
	LanePackets(stage datapath.Stage, lane int) (uint64, error)
	SetLanes(s datapath.Stage, cores []int, mask ...int) error
	StartLanes(cores []int) error
	EndLanes(which func(core int) bool) error
	SetLeaving(stage datapath.Stage, leaving func(core int) bool) error
	Steer(core int, stages ...datapath.Stage) error

	AttachXDP(datapath.Device) (io.Closer, error)
	AttachUnderlay(datapath.Device) (io.Closer, error)
	AttachUnderlaySplit(datapath.Device) (io.Closer, error)
	AttachUnderlayNumber(datapath.Device) (io.Closer, error)
	AttachTunnel(datapath.Device) (io.Closer, error)
	AttachPod(datapath.Device) (io.Closer, error)
	AttachPodMerge(datapath.Device) (io.Closer, error)
	AttachPodLeftAlone(datapath.Device) (io.Closer, error)
	AttachMerged(datapath.Device) (io.Closer, error)

	SetSplit(datapath.Split) error
	ForgetSplit() error
	SetBranches(at datapath.Stage, sets []datapath.Branches, setOf func(core int) int) error
	SetNeutral(bool) error
	SetNumbering(bool) error
	Numbers() (bool, error)
	OverlayOn() ([]uint64, error)
	XDPOverlayOn() ([]uint64, error)
	SplitOn() ([]uint64, error)
	LoadMerge(limit time.Duration) (*datapath.Merge, error)
	SetMergeDevice(ifindex int) error
	SetMergeReady() error
	MergeEnded() (bool, error)
	Merges() bool
	Resequenced() (entered uint64, held bool, err error)
	PodSent(steered uint64) (uint64, error)
}

// Options are what the operator has asked for.
type Options struct {
	Mode   governor.Mode
	Tier   governor.Tier
	Limits governor.Limits
	// Topology reads how the cores that are online are wired; nil: all are alike.
	Topology func() governor.Topology
	// Microflows are elephants, split.
	Microflows Microflows
}

// Tuning is how the kernel side chooses lanes.
var Tuning = datapath.Tuning{RebalanceQueue: 128}

// Pipeline is the mechanism.
type Pipeline struct {
	mechanism.Base
	host     Host
	dp       Kernel
	opts     Options
	topology governor.Topology // of the cores that were online when cores last changed
	gov      *governor.Governor
	trial    *trial.Trial
	micro    microflows
	actuator *actuator
	polls    polls
	refit    governor.Refit
	before   map[int]governor.Core // as cores were when it was put in place
	avoid    []int                 // cores that tasks need, and whose lanes flows have left
	evict    bool                  // it is to be taken off, and placed anew if it is still wanted
	check    mechanism.Check       // of what is in place
	retry    time.Time
	err      error // why the last attempt to put it in place failed
	useless  bool  // no hop was worth it, in the last window
	said     mechanism.Told
}

// New is a pipeline that is not in place.
func New(h Host, dp Kernel, opts Options) *Pipeline {
	p := &Pipeline{
		host: h, dp: dp, opts: opts,
		gov: governor.New(opts.Mode, opts.Limits), trial: trial.New(name, trial.ForGoodput, trial.Settles),
	}
	p.micro.gov, p.micro.trial = governor.New(opts.Microflows.Mode, opts.Limits), trial.New(microflowsName, trial.ForGoodput, trial.Settles)
	p.actuator = &actuator{
		host: h, dp: p.dp, wants: p.wants, past: (*shortcut.Watchers).PastHostEnds, decrypts: p.decrypts,
		attached: mechanism.Hooks{}, refused: map[node.DevKey]refusal{}, lost: map[int]bool{},
	}
	return p
}

// Tries is mechanism.Mechanism's.
func (p *Pipeline) Tries() []*trial.Trial { return []*trial.Trial{p.trial, p.micro.trial} }

// Configure takes over mode and limits. The tier stays that of the start.
func (p *Pipeline) Configure(opts Options) {
	opts.Tier, opts.Topology = p.opts.Tier, p.opts.Topology
	p.opts = opts
	p.gov.Reconfigure(opts.Mode, opts.Limits)
	p.micro.gov.Reconfigure(opts.Microflows.Mode, opts.Limits)
}

// Armed tells whether its programs and masks are in place, Split whether they are for micro-flows.
func (p *Pipeline) Armed() bool { return p.actuator.armed }

// Split is true while micro-flows are in place.
func (p *Pipeline) Split() bool { return p.actuator.armed && p.actuator.layout.Split }

// Steers is mechanism.Mechanism's.
func (p *Pipeline) Steers() mechanism.Steering {
	if p.actuator.steering {
		return mechanism.EachWindow
	}
	return mechanism.NotSteered
}

// Tracing is mechanism.Mechanism's.
func (p *Pipeline) Tracing() mechanism.Tracing {
	return mechanism.Tracing{Windows: p.asks(governor.Auto), Always: p.actuator.armed || p.asks(governor.Forced)}
}

// asks tells whether it, or micro-flows, have that mode.
func (p *Pipeline) asks(m governor.Mode) bool {
	_, no := p.noMicroflows()
	return p.opts.Mode == m || no == "" && p.opts.Microflows.Mode == m
}

// calmBelow is up to which part of the share of time in saturated polls that asks for help no core is about to ask.
const calmBelow = 0.8

// Busy is mechanism.Mechanism's.
func (p *Pipeline) Busy(in governor.Input) bool {
	if p.actuator.armed || p.asks(governor.Forced) {
		return true
	}
	if p.useless {
		return false // a core that is saturated could not be helped
	}
	for _, c := range in.Cores {
		if c.Saturated > calmBelow*p.opts.Limits.Saturated {
			return true
		}
	}
	return false
}

// Step is mechanism.Mechanism's.
func (p *Pipeline) Step(context.Context, time.Time) error {
	if p.actuator.armed {
		return nil
	}
	return p.actuator.detach(true)
}

// CoreLost is mechanism.Mechanism's.
func (p *Pipeline) CoreLost(core int) { p.actuator.lost[core] = true }

// CoresChanged is mechanism.Mechanism's. Flows leave other cores under the order guard. The kernel tells nothing of how
// a core is wired that is offline.
func (p *Pipeline) CoresChanged() error {
	if p.opts.Topology != nil {
		p.topology = p.opts.Topology()
	}
	return p.leaveCores()
}

// Rescanned is mechanism.Mechanism's.
func (p *Pipeline) Rescanned(context.Context) error {
	if p.actuator.armed {
		p.follow()
		return nil
	}
	err := p.host.SetTunnels(p.host.Snapshot())
	if errors.Is(err, datapath.ErrTooManyTunnels) {
		err = nil
	}
	return errors.Join(err, p.host.Places().ReleaseUnfit(xdp.Pipeline, xdp.Microflows))
}

// follow makes what is in place fit the node, and has it taken off where another program has taken over a device, or
// has let go of one.
func (p *Pipeline) follow() {
	if p.actuator.arming {
		return // each step of that plans anew
	}
	began := time.Now()
	err := p.actuator.follow(p.host.Snapshot())
	p.check.Made(began)
	switch {
	case errors.Is(err, errChangedHands):
		if !p.evict {
			p.host.Log().Info("pipeline is taken off", "mechanism", name, "reason", err)
		}
		p.evict = true
	case errors.Is(err, mechanism.ErrMore):
		p.check.Again()
	case err != nil:
		p.host.Log().Warn("some devices could not be followed", "reason", err)
	}
}

// Decide is mechanism.Mechanism's.
func (p *Pipeline) Decide(ctx context.Context, in governor.Input) error {
	split := in
	micro, err := p.stepMicroflows(&split)
	if err != nil {
		return err
	}
	p.polls.saw(in, p.actuator.armed)
	switch {
	case micro.State != governor.Standby:
		in.Layout = governor.Layout{Reason: "micro-flows act instead"}
	case p.host.Snapshot().LacksNIC() != "":
		in.Layout = governor.Layout{Reason: p.host.Snapshot().LacksNIC()}
	case p.actuator.armed:
		in.Layout = p.actuator.layout
	case p.opts.Mode == governor.Auto && p.host.Aggregation() == governor.Parked:
		in.Layout = governor.Layout{Reason: watchedFirst}
	default:
		in.Layout = p.place(in, p.opts.Limits.Short(in, p.tier() == governor.XDP))
		if why := p.host.Snapshot().LacksPod(); why != "" && len(in.Layout.NIC)+len(in.Layout.Tunnel) == 0 && !in.Layout.None() {
			in.Layout = governor.Layout{Reason: why} // to move the pods' stage there has to be one
		}
	}
	p.trial.Bar(&in)
	p.useless = in.Layout.None() && split.Layout.None()
	dec := p.gov.Step(in)
	defer func() {
		p.said.Decided(p.host.Log(), name, dec, p.actuator.armed && !p.actuator.layout.Split, false)
		p.micro.said.Decided(p.host.Log(), microflowsName, micro, p.Split(), false)
	}()
	// One of them at a time: the other one's flows drain first.
	if p.Split() || !p.actuator.armed && micro.State == governor.Active {
		p.actuator.hold = p.opts.Microflows.Hold
		if err := p.actuator.splitInto(p.split(split)); err != nil {
			return err
		}
		p.trial.Leave()
		return p.act(ctx, micro, split, p.micro.trial, p.opts.Microflows.Mode)
	}
	p.micro.trial.Leave()
	return p.act(ctx, dec, in, p.trial, p.opts.Mode)
}

// act makes what is in place agree with the decision. t: as it is forced by no configuration, flows
// are steered as far as that has shown that it pays.
func (p *Pipeline) act(ctx context.Context, dec governor.Decision, in governor.Input, t *trial.Trial, mode governor.Mode) error {
	p.refitLanes(in, dec)
	if err := p.avoidCores(dec, t.Name); err != nil {
		return err
	}
	if dec.State != governor.Active || mode == governor.Forced || !p.actuator.armed {
		t.Leave()
	}
	if p.actuator.armed && (dec.State == governor.Standby || p.evict || p.actuator.stale(p.host.Cores()) || p.inTheWay()) {
		err := p.actuator.recall(ctx, p.host.Window()/2)
		switch {
		case !errors.Is(err, datapath.ErrFlowsOut):
		case len(p.actuator.layout.NIC) > 0 && leaves(p.host.Snapshot(), p.host.Places()) != "":
			// What RPS takes elsewhere the guard does not see, and may hold a lane for in use for long.
			wait, cancel := context.WithTimeout(ctx, mechanism.DrainFor)
			_, err = p.actuator.disarm(wait)
			cancel()
			err = errors.Join(err, p.Close())
		default:
			p.host.Log().Debug("flows drain", "mechanism", name, "reason", err)
			return nil // looked at again in the next window
		}
		p.evict = false
		return err
	}
	if p.actuator.armed && p.check.Due(in.Now) {
		p.follow()
	}
	if err := p.actuator.lookUnseen(in.Now, p.host.Snapshot()); err != nil {
		return err
	}
	switch dec.State {
	case governor.Parked:
		return p.actuator.callBack()
	case governor.Active:
		if !p.actuator.armed || p.actuator.arming {
			if ready, err := p.arm(ctx, in, t.Name); !ready {
				return err
			}
		}
		return p.steer(in, t, mode, dec.Helped)
	}
	return nil
}

// arm puts it in place; not ready: it is not.
func (p *Pipeline) arm(ctx context.Context, in governor.Input, mechanismName string) (ready bool, err error) {
	// Without traffic the daemon does not know yet which cores poll the NIC.
	if len(in.Pollers()) == 0 || in.Now.Before(p.retry) {
		return false, nil
	}
	p.before, p.avoid = in.Cores, nil
	over := p.host.Begins(mechanismName)
	p.err = p.actuator.arm(ctx, p.host.Snapshot(), in.Layout)
	over()
	if p.err == nil {
		return true, nil
	}
	if errors.Is(p.err, mechanism.ErrMore) { // goes on with the next window
		p.err = nil
		return false, nil
	}
	if ctx.Err() != nil { // the daemon ends, and Stop takes off what is in place
		p.err = nil
		return false, nil
	}
	if _, left := errors.AsType[*xdp.Left](p.err); left {
		// Said already. The next window places it behind the NIC's stage.
		p.err = nil
	} else {
		p.said, p.micro.said = mechanism.Told{}, mechanism.Told{}
		p.host.Log().Error("pipeline could not be put in place", "mechanism", mechanismName, "reason", p.err, "again_in", mechanism.RetryAfter)
		p.retry = in.Now.Add(mechanism.RetryAfter)
	}
	_, err = p.actuator.disarm(ctx)
	return false, err
}

// steer lets the flows of the helped cores be steered, or calls them back, as the trial says.
func (p *Pipeline) steer(in governor.Input, t *trial.Trial, mode governor.Mode, helped []int) error {
	on := true
	if p.actuator.nothing != "" {
		t.Leave()
		return p.actuator.callBack()
	}
	if mode != governor.Forced {
		var err error
		tried := t.Judge.Trying()
		if on, err = p.host.Trials().Try(t, in, p.situationOf(t, in), p.steered, p.concerns(helped)); err != nil {
			return err
		}
		if tried && !t.Judge.Trying() {
			p.micro.forget()
		}
	}
	if !on {
		return p.actuator.callBack()
	}
	return p.actuator.steer(helped)
}

// steered tells how many packets went by a lane of what is in place.
func (p *Pipeline) steered(c datapath.Counters) (acted, of uint64, err error) {
	if p.actuator.layout.Split {
		return c.Split, max(c.Overlay, c.XDPOverlay), nil
	}
	return c.SteeredSeen(), c.OverlaySeen(), nil
}

// concerns are the cores whose packets a trial of the pipeline counts: those that are helped, and those that
// help. The others' packets would drown what is gained for one core of many.
func (p *Pipeline) concerns(helped []int) []int {
	if helped == nil {
		return nil
	}
	cores := slices.Concat(helped, p.actuator.layout.Cores())
	slices.Sort(cores)
	return slices.Compact(cores)
}

// situationOf is what a verdict on the pipeline or on micro-flows holds for. The latter have an XDP program on the
// NIC, which slows down TCP in windows without them as well: they are held against what came before it.
func (p *Pipeline) situationOf(t *trial.Trial, in governor.Input) governor.Situation {
	s := trial.Situation(in)
	if t == p.micro.trial {
		s.Without = p.micro.without
	}
	return s
}

// Recall takes it off once its flows are drained. datapath.ErrFlowsOut: they are not within the limit, and nothing
// else has changed.
func (p *Pipeline) Recall(ctx context.Context, limit time.Duration) error {
	return p.actuator.recall(ctx, limit)
}

// Stop is mechanism.Mechanism's. Flows that do not drain before ctx ends may be overtaken once.
func (p *Pipeline) Stop(ctx context.Context) (apply.Report, error) { return p.actuator.disarm(ctx) }

// Close is mechanism.Mechanism's.
func (p *Pipeline) Close() error {
	return p.host.Places().ReleaseAll(xdp.Pipeline, xdp.Microflows)
}

// Report is mechanism.Mechanism's.
func (p *Pipeline) Report() []control.Mechanism {
	return []control.Mechanism{p.report(), p.reportMicroflows()}
}

// report is what was decided, unless the node leaves nothing to carry it out on.
func (p *Pipeline) report() control.Mechanism {
	dec := p.gov.Last()
	m := control.Mechanism{Name: name, State: mechanism.State(p.opts.Mode, dec.State), Reason: dec.Reason, Since: dec.Since}
	if p.actuator.armed && !p.actuator.layout.Split {
		m.Gain = p.actuator.layout.Gain
	}
	if why := p.trial.Reason(); why != "" {
		m.Reason += "; " + why
	}
	if why := p.noXDPTier(); why != "" && m.State == control.Active {
		m.Reason += "; the NIC's stage stays where it is (" + why + ")"
	}
	if why := p.actuator.share.reason; why != "" && m.State == control.Active {
		m.Reason += "; " + why
	}
	p.whatIs(&m)
	return m
}

// whatIs puts into a report of the pipeline, or of micro-flows, what keeps the node from having what was decided.
func (p *Pipeline) whatIs(m *control.Mechanism) {
	lacks := p.host.Snapshot().LacksNIC()
	switch {
	case m.State == control.Off:
	case lacks != "": // also where nothing was decided since
		m.State, m.Reason = control.Standby, lacks
	case m.State != control.Active:
	case p.actuator.armed && p.actuator.nothing != "":
		m.State, m.Reason = control.Manual, p.actuator.nothing
		if slices.ContainsFunc(p.host.Snapshot().Pods, p.host.Express) { // not another program's doing
			m.State = control.Standby
		}
	case !p.actuator.armed && p.err != nil:
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, p.err)
	}
	if m.State == control.Active && p.actuator.arming {
		m.State, m.Reason = control.Standby, "its programs are being attached; "+m.Reason
	}
}

// Skipped is mechanism.Mechanism's.
func (p *Pipeline) Skipped() []plan.Skip { return slices.Concat(p.withoutXDP(), p.actuator.skipped) }

// Drops is mechanism.Mechanism's: what lanes, the order guard and resequencers lost.
func (p *Pipeline) Drops(c datapath.Counters) (uint64, error) {
	m, err := p.actuator.mergeCounters()
	return c.XDPDrop + c.Refused + c.NoRoom + c.MergedLost + m.Refused + m.Dropped, err
}

// Fill is mechanism.Mechanism's.
func (p *Pipeline) Fill(st *control.Status, _ names.Names) error {
	c, err := p.dp.Counters()
	if err != nil {
		return err
	}
	m, err := p.actuator.mergeCounters()
	if err != nil {
		return err
	}
	n := &st.Counters
	if n.MergeWaiting, err = p.actuator.merge.waiting(); err != nil {
		return err
	}
	n.SteeredPackets = c.SteeredSeen()
	n.LaneChanges, n.LaneChangesHeld = c.LaneChanges, c.LaneHeld
	n.LaneDrops, n.LaneRefused = c.XDPDrop+c.Refused, c.Refused
	n.SplitPackets, n.Microflows, n.Splits = c.Split, c.Microflows, c.SplitBegun
	n.MergePassed, n.MergeLate, n.MergeHeld, n.MergeGaps, n.MergeExpired = m.Passed, m.Late, m.Held, m.Gaps, m.Expired
	n.MergeUnwatched, n.MergeRefused, n.MergeDropped, n.MergeNoRoom = m.Unwatched, m.Refused, m.Dropped+c.MergedLost, c.NoRoom
	return p.fillLanes(st)
}

func (p *Pipeline) fillLanes(st *control.Status) error {
	drops, err := p.host.BacklogDrops()
	if err != nil {
		return err
	}
	cores, err := p.dp.Cores()
	if err != nil {
		return err
	}
	for _, stage := range []datapath.Stage{datapath.NIC, datapath.Tunnel, datapath.Pod} {
		first := len(st.Lanes)
		for i, core := range p.actuator.stages()[stage] {
			n, err := p.dp.LanePackets(stage, i)
			if err != nil {
				return err
			}
			c := cores[core]
			// A backlog is shared by all that RPS and veth send there.
			lane := control.Lane{Stage: stage.String(), Core: core, Packets: n, Queue: uint64(c.Queue), Drops: drops[core]}
			if stage == datapath.NIC {
				lane.Queue, lane.Drops = uint64(c.LaneQueue), c.LaneLost
			}
			st.Lanes = append(st.Lanes, lane)
		}
		slices.SortFunc(st.Lanes[first:], func(a, b control.Lane) int { return cmp.Compare(a.Core, b.Core) })
	}
	return nil
}
