// SPDX-License-Identifier: Apache-2.0

package daemon

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
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/xdp"
)

// priority lets flows of the latency class overtake bulk. It is in place as long as
// there are rules: bulk makes way only while latency traffic is about.
type priority struct {
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

// Priority is how priority is configured, but for the rules.
type Priority struct {
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
func (d *Daemon) tuning() datapath.PriorityTuning {
	t := bulkTuning
	t.LatencyShare = 1 - d.opts.Priority.BulkShare
	if d.opts.Priority.Auto || d.demand.on {
		t.SparseFrames, t.SparseBytes = sparseFrames, sparseBytes
	}
	if d.demand.on && !d.demand.trial.On() {
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
	return !o.Priority.Off && o.Priority.No == nil && (rules > 0 || o.Priority.Auto)
}

// ErrTierXDP says that two mechanisms want the NIC's XDP hook.
var ErrTierXDP = errors.New("priority and the pipeline's tier xdp cannot be combined: set \"tier: tc\", or \"priority: {mode: off}\"")

// useRules puts lists of rules in force: those that were added at run time, then those
// of the configuration. An error changes nothing.
func (d *Daemon) useRules(ctx context.Context, added, configured []rules.Rule) error {
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
		d.demand.on = false // what it has put in place stays, for the rules
	}
	switch {
	case !d.opts.prioritises(len(list)) && (d.opts.Priority.Off || d.opts.Priority.No != nil || !d.demand.on):
		_, err = d.stopPriority(ctx)
	case d.prio == nil:
		err = d.startPriority(ctx, table)
	default:
		if err = d.keepRuleFrames(); err == nil {
			// A NIC that was left alone by itself may be asked for now.
			err = errors.Join(d.prio.dp.SetRules(table), d.prio.dp.SetTuning(d.tuning()), d.followPriority(ctx))
		}
	}
	if err == nil {
		d.host.Changes.Rules(slices.Concat(d.added, d.opts.Rules), list)
		d.added, d.opts.Rules = added, configured
	}
	return err
}

// ruleFrames counts the frames of each rule in force, by name.
func (d *Daemon) ruleFrames() (map[string]uint64, error) {
	sum := map[string]uint64{}
	if d.prio == nil {
		return sum, nil
	}
	now, err := d.prio.dp.RuleFrames()
	if err != nil {
		return nil, err
	}
	for i, r := range slices.Concat(d.added, d.opts.Rules) {
		if i < len(now) {
			sum[r.Name] = d.prio.frames[r.Name] + now[i]
		}
	}
	return sum, nil
}

// maxSparse bounds what status tells of flows.
const maxSparse = 50

// sparseFlows tells which flows are latency by themselves, and why.
func (d *Daemon) sparseFlows() (list []control.SparseFlow, err error) {
	if d.prio == nil || !d.opts.Priority.Auto && !d.demand.on {
		return nil, nil
	}
	flows, err := d.prio.dp.SparseFlows()
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
func (d *Daemon) keepRuleFrames() (err error) {
	d.prio.frames, err = d.ruleFrames()
	return err
}

// pollPriority checks what is in place.
func (d *Daemon) pollPriority(now time.Time) error {
	if d.prio == nil || now.Sub(d.prio.checked) < mechanism.CheckEvery {
		return nil
	}
	d.prio.checked = now
	c, err := d.priorityCounters()
	if err != nil {
		return err
	}
	// Thousands of rules take as many system calls: only where there is something to say.
	if c.LatencyExcess > d.prio.budget.excess {
		frames, err := d.ruleFrames()
		if err != nil {
			return err
		}
		for _, r := range slices.Concat(d.added, d.opts.Rules) {
			if r.Class != rules.Latency {
				delete(frames, r.Name)
			}
		}
		d.prio.budget.exceeded(now, c.LatencyExcess, frames)
	}
	if err := d.followSync(now); err != nil {
		d.log.Warn("some redirect paths could not be followed", "reason", err)
	}
	return d.renewLanes()
}

// sawPolls remembers which cores poll NICs. Threads do where they are bound, whether
// anything comes or not.
func (p *priority) sawPolls(in governor.Input, owned []apply.Entry) {
	for cpu, c := range in.Cores {
		if c.Rate > 0 {
			p.polled[cpu] = in.Now
		}
	}
	for _, th := range boundThreads(owned) {
		p.polled[th.sched.Cores[0]] = in.Now
	}
	maps.DeleteFunc(p.polled, func(_ int, last time.Time) bool { return in.Now.Sub(last) >= polledFor })
}

// pollers are the cores on which latency traffic may be: all that have polled a NIC lately.
func (p *priority) pollers() []int { return slices.Sorted(maps.Keys(p.polled)) }

// inTheWay tells that bulk is sent to a core on which latency traffic may be.
func (p *priority) inTheWay(l governor.Layout) bool {
	return p.onNIC() && slices.ContainsFunc(l.Cores(), func(c int) bool { return !p.polled[c].IsZero() })
}

// startPriority puts priority in place.
func (d *Daemon) startPriority(ctx context.Context, table *rules.Table) error {
	if d.opts.Tier == governor.XDP {
		return ErrTierXDP
	}
	if d.opts.NoGuard != nil {
		return fmt.Errorf("priority cannot keep flows in order here: %w", d.opts.NoGuard)
	}
	if err := d.pipe.recall(ctx, farewell); err != nil {
		return fmt.Errorf("take the pipeline off, which comes back once it is known where latency traffic is: %w", err)
	}
	if _, err := d.expr.Stop(ctx); err != nil {
		return err
	}
	// Micro-flows do not come back beside priority.
	if err := d.places.ReleaseAll(xdp.Pipeline, xdp.Microflows, xdp.Express); err != nil {
		return err
	}
	defer d.host.Begins("priority")()
	p := &priority{attached: map[node.DevKey]*datapath.PriorityHook{}, since: time.Now(), polled: map[int]time.Time{}, frames: map[string]uint64{}, budget: budget{excess: d.prioPast.LatencyExcess},
		realtime: realtime{on: !d.opts.Priority.Fair}}
	var err error
	if p.dp, err = d.dp.LoadPriority(); err != nil {
		return err
	}
	d.prio = p
	// Bulk stays where it is until the NICs' threads are where they will be.
	err = errors.Join(p.dp.SetTuning(datapath.PriorityTuning{}), p.dp.SetRules(table), p.dp.StartLanes(d.cores, false, eager))
	if err == nil && d.opts.Priority.Sync {
		err = p.startSync(d.host.Watchers())
	}
	if err == nil {
		err = d.followPriority(ctx)
	}
	if err == nil {
		err = p.dp.SetTuning(d.tuning())
	}
	if err != nil {
		_, undo := d.stopPriority(context.Background())
		return errors.Join(err, undo)
	}
	return nil
}

// onNIC tells that priority's program is on an underlay.
func (p *priority) onNIC() bool { return p != nil && len(p.attached) > 0 }

// noThreads says why no thread polls a NIC for priority.
func (d *Daemon) noThreads(u node.Underlay) string {
	if d.opts.Priority.NoThreads {
		return "threads are switched off by configuration"
	}
	return fmt.Sprintf("others receive for %s", u.Name)
}

// makeWayFor has micro-flows and the pipeline's lanes taken off before priority's program comes to a NIC
// that has not taken it so far: they did not stand back while none did.
func (d *Daemon) makeWayFor(ctx context.Context, u node.Underlay) error {
	if d.prio.onNIC() || d.places.Bars(u, d.priorityWants()) != "" {
		return nil
	}
	err := d.pipe.recall(ctx, farewell)
	if err == nil {
		_, err = d.expr.Stop(ctx)
	}
	return errors.Join(err, d.places.ReleaseAll(xdp.Pipeline, xdp.Microflows, xdp.Express))
}

// hook attaches the hook to an underlay.
func (d *Daemon) hookPriority(u node.Underlay, two bool) (h *datapath.PriorityHook, err error) {
	err = d.places.Take(u, d.priorityWants(), func() (io.Closer, error) {
		return d.host.Attach(u.Dev, func(at datapath.Device) (io.Closer, error) {
			h, err = d.prio.dp.AttachXDP(at, two)
			return h, err
		})
	})
	return h, err
}

// followPriority attaches the hook to the underlays that lack it.
func (d *Daemon) followPriority(ctx context.Context) error {
	if d.prio == nil {
		return nil
	}
	p := d.prio
	want := map[node.DevKey]bool{}
	var errs []error
	p.skipped = nil
	for _, u := range d.host.Snapshot().Underlays {
		want[u.Key()] = true
		if p.attached[u.Key()] != nil {
			continue
		}
		if err := d.makeWayFor(ctx, u); err != nil {
			return err
		}
		two := d.opts.Priority.NoThreads || u.Master()
		if two {
			p.two = true
			if err := p.dp.StartLanes(d.cores, true, eager); err != nil {
				return err
			}
		}
		l, err := d.hookPriority(u, two)
		var left *xdp.Left
		switch {
		case err == nil && two:
			p.attached[u.Key()] = l
			d.log.Info("the NIC is polled in softirq: latency traffic has a lane of its own", "device", u.Dev, "reason", d.noThreads(u))
		case err == nil:
			p.attached[u.Key()] = l
			err := d.threadNAPI(u)
			if err == nil {
				continue
			}
			d.log.Info("the NIC is polled in softirq: latency traffic has a lane of its own", "device", u.Dev, "reason", err)
			p.two = true
			if err := errors.Join(p.dp.StartLanes(d.cores, true, eager), l.TwoLanes()); err != nil {
				errs = append(errs, err)
			}
		case errors.Is(err, node.ErrGone):
		case errors.As(err, &left):
			p.skipped = append(p.skipped, plan.Skip{What: u.Dev.String(), Reason: left.Reason})
		default:
			errs = append(errs, err)
		}
	}
	for key := range p.attached {
		if !want[key] {
			errs = append(errs, d.places.Release(key, xdp.Priority))
			delete(p.attached, key)
		}
	}
	return errors.Join(append(errs, d.besideRealtime(), d.followSync(time.Now()))...)
}

// renewLanes makes new bulk lanes on cores that were offline, or were about to be: the
// threads of the old ones may run elsewhere, and the hook knows.
func (d *Daemon) renewLanes() error {
	if d.prio == nil {
		return nil
	}
	strayed, err := d.dp.StrayedLanes()
	if err != nil {
		return err
	}
	back := func(core int) bool { return slices.Contains(strayed, core) && slices.Contains(d.cores, core) }
	if !slices.ContainsFunc(strayed, back) {
		return nil
	}
	if err := d.dp.EndLanes(back); err != nil {
		return err
	}
	for _, core := range strayed {
		d.lost[core] = true
	}
	err = d.prio.dp.StartLanes(d.cores, d.prio.two, eager)
	d.placeThreads()
	return err
}

// stopPriority takes it off, once bulk is on the stock path again.
func (d *Daemon) stopPriority(ctx context.Context) (rep apply.Report, err error) {
	defer func() { d.demand.on = false }()
	if d.prio == nil {
		return rep, nil
	}
	// Its hook goes.
	_, err = d.expr.Stop(ctx)
	err = errors.Join(err, d.drainBulk(ctx))
	err = errors.Join(err, d.prio.dp.BesideRealtime(nil, eager))
	// Settings first, as the guardian does: many drivers reset the NIC when a program goes, and since Linux 6.17
	// threaded = 0 waits, with the device's lock, for a NAPI that a reset has disabled, and the reset for that lock
	// (napi_stop_kthread, net/core/dev.c; seen to hang on igb).
	rep, e := d.host.Restore(plan.ByPriority, nil)
	err = errors.Join(err, e, d.places.ReleaseAll(xdp.Priority))
	clear(d.prio.attached)
	past, e := d.priorityCounters()
	if err = errors.Join(err, e); e == nil {
		d.prioPast = past
	}
	err = errors.Join(err, d.prio.close())
	d.prio = nil
	return rep, err
}

// priorityCounters counts since the daemon started.
func (d *Daemon) priorityCounters() (datapath.PriorityCounters, error) {
	if d.prio == nil {
		return d.prioPast, nil
	}
	now, err := d.prio.dp.Counters()
	return d.prioPast.Add(now), err
}

// waitPromoted waits until no core sends bulk to its lane, and the lanes are empty.
func (d *Daemon) waitPromoted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	var demoted int
	err := datapath.Await(ctx, func() (bool, error) {
		n, err := d.prio.dp.Demoted()
		demoted = n
		return n == 0, err
	})
	if errors.Is(err, datapath.ErrFlowsOut) {
		return fmt.Errorf("bulk is in the lanes of %d cores: %w", demoted, err)
	}
	return err
}

func (p *priority) close() error {
	var errs []error
	if p.sync != nil {
		errs = append(errs, p.sync.close())
	}
	return errors.Join(append(errs, p.dp.Close())...)
}

// AddRule implements control.Handler.
func (d *Daemon) AddRule(ctx context.Context, r rules.Rule) error {
	return d.changeRules(ctx, func() ([]rules.Rule, error) { return append(slices.Clone(d.added), r), nil })
}

// DelRule implements control.Handler.
func (d *Daemon) DelRule(ctx context.Context, name string) error {
	return d.changeRules(ctx, func() ([]rules.Rule, error) {
		named := func(r rules.Rule) bool { return r.Name == name }
		if slices.ContainsFunc(d.added, named) {
			return slices.DeleteFunc(slices.Clone(d.added), named), nil
		}
		if slices.ContainsFunc(d.opts.Rules, named) {
			return nil, fmt.Errorf("rule %q is the configuration's: take it out of the file, and send the daemon SIGHUP", name)
		}
		return nil, fmt.Errorf("there is no rule %q", name)
	})
}

func (d *Daemon) changeRules(ctx context.Context, change func() ([]rules.Rule, error)) error {
	var err error
	e := d.do(ctx, func() {
		var added []rules.Rule
		if added, err = change(); err == nil {
			err = d.useRules(ctx, added, d.opts.Rules)
		}
	})
	return errors.Join(e, err)
}

// priorityMechanism is what priority does.
func (d *Daemon) priorityMechanism() control.Mechanism {
	m := control.Mechanism{Name: "priority", State: control.Off, Reason: "there are no rules", Since: d.since}
	switch p := d.opts.Priority; {
	case p.Off:
		m.Reason = "switched off by configuration"
	case p.No != nil && (p.Auto || len(d.added)+len(d.opts.Rules) > 0):
		m.State, m.Reason = control.Unsupported, p.No.Error()
	}
	if d.prio == nil {
		if why := d.tooDear(); why != "" && !d.opts.Priority.Off && d.opts.Priority.OnDemand && d.opts.Priority.No == nil && len(d.added)+len(d.opts.Rules) == 0 {
			m.State, m.Reason = control.Standby, why
			return m
		}
		if why := d.demand.gov.Last().Reason; why != "" && d.noDemand() == "" {
			m.State, m.Reason = control.Standby, why
		}
		return m
	}
	var by []string
	switch n := len(d.added) + len(d.opts.Rules); n {
	case 0:
	case 1:
		by = append(by, "1 rule")
	default:
		by = append(by, fmt.Sprintf("%d rules", n))
	}
	if d.opts.Priority.Auto || d.demand.on {
		by = append(by, "small, sparse flows")
	}
	m.State, m.Since = control.Active, d.prio.since
	m.Reason = strings.Join(by, " and ") + "; bulk makes way while latency traffic is about"
	if d.prio.sync != nil {
		m.Reason += "; it goes " + d.prio.sync.reason()
	}
	if why := d.prio.realtime.why; why != "" {
		m.Reason += "; " + why
	}
	if why := d.demand.trial.Reason(); d.demand.on && why != "" {
		m.Reason += "; " + why
	}
	if over := d.prio.budget.reason(time.Now()); over != "" {
		m.Reason = over
	}
	if len(d.prio.attached) == 0 {
		m.State, m.Reason = control.Standby, d.noPriorityNIC()
	}
	return m
}
