// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Aggregation decides when datagrams of one flow that come in a row are to cross the overlay
// as one super-packet. Where several cores poll a NIC, a daemon that takes it back in mid-traffic may let a
// packet overtake those that are being collected: so it is watched first whether it would find any
// (Parked), and it stays until there is hardly any traffic, or for long hardly a datagram in it.
type Aggregation struct {
	inForce
	mode    Mode
	pause   time.Time // not before
	refused float64   // the Rate for which that is so: with a much greater one it is another load
	stretch stretch
	quiet   time.Time // since when hardly a packet has come out of a tunnel
	useless time.Time // since when hardly one of them was a datagram that was joined
	ordered time.Time // not before, also where it is forced: GRO would not keep flows in order
	unfit   time.Duration
	// before and after are what windows told of Behind, without it and since.
	before, after []float64
}

// stretch is what came out of tunnels since it began.
type stretch struct {
	since time.Time
	sum   AggregationWindow
}

// AggregationWindow is what came since the last one.
type AggregationWindow struct {
	// Rate is the packets per second that come out of all tunnels; what GRO has joined is one.
	Rate float64
	// Packets came out of tunnels while it was on or watched, Datagrams of these in Supers;
	// Follows of those that it did not join it could have joined to another.
	Packets, Datagrams, Supers, Follows uint64
	// Mixed are datagrams that GRO takes otherwise than others of their flow: it does not keep these in order.
	Mixed uint64
	// Behind is what a frame cost behind the NIC's stage, of what it cost there: that is what is
	// saved, and no machine's speed changes it. 0: not known.
	Behind float64
}

const (
	// aggregateFrom is the rate from which polls find more than one packet at a time.
	aggregateFrom = 10_000
	// rarely is the share of packets in super-packets below which it is not worth having,
	// often that of packets which could be from which it is worth trying.
	rarely = 0.05
	often  = 0.1
	// aggregateQuiet is the rate below which no application misses it, aggregateFor how long it stays
	// when that is so, or when it joins hardly a packet.
	aggregateQuiet = 1000
	aggregateFor   = 10 * time.Second
	// aggregateWatch is how long it is watched: a few thousand packets tell.
	aggregateWatch   = 500 * time.Millisecond
	aggregateStretch = time.Second
	aggregatePause   = 30 * time.Second
	// aggregateOther is by how much the rate grows when it is another load, which is looked at at once.
	aggregateOther = 1.5
	// Where frames cost clearly more behind the NIC in each of so many windows than in any of those
	// before, the kernel takes super-packets apart: then it is not tried again for longer.
	aggregateDearer = 1.1
	aggregateProof  = 10
	aggregateBefore = 4
	aggregateVainly = 10 * time.Minute
	// A flow of which GRO takes some and not others makes it stand aside for so long; each time that comes again for twice
	// as long, up to a bound: such flows come back.
	aggregateMixed     = 10 * time.Minute
	aggregateMixedMost = 8 * aggregateMixed
)

// NewAggregation returns one that has not seen anything yet.
func NewAggregation(mode Mode) *Aggregation {
	return &Aggregation{mode: mode, inForce: inForce{Decision{Reason: "not measured yet"}}}
}

// Reconfigure changes the mode; the next window decides by it, and looks at what was looked away from.
func (a *Aggregation) Reconfigure(mode Mode) {
	if mode != a.mode {
		a.pause, a.ordered, a.unfit = time.Time{}, time.Time{}, 0
	}
	a.mode = mode
}

// Step takes a window and returns the decision in force after it.
func (a *Aggregation) Step(now time.Time, w AggregationWindow) Decision {
	switch {
	case a.mode == Off:
		a.decide(now, Standby, "switched off by configuration")
	case w.Mixed > 0:
		a.unfit = min(max(2*a.unfit, aggregateMixed), aggregateMixedMost)
		a.ordered = now.Add(a.unfit)
		a.decide(now, Standby, fmt.Sprintf("%s; looked at again in %v", mixed, a.unfit))
	case now.Before(a.ordered):
	case a.mode == Forced:
		a.decide(now, Active, "forced by configuration")
	case a.last.State == Active:
		a.judge(now, w)
	case a.last.State == Parked:
		a.watch(now, w)
	case now.Before(a.pause) && w.Rate < aggregateOther*a.refused:
	case w.Rate < aggregateFrom:
		a.decide(now, Standby, fmt.Sprintf("fewer than %d packets a second come out of the tunnels: datagrams hardly come in a row", aggregateFrom))
	default:
		a.stretch, a.before, a.after = stretch{since: now}, nil, nil
		a.decide(now, Parked, "it is watched whether datagrams come in a row")
	}
	return a.last
}

