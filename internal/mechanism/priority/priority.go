// SPDX-License-Identifier: Apache-2.0

// Package priority lets flows of the latency class overtake bulk. It is in place as long as there are rules, or flows
// that profit: bulk makes way only while latency traffic is about.
package priority

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

const name = string(plan.ByPriority)

// Host is what it borrows of the daemon.
type Host interface {
	mechanism.Host
	// Entries are what the journal has.
	Entries() []apply.Entry
	// CarryOutWhole writes the journal and then the settings, all or none.
	CarryOutWhole(steps []plan.Step) error
	// RulesChanged has the log tell which rules of a mechanism have been added, and which were taken away.
	RulesChanged(by plan.Owner, was, now []rules.Rule)
	BeginCensus() (datapath.FlowCounts, error)
	Places() *xdp.Places
	// Cores are those that flows may be steered to, sorted.
	Cores() []int
	Trials() *trial.Trials
	// Meanwhile is to be called while it waits for the kernel.
	Meanwhile()

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
	LoadPriority() (Programs, error)
	// StrayedLanes are the cores whose lanes run elsewhere, EndLanes ends some.
	StrayedLanes() ([]int, error)
	EndLanes(which func(core int) bool) error
}

// OnNode is the kernel of the node.
func OnNode(dp *datapath.Datapath) Kernel { return kernel{dp} }

type kernel struct{ *datapath.Datapath }

func (k kernel) LoadPriority() (Programs, error) { return k.Datapath.LoadPriority() }

// Programs is what it needs of datapath.Priority.
type Programs interface {
	SetRules(*rules.Table) error
	RuleFrames() ([]uint64, error)
	SetTuning(datapath.PriorityTuning) error
	Counters() (datapath.PriorityCounters, error)
	SparseFlows() ([]datapath.SparseFlow, error)

	AttachXDP(on datapath.Device, two bool) (*datapath.PriorityHook, error)
	LoadShortcuts() (*datapath.Shortcuts, error)

	StartLanes(cores []int, two bool, eager datapath.LaneSched) error
	BesideRealtime(cores []int, eager datapath.LaneSched) error
	HurryLanes(cores []int, eager datapath.LaneSched) error
	CalmLanes(cores []int) error
	// Demoted is the number of cores that send bulk to their lanes, or have some there.
	Demoted() (int, error)
	Close() error
}

// Priority is the mechanism.
type Priority struct {
	mechanism.Base
	host   Host
	dp     Kernel
	opts   Options
	added  []rules.Rule // at run time
	since  time.Time
	placed *placed // nil: nothing is
	err    error   // why it is not, though it is asked for
	retry  time.Time
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

// Configure takes over new options. An error changes nothing in the end: what was taken off for them is put back.
func (p *Priority) Configure(ctx context.Context, opts Options) error {
	if _, err := compile(p.added, opts.Rules); err != nil {
		return err
	}
	was := p.opts
	opts.Tier, opts.NoGuard = was.Tier, was.NoGuard
	configured := opts.Rules
	opts.Rules = was.Rules
	p.opts = opts
	var err error
	if was.NoThreads != opts.NoThreads || was.Fair != opts.Fair || was.Sync != opts.Sync {
		_, err = p.Stop(ctx)
	}
	if err == nil {
		err = p.useRules(ctx, p.added, configured)
	}
	if err != nil {
		p.opts, p.err = was, err
	}
	return err
}

// asked tells whether priority is to act without a trial.
func (p *Priority) asked() bool { return p.opts.prioritises(len(p.added) + len(p.opts.Rules)) }

// putBack puts priority in place where it is asked for and is not: a configuration took it off, and was refused.
func (p *Priority) putBack(ctx context.Context, now time.Time) {
	if p.placed != nil || !p.asked() || now.Before(p.retry) {
		return
	}
	table, err := rules.Compile(p.rules())
	if err == nil {
		err = p.start(ctx, table)
	}
	if p.err = err; err != nil {
		p.retry = time.Now().Add(mechanism.RetryAfter)
		p.host.Log().Error("priority could not be put in place", "mechanism", name, "reason", err, "again_in", mechanism.RetryAfter)
	}
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
func (p *Priority) Step(ctx context.Context, now time.Time) error {
	p.putBack(ctx, now)
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
	p.keepUp(ctx)
	if p.demand.on && !p.OnNIC() {
		return p.leaveDemand(ctx)
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

// Close is mechanism.Mechanism's.
func (p *Priority) Close() error { return mechanism.EndCensus(&p.demand.census) }

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

// Drops is mechanism.Mechanism's: what full bulk lanes lost.
func (p *Priority) Drops(datapath.Counters) (uint64, error) {
	c, err := p.Counters()
	return c.Refused, err
}

// Fill is mechanism.Mechanism's.
func (p *Priority) Fill(st *control.Status, _ names.Names) error {
	frames, err := p.ruleFrames()
	if err != nil {
		return err
	}
	for i, r := range p.rules() {
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
		if p.err != nil && p.asked() {
			m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, p.err)
			return m
		}
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
	if n := len(p.added) + len(p.opts.Rules); n > 0 {
		by = append(by, printable.Plural(n, "rule"))
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
