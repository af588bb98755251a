// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// threadNAPI has a NIC polled by threads, each on a core of its own, as plan.Priority
// says.
func (p *Priority) threadNAPI(u node.Underlay) error {
	err := p.seatThreads(u)
	if errors.Is(err, unix.EPERM) && p.placed.realtime.on {
		p.refuseRealtime(err)
		err = p.seatThreads(u)
	}
	return err
}

func (p *Priority) seatThreads(u node.Underlay) error {
	t := plan.Target(u.Dev)
	// The threads come with the program, or with the first step.
	for round := range 2 {
		made := p.plan()
		if round > 0 && slices.ContainsFunc(made.Future, func(f plan.FutureThreads) bool { return f.Target == t }) {
			return fmt.Errorf("no thread polls %s", u.Dev)
		}
		for _, s := range made.Skipped {
			if s.What == plan.Threaded(t).String() {
				return errors.New(s.Reason)
			}
		}
		steps := slices.DeleteFunc(made.Steps, func(s plan.Step) bool { return s.Target != t })
		if err := p.host.CarryOutWhole(steps); err != nil {
			return err
		}
	}
	return nil
}

// plan plans by what is on the node now.
func (p *Priority) plan() plan.Plan {
	attached := func(u node.Underlay) bool { return p.placed.on(u.Dev) }
	in := planInput(p.host.Scanner(), p.host.Snapshot(), p.host.Cores(), p.host.Owned(plan.ByPriority), attached, p.host.Places(), p.wants())
	in.NoThreads = p.opts.NoThreads
	in.Lost = slices.Collect(maps.Keys(p.lost))
	in.Realtime, in.Flooded = p.placed.realtime.on, p.placed.realtime.flooded
	return plan.Priority(in)
}

// placeThreads binds threads anew: cores have come or gone, or a NIC has other
// threads than before.
func (p *Priority) placeThreads() {
	if p.placed != nil {
		if err := p.moveThreads(); err != nil {
			p.host.Log().Warn("threads of NICs could not be bound to their cores: bulk may be overtaken when they move", "reason", err)
			return
		}
	}
	clear(p.lost)
}

// moveThreads moves threads while bulk is on the stock path: what a flow has left in
// the lane of one core could be overtaken on another.
func (p *Priority) moveThreads() error {
	if err := p.host.Forget(func(e apply.Entry) bool { return e.By == plan.ByPriority && e.Ended() }); err != nil {
		return err
	}
	steps := slices.DeleteFunc(p.plan().Steps, func(s plan.Step) bool {
		return s.Kind != plan.ThreadSched || !p.placed.on(node.Dev(s.Target))
	})
	if !slices.ContainsFunc(steps, moves) {
		return errors.Join(p.host.CarryOutWhole(steps), p.besideRealtime())
	}
	err := p.drainBulk(context.Background())
	if err == nil {
		err = p.host.CarryOutWhole(steps)
	}
	return errors.Join(err, p.besideRealtime(), p.placed.dp.SetTuning(p.tuning()))
}

// moves tells that a thread gets other cores, not only another policy.
func moves(s plan.Step) bool {
	was, err := plan.ParseSched(s.Was)
	want, e := plan.ParseSched(s.Want)
	return err != nil || e != nil || !slices.Equal(was.Cores, want.Cores)
}

// drainBulk sends bulk to the stock path again. A lane that gets more than its thread
// can do does not run empty as long as latency traffic goes on: after a while it is
// emptied by refusing what comes.
func (p *Priority) drainBulk(ctx context.Context) (err error) {
	for _, try := range []struct {
		room  int
		limit time.Duration
	}{{bulkTuning.Room, mechanism.DrainFor / 10}, {0, mechanism.DrainFor}} {
		t := p.tuning()
		t.Window, t.Room, t.LatencyShare = 0, try.room, 1
		if err := p.placed.dp.SetTuning(t); err != nil {
			return err
		}
		if try.room == 0 {
			// They run empty without, too, if no other task wants their cores.
			if err := p.placed.dp.HurryLanes(p.host.Cores(), eager); err != nil {
				p.host.Log().Debug("lanes are not hurried", "reason", err)
			}
			defer func() { err = errors.Join(err, p.placed.dp.CalmLanes(p.host.Cores())) }()
		}
		wait, cancel := context.WithTimeout(ctx, try.limit)
		err = p.waitPromoted(wait)
		cancel()
		if !errors.Is(err, datapath.ErrFlowsOut) {
			return err
		}
	}
	p.host.Log().Warn("some packets may be overtaken once", "reason", err)
	return nil
}
