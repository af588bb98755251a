// SPDX-License-Identifier: Apache-2.0

package daemon

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
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// threadNAPI has a NIC polled by threads, each on a core of its own, as plan.Priority
// says.
func (d *Daemon) threadNAPI(u node.Underlay) error {
	err := d.seatThreads(u)
	if errors.Is(err, unix.EPERM) && d.prio.realtime.on {
		d.refuseRealtime(err)
		err = d.seatThreads(u)
	}
	return err
}

func (d *Daemon) seatThreads(u node.Underlay) error {
	t := plan.Target(u.Dev)
	// The threads come with the first step.
	for range 2 {
		made := d.planPriority()
		for _, s := range made.Skipped {
			if s.Target == t && s.Whole() {
				return errors.New(s.Reason)
			}
		}
		steps := slices.DeleteFunc(made.Steps, func(s plan.Step) bool { return s.Target != t })
		if err := d.host.CarryOutWhole(steps); err != nil {
			return err
		}
	}
	return nil
}

// planPriority plans by what is on the node now.
func (d *Daemon) planPriority() plan.PriorityPlan {
	attached := func(u node.Underlay) bool { return d.prio.attached[u.Key()] != nil }
	in := PriorityInput(d.scanner, d.host.Snapshot(), d.cores, d.host.Owned(plan.ByPriority), attached, d.places, d.priorityWants())
	in.NoThreads = d.opts.Priority.NoThreads
	in.Lost = slices.Collect(maps.Keys(d.lost))
	in.Realtime, in.Flooded = d.prio.realtime.on, d.prio.realtime.flooded
	return plan.Priority(in)
}

// placeThreads binds threads anew: cores have come or gone, or a NIC has other
// threads than before.
func (d *Daemon) placeThreads() {
	if d.prio != nil {
		if err := d.moveThreads(); err != nil {
			d.log.Warn("threads of NICs could not be bound to their cores: bulk may be overtaken when they move", "reason", err)
			return
		}
	}
	clear(d.lost)
}

// moveThreads moves threads while bulk is on the stock path: what a flow has left in
// the lane of one core could be overtaken on another.
func (d *Daemon) moveThreads() error {
	if err := d.host.ForgetEnded(); err != nil {
		return err
	}
	steps := slices.DeleteFunc(d.planPriority().Steps, func(s plan.Step) bool {
		return s.Kind != plan.ThreadSched || d.prio.attached[node.Dev(s.Target).Key()] == nil
	})
	if !slices.ContainsFunc(steps, moves) {
		return errors.Join(d.host.CarryOutWhole(steps), d.besideRealtime())
	}
	err := d.drainBulk(context.Background())
	if err == nil {
		err = d.host.CarryOutWhole(steps)
	}
	return errors.Join(err, d.besideRealtime(), d.prio.dp.SetTuning(d.tuning()))
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
func (d *Daemon) drainBulk(ctx context.Context) (err error) {
	for _, try := range []struct {
		room  int
		limit time.Duration
	}{{bulkTuning.Room, farewell / 10}, {0, farewell}} {
		t := d.tuning()
		t.Window, t.Room, t.LatencyShare = 0, try.room, 1
		if err := d.prio.dp.SetTuning(t); err != nil {
			return err
		}
		if try.room == 0 {
			// They run empty without, too, if no other task wants their cores.
			if err := d.prio.dp.HurryLanes(d.cores, eager); err != nil {
				d.log.Debug("lanes are not hurried", "reason", err)
			}
			defer func() { err = errors.Join(err, d.prio.dp.CalmLanes(d.cores)) }()
		}
		wait, cancel := context.WithTimeout(ctx, try.limit)
		err = d.waitPromoted(wait)
		cancel()
		if !errors.Is(err, datapath.ErrFlowsOut) {
			return err
		}
	}
	d.log.Warn("some packets may be overtaken once", "reason", err)
	return nil
}

// napiThreads reads which threads poll a device, and how they are scheduled.
func napiThreads(s *node.Scanner, dev node.Dev, queues int) (threads []plan.NAPIThread, err error) {
	ns, err := s.Namespace(dev.NetnsCookie)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var tids []int
	err = ns.Do(func() (err error) {
		tids, err = napi.Threads(dev.Ifindex, queues)
		return err
	})
	if err == nil && len(tids) == 0 {
		err = fmt.Errorf("no thread polls %s", dev)
	}
	if err != nil {
		return nil, err
	}
	for _, tid := range tids {
		var th plan.NAPIThread
		if th.ID, err = apply.IdentifyThread(tid); err != nil {
			return nil, err
		}
		if th.Sched, err = apply.SchedOf(th.ID); err != nil {
			return nil, err
		}
		threads = append(threads, th)
	}
	return threads, nil
}
