// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"slices"
	"time"
)

// Settled is how long no packet may have been steered before lanes count as
// left; what they held is then proved to be handled by their progress.
const Settled = 20 * time.Millisecond

// lostAfter is when what has not come out of a resequencer is lost: OL_JOINED_NS of bpf/microflow.h.
const lostAfter = 200 * time.Millisecond

// Draining watches flows leave lanes, for the daemon and for the guardian. It takes as many looks as it takes, and
// begins anew when packets are sent to lanes again.
type Draining struct {
	sent   uint64
	since  time.Time // when that was first so
	round  *Round
	passed bool
}

// Holding is where packets of flows may be: a Datapath.
type Holding interface {
	Progress
	Merged(lost bool) (bool, error)
}

// Still tells whether nothing has been sent to lanes for Settled. sent is what was sent so far.
func (g *Draining) Still(now time.Time, sent uint64) bool {
	if sent != g.sent || g.since.IsZero() {
		*g = Draining{sent: sent, since: now}
	}
	return now.Sub(g.since) >= Settled
}

// Handled tells whether nothing of the flows is left anywhere, while nothing is sent to lanes. Packets go from lanes to
// backlogs and from there to resequencers: it looks in this order, so that none is where it has looked already.
// rings: lanes may be those of cpumaps.
func (g *Draining) Handled(now time.Time, of Holding, rings bool, offline func(core int) bool) (bool, error) {
	if g.round == nil {
		// A thread that does not get its core may hold frames of flows that pause.
		cores, err := of.Cores()
		if err != nil || rings && slices.ContainsFunc(cores, func(c Core) bool { return c.LaneQueue > 0 }) {
			return false, err
		}
		g.round, err = NewRound(of)
		return false, err
	}
	if !g.passed {
		open, err := g.round.Look(offline)
		if g.passed = err == nil && open == 0; !g.passed {
			return false, err
		}
	}
	return of.Merged(now.Sub(g.since) >= lostAfter)
}

// Merged tells whether nothing of a split flow is left at a resequencer or behind it, also of one that sends nothing
// now: what it sends next goes to its pod by another way. lost: what did not come out of there is lost.
func (d *Datapath) Merged(lost bool) (bool, error) {
	if d.policy.MergeIfindex == 0 {
		return true, nil
	}
	for i := range d.stages.OlMergings.MaxEntries() {
		var g stagesOlMerging
		if err := d.stages.OlMergings.Lookup(i, &g); err != nil {
			return false, fmt.Errorf("read merging %d: %w", i, err)
		}
		// A whole flow has seen to it itself, and what it lost stays in its counts.
		whole := g.Generation%2 == 0
		if g.Key != 0 && (g.Held > 0 || g.Left+g.Refused != g.Entered && !whole && !lost) {
			return false, nil
		}
	}
	return true, nil
}
