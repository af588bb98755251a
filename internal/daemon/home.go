// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// homing watches flows leave the lanes: those of the nic and the tunnel stage,
// then those of the pod stage; then what lanes held is handled. It takes as many
// looks as it takes; it begins anew when flows are sent out again.
type homing struct {
	step    homingStep
	steered uint64 // packets sent to the lanes so far
	since   time.Time
	round   *round
}

type homingStep int

const (
	fromTunnel homingStep = iota
	fromPod
	handled
	home
)

// settled is how long no packet may have been steered before lanes count as
// left; what they held is then proved to be handled by their progress.
const settled = 20 * time.Millisecond

func (p *pipeline) lookHome(now time.Time) error {
	h := &p.home
	switch h.step {
	case fromTunnel, fromPod:
		c, err := p.dp.Counters()
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
		if now.Sub(h.since) < settled {
			return nil
		}
		if h.step == fromPod {
			*h = homing{step: handled}
			return nil
		}
		for cpu := range p.cores {
			if err := p.dp.Steer(cpu); err != nil {
				return err
			}
		}
		*h = homing{step: fromPod}
	case handled:
		var err error
		if h.round == nil {
			// A thread that does not get its core may hold frames of flows
			// that pause. Priority's have not come as far as the pipeline.
			cores, err := p.dp.Cores()
			held := func(c datapath.Core) bool { return len(p.layout.NIC) > 0 && c.LaneQueue > 0 }
			if err != nil || slices.ContainsFunc(cores, held) {
				return err
			}
			if empty, err := p.merge.emptied(); err != nil || !empty {
				return err
			}
			h.round, err = p.newRound()
			return err
		}
		open, err := h.round.look(p.dp, p.offline)
		if err == nil && open == 0 {
			*h = homing{step: home}
		}
		return err
	case home:
	}
	return nil
}

// waitHome waits until no flow is on a lane, or the deadline. On overload flows
// may not drain; then it says so, and goes on the next time.
func (p *pipeline) waitHome(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p.meanwhile()
		if err := p.lookHome(time.Now()); err != nil {
			return err
		}
		if p.home.step == home {
			return nil
		}
		select {
		case <-ctx.Done():
			return errFlowsOut
		case <-tick.C:
		}
	}
}

// passed waits until every core has handled what was in its hands when it was
// called.
func (p *pipeline) passed(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := p.newRound()
	if err != nil {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		p.meanwhile()
		open, err := r.look(p.dp, p.offline)
		if err != nil || open == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d cores have not passed a full round: %w", open, errFlowsOut)
		case <-tick.C:
		}
	}
}

// round watches every core handle what was in its hands at the start.
type round struct {
	start uint64
	begin []datapath.Core
	last  []datapath.Core
	quiet []int // looks since the core's last poll
}

func (p *pipeline) newRound() (*round, error) {
	begin, err := p.dp.Cores()
	if err != nil {
		return nil, err
	}
	start, err := datapath.Now()
	return &round{start: start, begin: begin, last: begin, quiet: make([]int, len(begin))}, err
}

// look returns how many cores are not through.
func (r *round) look(dp *datapath.Datapath, offline func(core int) bool) (open int, err error) {
	cores, err := dp.Cores()
	if err != nil {
		return 0, err
	}
	for i, c := range cores {
		if r.quiet[i]++; c.Polls != r.last[i].Polls {
			r.quiet[i] = 0
		}
		// What an offline core had has been handed to others, and its numbers stand still.
		if !offline(i) && !r.passed(i, c) {
			open++
		}
	}
	r.last = cores
	return open, nil
}

const (
	// quietLooks is how many looks in a row must find a core's polls unchanged
	// before it counts as idle: work that is pending begins well within that.
	quietLooks = 4
	// roundPolls is within how many polls everything that was scheduled on a
	// core at some time has been polled. A softirq takes turns; each stage of
	// the path, on each of some devices, is one turn, and may be the last of
	// this turn and then the last of the next.
	roundPolls = 16
)

func (r *round) passed(i int, now datapath.Core) bool {
	if r.quiet[i] >= quietLooks {
		return !now.Full && now.Queue == 0
	}
	unused := now.BacklogPoll == r.begin[i].BacklogPoll && now.Queue == 0
	return now.Polls-r.begin[i].Polls >= roundPolls && (now.Safe > r.start || unused)
}

// errFlowsOut says that flows are still on lanes, so that masks cannot change
// without packets being overtaken.
var errFlowsOut = errors.New("flows are still on lanes")
