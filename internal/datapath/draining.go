// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Settled is how long no packet may have been steered before lanes count as
// left; what they held is then proved to be handled by their progress.
const Settled = 20 * time.Millisecond

const (
	// lostAfter is when what has not come out of a resequencer is lost, from when its flow came last.
	lostAfter = time.Duration(stagesOlLimitOL_JOINED_MS) * time.Millisecond
	// mergingGone is after which pause a place at the resequencers is another flow's.
	mergingGone = time.Duration(stagesOlLimitOL_MERGING_GONE_MS) * time.Millisecond
)

// Draining watches flows leave lanes, for the daemon and for the guardian. It takes as many looks as it takes, and
// begins anew when packets are sent to lanes again.
type Draining struct {
	sent   uint64
	since  time.Time // when that was first so
	rounds int       // that cores have passed
	round  *Round    // under way
	waits  string    // what it waits for
}

// Holding is where packets of flows may be: a Datapath.
type Holding interface {
	Progress
	Merges() bool
	Resequenced() (entered uint64, held bool, err error)
}

// Still tells whether nothing has been sent to lanes for Settled. sent is what was sent so far.
func (g *Draining) Still(now time.Time, sent uint64) bool {
	if sent != g.sent || g.since.IsZero() {
		*g = Draining{sent: sent, since: now, waits: "packets are sent to lanes"}
	}
	return now.Sub(g.since) >= Settled
}

// Handled tells whether nothing of the flows is left anywhere, while nothing is sent to lanes. Packets go from lanes
// to cores, from there to resequencers, and from these to cores again: it looks in this order, so that none is where
// it has looked already. rings: lanes may be those of cpumaps.
func (g *Draining) Handled(of Holding, rings bool, offline func(core int) bool) (bool, error) {
	if g.passed(of) {
		return true, nil
	}
	if g.round == nil {
		held, err := g.held(of, rings)
		if err == nil && !held {
			g.round, err = NewRound(of)
		}
		return false, err
	}
	open, err := g.round.Look(offline)
	if err != nil || open > 0 {
		g.waits = fmt.Sprintf("%d cores have not passed a full round", open)
		return false, err
	}
	g.round = nil
	g.rounds++
	return g.passed(of), nil
}

// passed tells whether there have been the rounds that it takes: where there are no resequencers, one.
func (g *Draining) passed(of Holding) bool { return g.rounds > 1 || g.rounds > 0 && !of.Merges() }

// held tells whether what hands packets to cores has some: before the first round lanes, before the second
// resequencers.
func (g *Draining) held(of Holding, rings bool) (held bool, err error) {
	if g.rounds > 0 {
		g.waits = "a resequencer holds packets"
		_, held, err = of.Resequenced()
		return held, err
	}
	// A thread that does not get its core may hold frames of flows that pause.
	g.waits = "a lane holds packets"
	cores, err := of.Cores()
	return rings && slices.ContainsFunc(cores, func(c Core) bool { return c.LaneQueue > 0 }), err
}

// Reason adds to ErrFlowsOut what it waited for last.
func (g *Draining) Reason(err error) error {
	if errors.Is(err, ErrFlowsOut) && g.waits != "" {
		return fmt.Errorf("%w: %s", err, g.waits)
	}
	return err
}

// Merges tells whether flows go through resequencers.
func (d *Datapath) Merges() bool { return d.policy.MergeIfindex != 0 }

// Resequenced is how many packets went to resequencers, of the flows that have a place there, and whether one holds
// some. The counts are modulo 2^32 for each flow. A flow that another core polls now, so that nothing ends its way
// through the resequencer, is not counted.
func (d *Datapath) Resequenced() (entered uint64, held bool, err error) {
	now, err := Now()
	if err != nil || !d.Merges() {
		return 0, false, err
	}
	for i := range d.stages.OlMergings.MaxEntries() {
		var g stagesOlMerging
		if err := d.stages.OlMergings.Lookup(i, &g); err != nil {
			return 0, false, fmt.Errorf("read merging %d: %w", i, err)
		}
		ago := time.Duration(now - g.Seen)
		if g.Key == 0 {
			continue
		}
		if ago < mergingGone {
			entered += uint64(g.Entered)
		}
		// What does not wait for another packet any more may still have to be sent on. A whole flow has seen to that.
		split := g.Generation%2 == 1
		held = held || g.Held > 0 || split && g.Left+g.Refused != g.Entered && ago < lostAfter
	}
	return entered, held, nil
}

// PodSent is how many packets went to lanes of the pod stage. Behind resequencers it is what these count (Resequenced).
func (d *Datapath) PodSent(steered uint64) (uint64, error) {
	if !d.Merges() {
		return steered, nil
	}
	entered, _, err := d.Resequenced()
	return entered, err
}
