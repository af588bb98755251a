// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"time"
)

// Aggregation decides when datagrams of one flow that come in a row are to cross the overlay
// as one super-packet. It costs nothing that is worth a word where it finds none, and who
// takes it back in mid-traffic may let a packet overtake those that are being collected: so
// it stays until there is hardly any traffic, or hardly a datagram in it.
type Aggregation struct {
	mode    Mode
	last    Decision
	pause   time.Time // not before
	stretch stretch
	trial   bool      // it is the first stretch since it was switched on
	quiet   time.Time // since when hardly a packet has come out of a tunnel
}

// stretch is what came out of tunnels since it began.
type stretch struct {
	since time.Time
	sum   AggregationWindow
}

// AggregationWindow is what came since the last one.
type AggregationWindow struct {
	// Rate is the packets per second that the node's busiest core receives, of whatever.
	Rate float64
	// Packets came out of tunnels while it was on, Datagrams of these in Supers.
	Packets, Datagrams, Supers uint64
}

const (
	// aggregateFrom is the rate from which polls find more than one packet at a time.
	aggregateFrom = 10_000
	// rarely is the share of packets in super-packets below which it is not worth having.
	rarely = 0.05
	// aggregateQuiet is the rate below which nobody misses it, aggregateQuietFor how long
	// that must be so.
	aggregateQuiet    = 1000
	aggregateQuietFor = 10 * time.Second
	aggregateStretch  = time.Second
	// aggregateTrial is what a try costs whom it does not help: a few thousand packets tell.
	aggregateTrial = 250 * time.Millisecond
	aggregatePause = 30 * time.Second
)

// NewAggregation returns one that has not seen anything yet.
func NewAggregation(mode Mode) *Aggregation {
	return &Aggregation{mode: mode, last: Decision{Reason: "not measured yet"}}
}

// Reconfigure changes the mode; the next window decides by it.
func (a *Aggregation) Reconfigure(mode Mode) { a.mode = mode }

// Last is the decision in force.
func (a *Aggregation) Last() Decision { return a.last }

// Step takes a window and returns the decision in force after it: Standby or Active.
func (a *Aggregation) Step(now time.Time, w AggregationWindow) Decision {
	switch {
	case a.mode == Off:
		a.decide(now, Standby, "switched off by configuration")
	case a.mode == Forced:
		a.decide(now, Active, "forced by configuration")
	case a.last.State == Active:
		a.judge(now, w)
	case now.Before(a.pause):
	case w.Rate < aggregateFrom:
		a.decide(now, Standby, fmt.Sprintf("fewer than %d packets a second: datagrams hardly come in a row", aggregateFrom))
	default:
		a.stretch, a.trial, a.quiet = stretch{since: now}, true, now
		a.decide(now, Active, "datagrams that come in a row cross the overlay as one packet")
	}
	return a.last
}

// judge takes a stretch that is over: was it worth having?
func (a *Aggregation) judge(now time.Time, w AggregationWindow) {
	s := &a.stretch
	s.sum.Packets += w.Packets
	s.sum.Datagrams += w.Datagrams
	s.sum.Supers += w.Supers
	since, least := now.Sub(s.since), aggregateStretch
	if a.trial {
		least = aggregateTrial
	}
	if since < least {
		return
	}
	a.trial = false
	rate, sum := float64(s.sum.Packets)/since.Seconds(), s.sum
	*s = stretch{since: now}
	if rate >= aggregateQuiet {
		a.quiet = now
	}
	share := float64(sum.Datagrams) / float64(max(sum.Packets, 1))
	switch {
	case now.Sub(a.quiet) >= aggregateQuietFor:
		a.stop(now, "hardly a packet comes out of the tunnels")
	case rate >= aggregateQuiet && share < rarely:
		a.stop(now, fmt.Sprintf("%.0f %% of the overlay's packets are datagrams that come in a row", share*100))
	case sum.Supers > 0:
		a.decide(now, Active, fmt.Sprintf("%.0f %% of the overlay's packets cross it as super-packets, of %.0f datagrams each", share*100, float64(sum.Datagrams)/float64(sum.Supers)))
	}
}

func (a *Aggregation) stop(now time.Time, why string) {
	a.pause = now.Add(aggregatePause)
	a.decide(now, Standby, fmt.Sprintf("%s; looked at again every %v", why, aggregatePause))
}

func (a *Aggregation) decide(now time.Time, s State, reason string) {
	if s != a.last.State || a.last.Since.IsZero() {
		a.last.Since = now
	}
	a.last.State, a.last.Reason = s, reason
}