// add takes a window into the stretch, and returns it when it has lasted so long.
func (a *Aggregation) add(now time.Time, w AggregationWindow, least time.Duration) (sum AggregationWindow, rate float64, over bool) {
	s := &a.stretch
	s.sum.Packets += w.Packets
	s.sum.Datagrams += w.Datagrams
	s.sum.Supers += w.Supers
	s.sum.Follows += w.Follows
	since := now.Sub(s.since)
	if since < least {
		return sum, 0, false
	}
	sum, rate = s.sum, float64(s.sum.Packets)/since.Seconds()
	*s = stretch{since: now}
	return sum, rate, true
}

// watch takes a stretch in which nothing was joined: could it have been?
func (a *Aggregation) watch(now time.Time, w AggregationWindow) {
	if w.Behind > 0 {
		a.before = append(a.before, w.Behind)
	}
	sum, rate, over := a.add(now, w, aggregateWatch)
	if !over {
		return
	}
	share := float64(sum.Follows+sum.Datagrams) / float64(max(sum.Packets, 1))
	switch {
	case rate < aggregateQuiet:
		a.decide(now, Standby, hardlyAny)
	case share < often:
		a.stop(now, inARow(share), aggregatePause, w.Rate)
	default:
		a.quiet, a.useless = now, now
		a.decide(now, Active, "datagrams that come in a row cross the overlay as one packet")
	}
}

func inARow(share float64) string {
	return fmt.Sprintf("%.0f %% of the overlay's packets are datagrams that come in a row", share*100)
}

// judge takes a stretch that is over: was it worth having?
func (a *Aggregation) judge(now time.Time, w AggregationWindow) {
	if a.vain(w) {
		why := fmt.Sprintf("behind the NIC, frames cost at least %.2f times what they did without", slices.Min(a.after)/slices.Max(a.before))
		a.stop(now, why, aggregateVainly, math.Inf(1))
		return
	}
	sum, rate, over := a.add(now, w, aggregateStretch)
	if !over {
		return
	}
	share := float64(sum.Datagrams) / float64(max(sum.Packets, 1))
	if rate >= aggregateQuiet {
		a.quiet = now
	}
	if rate < aggregateQuiet || share >= rarely {
		a.useless = now
	}
	switch {
	case now.Sub(a.quiet) >= aggregateFor:
		a.decide(now, Standby, hardlyAny)
	case now.Sub(a.useless) >= aggregateFor:
		a.stop(now, inARow(share), aggregatePause, w.Rate)
	case sum.Supers > 0:
		a.decide(now, Active, fmt.Sprintf("%.0f %% of the overlay's packets cross it as super-packets, of %.0f datagrams each", share*100, float64(sum.Datagrams)/float64(sum.Supers)))
	}
}

// vain takes what a window tells of the frames' cost, and says whether they cost more than before.
// Windows of before and after are no pairs: only where none of them overlap is it believed.
func (a *Aggregation) vain(w AggregationWindow) bool {
	if w.Behind > 0 && len(a.after) < aggregateProof {
		a.after = append(a.after, w.Behind)
	}
	return len(a.before) >= aggregateBefore && len(a.after) == aggregateProof && slices.Min(a.after) > aggregateDearer*slices.Max(a.before)
}

// mixed is why flows would not be kept in order (dev_gro_receive, net/core/gro.c).
const mixed = "a UDP flow has datagrams that GRO joins and others that it hands on at once, which would overtake them: in fragments, with IP options, without a checksum or empty"

// hardlyAny is no reason to look away: what comes next is seen at once.
const hardlyAny = "hardly a packet comes out of the tunnels"

// Refuse ends it, or has it not begin, for a reason that no measurement tells.
func (a *Aggregation) Refuse(now time.Time, why string) {
	if a.mode == Auto {
		a.stop(now, why, aggregatePause, math.Inf(1))
	}
}

func (a *Aggregation) stop(now time.Time, why string, pause time.Duration, refused float64) {
	a.pause, a.refused = now.Add(pause), max(refused, aggregateFrom)
	a.decide(now, Standby, fmt.Sprintf("%s; looked at again every %v", why, pause))
}
