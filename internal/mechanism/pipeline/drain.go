// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// draining watches flows leave the lanes: those of the nic and the tunnel stage,
// then those of the pod stage; then what lanes held is handled. It takes as many
// looks as it takes; it begins anew when flows are sent out again.
type draining struct {
	step    drainStep
	steered uint64 // packets sent to the lanes so far
	since   time.Time
	round   *datapath.Round
}

type drainStep int

const (
	fromTunnel drainStep = iota
	fromPod
	handled
	drained
)

func (a *actuator) lookDrained(now time.Time) error {
	h := &a.draining
	switch h.step {
	case fromTunnel, fromPod:
		c, err := a.dp.Counters()
		if err != nil {
			return err
		}
		steered := c.Steered + c.XDPLane
		if h.step == fromPod {
			steered = c.PodSteered
		}
		if steered != h.steered || h.since.IsZero() {
			h.steered, h.since = steered, now
		}
		if now.Sub(h.since) < datapath.Settled {
			return nil
		}
		if h.step == fromPod {
			*h = draining{step: handled}
			return nil
		}
		for cpu := range a.dp.CPUs() {
			if err := a.dp.Steer(cpu); err != nil {
				return err
			}
		}
		*h = draining{step: fromPod}
	case handled:
		var err error
		if h.round == nil {
			// A thread that does not get its core may hold frames of flows
			// that pause. Priority's have not come as far as the pipeline.
			cores, err := a.dp.Cores()
			held := func(c datapath.Core) bool { return len(a.layout.NIC) > 0 && c.LaneQueue > 0 }
			if err != nil || slices.ContainsFunc(cores, held) {
				return err
			}
			if n, err := a.merge.waiting(); err != nil || n > 0 {
				return err
			}
			h.round, err = datapath.NewRound(a.dp)
			return err
		}
		open, err := h.round.Look(a.host.Offline)
		if err == nil && open == 0 {
			*h = draining{step: drained}
		}
		return err
	case drained:
	}
	return nil
}

// waitDrained waits until no flow is on a lane, or the deadline. On overload flows
// may not drain; then it says so, and goes on the next time.
func (a *actuator) waitDrained(ctx context.Context) error {
	return datapath.Await(ctx, func() (bool, error) {
		a.host.Meanwhile()
		err := a.lookDrained(time.Now())
		return a.draining.step == drained, err
	})
}
