// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/xdp"
)

// placed is what is in place as long as there are rules, or a demand.
type placed struct {
	dp       Programs
	attached map[node.DevKey]bool
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
		for _, r := range p.rules() {
			if r.Class != rules.Latency {
				delete(frames, r.Name)
			}
		}
		p.placed.budget.exceeded(now, c.LatencyExcess, frames)
	}
	if err := p.followSync(); err != nil {
		p.host.Log().Warn("some redirect paths could not be followed", "reason", err)
	}
	return p.renewLanes()
}

// sawPolls remembers which cores poll NICs. Threads do where they are bound, whether
// anything comes or not.
func (a *placed) sawPolls(in governor.Input, journal []apply.Entry) {
	for cpu, c := range in.Cores {
		if c.Rate > 0 {
			a.polled[cpu] = in.Now
		}
	}
	for _, th := range boundThreads(journal) {
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
	in := &placed{attached: map[node.DevKey]bool{}, since: time.Now(), polled: map[int]time.Time{}, frames: map[string]uint64{}, budget: budget{excess: p.past.LatencyExcess},
		realtime: realtime{on: !p.opts.Fair}}
	var err error
	if in.dp, err = p.dp.LoadPriority(); err != nil {
		return err
	}
	p.placed = in
	// Bulk stays where it is until the NICs' threads are where they will be, and latency runs into no debt meanwhile.
	err = errors.Join(in.dp.SetTuning(datapath.PriorityTuning{LatencyShare: 1}), in.dp.SetRules(table), in.dp.StartLanes(p.host.Cores(), false, eager))
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
		_, undo := p.Stop(context.Background())
		return errors.Join(err, undo)
	}
	return nil
}

// onNIC tells that priority's program is on an underlay.
func (a *placed) onNIC() bool { return a != nil && len(a.attached) > 0 }

// on tells that it is on a device.
func (a *placed) on(dev node.Dev) bool { return a.attached[dev.Key()] }

// noThreads says why no thread polls a NIC for priority.
func (p *Priority) noThreads(u node.Underlay, made plan.Plan) string {
	if p.opts.NoThreads {
		return "threads are switched off by configuration"
	}
	for _, s := range made.Skipped {
		if s.What == plan.Threaded(plan.Target(u.Dev)).String() {
			return s.Reason
		}
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
	in := p.placed
	want := map[node.DevKey]bool{}
	var errs []error
	in.skipped = nil
	// It reads each NIC's threads.
	planned := sync.OnceValue(p.plan)
	for _, u := range p.host.Snapshot().Underlays {
		want[u.Key()] = true
		if in.on(u.Dev) {
			if p.host.Places().Why(u, p.wants()) == "" {
				continue
			}
			errs = append(errs, p.leave(ctx, u.Key()))
		}
		if err := p.makeWayFor(ctx, u); err != nil {
			return err
		}
		two := p.host.Places().Why(u, p.wants()) == "" && slices.ContainsFunc(planned().Attach, func(at plan.Attachment) bool {
			return at.Target == plan.Target(u.Dev) && at.Program == plan.TwoLanesProgram
		})
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
			in.attached[u.Key()] = true
			p.host.Log().Info("the NIC is polled in softirq: latency traffic has a lane of its own", "device", u.Dev, "reason", p.noThreads(u, planned()))
		case err == nil:
			in.attached[u.Key()] = true
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
			errs = append(errs, p.leave(ctx, key))
		}
	}
	return errors.Join(append(errs, p.besideRealtime(), p.followSync())...)
}

// keepUp has what is in place fit the options and the underlays, as far as it can: the next scan tries the rest again.
func (p *Priority) keepUp(ctx context.Context) {
	if p.placed == nil {
		return
	}
	if err := errors.Join(p.placed.dp.SetTuning(p.tuning()), p.follow(ctx)); err != nil {
		p.host.Log().Warn("some underlays could not be followed", "reason", err)
	}
}

// leave takes priority off a NIC that has no place for its program any more, is no underlay or has gone, in the order
// of Stop. The journal may have another name of it by now.
func (p *Priority) leave(ctx context.Context, nic node.DevKey) error {
	err := errors.Join(p.host.StopExpress(ctx), p.drainBulk(ctx))
	_, e := p.host.Restore(plan.ByPriority, func(s plan.Setting) bool { return node.Dev(s.Target).Key() == nic })
	err = errors.Join(err, e, p.host.Places().Release(nic, xdp.Priority))
	delete(p.placed.attached, nic)
	return errors.Join(err, p.placed.dp.SetTuning(p.tuning()))
}

// renewLanes makes new bulk lanes on cores that were offline, or were about to be: the
// threads of the old ones may run elsewhere, and the hook knows.
func (p *Priority) renewLanes() error {
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

// Stop is mechanism.Mechanism's: it takes it off, once bulk is on the stock path again.
func (p *Priority) Stop(ctx context.Context) (rep apply.Report, err error) {
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
		p.host.Meanwhile()
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
