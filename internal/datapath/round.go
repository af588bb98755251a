// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrFlowsOut says that flows are still on lanes, so that masks cannot change
// without packets being overtaken.
var ErrFlowsOut = errors.New("flows are still on lanes")

// Await looks every 5 ms until it is so. ErrFlowsOut: it was not before ctx ended.
func Await(ctx context.Context, is func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := is(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ErrFlowsOut
		case <-tick.C:
		}
	}
}

// Passed waits until every core that is not offline has handled what was in its hands when it was called. meanwhile
// is called with each look.
func (d *Datapath) Passed(ctx context.Context, offline func(core int) bool, meanwhile func()) error {
	r, err := NewRound(d)
	if err != nil {
		return err
	}
	var open int
	err = Await(ctx, func() (bool, error) {
		meanwhile()
		open, err = r.Look(offline)
		return open == 0, err
	})
	if errors.Is(err, ErrFlowsOut) {
		return fmt.Errorf("%d cores have not passed a full round: %w", open, err)
	}
	return err
}

// Progress is how far cores are: a Datapath.
type Progress interface{ Cores() ([]Core, error) }

// Round watches every core handle what was in its hands at the start.
type Round struct {
	of    Progress
	start uint64
	begin []Core
	last  []Core
	quiet []int // looks since the core's last poll
}

// NewRound begins one.
func NewRound(of Progress) (*Round, error) {
	begin, err := of.Cores()
	if err != nil {
		return nil, err
	}
	start, err := Now()
	return &Round{of: of, start: start, begin: begin, last: begin, quiet: make([]int, len(begin))}, err
}

// Look returns how many cores are not through. What an offline core had has been handed to
// others, and its numbers stand still.
func (r *Round) Look(offline func(core int) bool) (open int, err error) {
	cores, err := r.of.Cores()
	if err != nil {
		return 0, err
	}
	for i, c := range cores {
		if r.quiet[i]++; c.Polls != r.last[i].Polls {
			r.quiet[i] = 0
		}
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

func (r *Round) passed(i int, now Core) bool {
	if r.quiet[i] >= quietLooks {
		return !now.Full && now.Queue == 0
	}
	unused := now.BacklogPoll == r.begin[i].BacklogPoll && now.Queue == 0
	return now.Polls-r.begin[i].Polls >= roundPolls && (now.Safe > r.start || unused)
}
