// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"slices"
	"time"
)

// Aggregation decides when datagrams of one flow that come in a row are to cross the overlay
// as one super-packet. Where several cores poll a NIC, a daemon that takes it back in mid-traffic may let a
// packet overtake those that are being collected: so windows with it and without it are no pairs. It is watched
// first what GRO would find, and what a datagram costs (Parked); then it is joined, and stays only where a datagram
// costs less than before.
type Aggregation struct {
	inForce
	mode    Mode
	counts  bool // the program on the tunnels counts, whatever is decided
	costs   bool // what a packet costs is measured
	joins   bool // GRO joins datagrams
	proven  bool // and that has paid
	stretch stretch
	begun   time.Time     // it joins since
	scant   time.Time     // since when few packets have come
	quiet   time.Time     // since when hardly a packet has come out of a tunnel
	useless time.Time     // since when hardly one of them was a datagram that was joined
	barred  time.Time     // not before: no device may
	pause   time.Time     // not before, with a load like refused
	backoff time.Duration // how long that was at last
	refused load
	tried   load      // what is judged
	ordered time.Time // not before, also where it is forced: GRO would not keep flows in order
	unfit   time.Duration
	// before and after are windows without it and with it.
	before, after []AggregationWindow
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
	// Packets came out of tunnels while they were counted, UDP of these were datagrams, Datagrams in Supers;
	// Follows of those that it did not join came shortly behind another of their flow, Together in one poll with it, so that
	// it could have joined them; 0 also where polls were not traced.
	Packets, UDP, Datagrams, Supers, Follows, Together uint64
	// Mixed are datagrams that GRO takes otherwise than others of their flow: it does not keep these in order.
	Mixed uint64
	// Busy is the time that all cores spent receiving, Unread are the datagrams for which a socket had no room;
	// 0, 0: not measured.
	Busy   time.Duration
	Unread uint64
	// Short: a core was short of time for what it receives.
	Short bool
	// Taken says why GRO joins none of Follows; empty: not known.
	Taken string
}

// add takes in what came after it.
func (w *AggregationWindow) add(o AggregationWindow) {
	w.Packets += o.Packets
	w.UDP += o.UDP
	w.Datagrams += o.Datagrams
	w.Supers += o.Supers
	w.Follows += o.Follows
	w.Together += o.Together
	w.Short = w.Short || o.Short
}

// cost is the time of a packet that was read, 0: not known. What no socket had room for was received in vain.
func (w AggregationWindow) cost() float64 {
	if w.Busy <= 0 || w.Packets < aggregateFew {
		return 0
	}
	return float64(w.Busy) / float64(w.Packets-min(w.Unread, w.Packets-1))
}

// load is what a judgement is about.
type load struct {
	rate  float64 // datagrams a second that come in a row
	share float64 // these, of all packets
	runs  float64 // datagrams of a packet, once they are joined
	short bool    // a core is short of time
}

// load makes one of a stretch.
func (w AggregationWindow) load(over time.Duration) load {
	rows := float64(w.Follows + w.Datagrams)
	could := w.Together + w.Datagrams - min(w.Supers, w.Datagrams)
	return load{
		rate:  rows / over.Seconds(),
		share: rows / float64(max(w.Packets, 1)),
		runs:  float64(w.UDP) / float64(max(w.UDP-min(could, w.UDP), 1)),
		short: w.Short,
	}
}

// worth tells whether it may pay. A core that is short of time finds more at a time as it falls behind.
func (l load) worth() bool { return l.share >= often && (l.short || l.runs >= aggregateRuns) }

// other tells whether it is another load than one for which it did not pay.
func (l load) other(refused load) bool {
	return l.rate > aggregateOther*refused.rate || l.runs > aggregateOther*refused.runs || l.short && !refused.short
}

const (
	// aggregateFrom is the rate from which polls find more than one packet at a time, aggregateFew are too few in a window
	// to tell what one costs.
	aggregateFrom = 10_000
	aggregateFew  = 100
	// rarely is the share of packets in super-packets below which it is not worth having,
	// often that of packets which could be from which it is worth trying, aggregateRuns how many datagrams a packet must
	// come to where no core is short of time: two or three cost more at GRO and at the socket than they save between.
	rarely        = 0.05
	often         = 0.1
	aggregateRuns = 4
	// aggregateQuiet is the rate below which no application misses it, aggregateFor how long it stays when that is so,
	// aggregateUseless how long when it joins hardly a packet.
	aggregateQuiet   = 1000
	aggregateFor     = 10 * time.Second
	aggregateUseless = time.Second
	// aggregateWatch is how long it is watched, and then how long it is measured what a packet costs: a few thousand packets
	// tell.
	aggregateWatch   = 300 * time.Millisecond
	aggregateStretch = time.Second
	// What did not pay is tried again after aggregatePause, each time after twice as long, up to a bound; what no device
	// may, after the same.
	aggregatePause     = 30 * time.Second
	aggregatePauseMost = 16 * time.Minute
	// aggregateOther is by how much a load grows when it is another one, which is looked at at once.
	aggregateOther = 1.5
	// It is judged by windows of aggregateProof, so many at least, before and since; where these do not come within
	// aggregateLate it has not paid.
	aggregateProof   = time.Second
	aggregateWindows = 4
	aggregateLate    = 5 * time.Second
	// A packet's cost has to be aggregateCheaper of what it was. Where a core is short of time, and so the machine's speed,
	// which no pairs take out, decides less than what is joined, it must not be clearly dearer: by aggregateDearer, in each
	// window than in any before.
	aggregateCheaper = 0.9
	aggregateDearer  = 1.1
	// aggregateUnread is the share of packets which sockets may have no room for beyond what it was: super-packets come in
	// heaps, to a reader that shares its core.
	aggregateUnread = 0.01
	// A flow of which GRO takes some and not others makes it stand aside for so long; each time that comes again for twice
	// as long, up to a bound: such flows come back.
	aggregateMixed     = 10 * time.Minute
	aggregateMixedMost = 8 * aggregateMixed
)

// NewAggregation returns one that has not seen anything yet.
func NewAggregation(mode Mode) *Aggregation {
	return &Aggregation{mode: mode, inForce: inForce{Decision{Reason: "not measured yet"}}}
}

// Counts tells whether the program on the tunnels is to count.
func (a *Aggregation) Counts() bool { return a.counts }

// Joins tells whether GRO is to join datagrams.
func (a *Aggregation) Joins() bool { return a.joins }

// Costs tells whether what a packet costs is to be measured, which costs as well: only where it may pay.
func (a *Aggregation) Costs() bool { return a.costs }

// Judges tells whether it is found out whether it pays.
func (a *Aggregation) Judges() bool { return a.counts && a.last.State != Standby && !a.proven }

// Reconfigure changes the mode; the next window decides by it, and looks at what was looked away from.
func (a *Aggregation) Reconfigure(mode Mode) {
	if mode != a.mode {
		a.barred, a.pause, a.backoff, a.refused = time.Time{}, time.Time{}, 0, load{}
		a.ordered, a.unfit = time.Time{}, 0
	}
	a.mode = mode
}

// leave has nothing counted, and nothing joined.
func (a *Aggregation) leave() { a.counts, a.costs, a.joins, a.proven = false, false, false, false }

// Step takes a window and returns the decision in force after it.
func (a *Aggregation) Step(now time.Time, w AggregationWindow) Decision {
	a.handleClockJump(now)
	switch {
	case a.mode == Off:
		a.leave()
		a.decide(now, Standby, "switched off by configuration")
	case w.Mixed > 0:
		a.leave()
		a.unfit = min(max(2*a.unfit, aggregateMixed), aggregateMixedMost)
		a.ordered = now.Add(a.unfit)
		a.decide(now, Standby, fmt.Sprintf("%s; looked at again in %v", mixed, a.unfit))
	case now.Before(a.ordered):
	case a.mode == Forced:
		a.counts, a.costs, a.joins, a.proven = true, false, true, true
		a.decide(now, Active, "forced by configuration")
	case a.joins:
		a.judge(now, w)
	case a.last.State == Parked:
		a.watch(now, w)
	case a.counts:
		a.glance(now, w)
	case now.Before(a.barred):
	case w.Rate < aggregateFrom:
		a.decide(now, Standby, fewPackets())
	case now.Before(a.pause):
		a.counts, a.stretch, a.scant = true, stretch{since: now}, time.Time{}
	default:
		a.begin(now)
	}
	return a.last
}

// handleClockJump bounds what a clock that jumped back would have made last for ever.
func (a *Aggregation) handleClockJump(now time.Time) {
	if now.Before(a.stretch.since) {
		a.stretch = stretch{since: now}
		a.begun, a.quiet, a.useless = now, now, now
		a.pause, a.barred = time.Time{}, time.Time{}
	}
}

func fewPackets() string {
	return fmt.Sprintf("fewer than %d packets a second come out of the tunnels: datagrams hardly come in a row", aggregateFrom)
}

// begin has it watched.
func (a *Aggregation) begin(now time.Time) {
	a.counts, a.costs, a.before, a.after = true, false, nil, nil
	a.stretch, a.scant = stretch{since: now}, time.Time{}
	a.decide(now, Parked, "it is watched whether datagrams come in a row")
}

// take takes a window into the stretch, and returns it when it has lasted so long.
func (a *Aggregation) take(now time.Time, w AggregationWindow, least time.Duration) (l load, sum AggregationWindow, rate float64, over bool) {
	s := &a.stretch
	s.sum.add(w)
	since := now.Sub(s.since)
	if since < least {
		return l, sum, 0, false
	}
	sum, rate = s.sum, float64(s.sum.Packets)/since.Seconds()
	*s = stretch{since: now}
	return sum.load(since), sum, rate, true
}

// glance looks what comes while nothing is joined: by kind, not by rate.
func (a *Aggregation) glance(now time.Time, w AggregationWindow) {
	if lasts(&a.scant, now, w.Rate < aggregateFrom, aggregateFor) {
		a.leave()
		a.decide(now, Standby, fewPackets())
		return
	}
	l, _, rate, over := a.take(now, w, aggregateWatch)
	if !over || rate < aggregateFrom || l.share < often {
		return
	}
	switch {
	case l.other(a.refused):
		a.backoff = 0
	case now.Before(a.pause):
		return
	}
	a.begin(now)
}

// watch takes a stretch in which nothing was joined: could it have been? If so, what does a packet cost?
func (a *Aggregation) watch(now time.Time, w AggregationWindow) {
	if w.cost() > 0 {
		a.before = append(a.before, w)
	}
	least := aggregateWatch
	if a.costs && len(a.before) < aggregateWindows {
		least = aggregateProof
	}
	l, _, rate, over := a.take(now, w, least)
	switch {
	case !over:
	case rate < aggregateQuiet:
		a.leave()
		a.decide(now, Standby, hardlyAny)
	case !l.worth():
		a.refuse(now, l.why(), l)
	case !a.costs:
		a.costs = true
	default:
		a.joins, a.proven, a.tried, a.begun = true, false, l, now
		a.quiet, a.useless = now, now
		a.decide(now, Parked, "datagrams that come in a row are to be joined; none was yet")
	}
}

// why says what keeps a load from being worth a try.
func (l load) why() string {
	if l.share < often {
		return inARow(l.share)
	}
	return fmt.Sprintf("no core is short of time, and GRO would find %.1f datagrams of a flow at a time: to join them costs what it saves", l.runs)
}

func inARow(share float64) string {
	return fmt.Sprintf("%.0f %% of the overlay's packets are datagrams that come in a row", share*100)
}

// judge takes a stretch that is over: was it worth having?
func (a *Aggregation) judge(now time.Time, w AggregationWindow) {
	if a.last.State == Parked && w.Supers > 0 {
		a.decide(now, Active, "datagrams that come in a row cross the overlay as one packet")
	}
	if !a.proven && a.last.State == Active {
		if w.cost() > 0 {
			a.after = append(a.after, w)
		}
		switch why, over := a.verdict(now.Sub(a.begun)); {
		case !over:
		case why != "":
			a.refuse(now, why, a.tried)
			return
		default:
			a.proven, a.costs, a.backoff, a.pause = true, false, 0, time.Time{}
		}
	}
	l, sum, rate, over := a.take(now, w, aggregateStretch)
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
		a.leave()
		a.decide(now, Standby, hardlyAny)
	case now.Sub(a.useless) >= aggregateUseless:
		why := inARow(l.share)
		if l.share >= often {
			why = fmt.Sprintf("%.0f %% of the overlay's packets are datagrams that come in a row, and %.0f %% are joined", l.share*100, share*100)
			if w.Taken != "" {
				why += ": " + w.Taken
			}
		}
		a.refuse(now, why, l)
	case sum.Supers > 0:
		a.decide(now, Active, fmt.Sprintf("%.0f %% of the overlay's packets cross it as super-packets, of %.0f datagrams each", share*100, float64(sum.Datagrams)/float64(sum.Supers)))
	}
}

// verdict tells, once it is known, why it does not pay; empty: it does.
func (a *Aggregation) verdict(lasted time.Duration) (why string, over bool) {
	if len(a.before) < aggregateWindows || len(a.after) < aggregateWindows {
		return "whether it pays could not be measured", lasted >= aggregateLate
	}
	if lasted < aggregateProof {
		return "", false
	}
	short := func(w AggregationWindow) bool { return w.Short }
	before, after := costs(a.before), costs(a.after)
	ratio := median(after) / median(before)
	switch {
	case slices.ContainsFunc(a.before, short) || slices.ContainsFunc(a.after, short):
		if r := slices.Min(after) / slices.Max(before); r > aggregateDearer {
			return fmt.Sprintf("a packet costs at least %.2f times what it did without", r), true
		}
	case unread(a.after) > unread(a.before)+aggregateUnread:
		return fmt.Sprintf("sockets have no room for %.0f %% of what comes joined, and for %.0f %% without", 100*unread(a.after), 100*unread(a.before)), true
	case ratio > aggregateCheaper:
		return fmt.Sprintf("a packet costs %.2f times what it did without, and no core is short of time", ratio), true
	}
	return "", true
}

func costs(list []AggregationWindow) (all []float64) {
	for _, w := range list {
		all = append(all, w.cost())
	}
	return all
}

// unread is the share of packets for which sockets had no room.
func unread(list []AggregationWindow) float64 {
	var all, lost uint64
	for _, w := range list {
		all, lost = all+w.Packets, lost+w.Unread
	}
	return float64(lost) / float64(max(all, 1))
}

// mixed is why flows would not be kept in order (dev_gro_receive, net/core/gro.c).
const mixed = "a UDP flow has datagrams that GRO joins and others that it hands on at once, which would overtake them: in fragments, with IP options, without a checksum or empty"

// hardlyAny is no reason to look away: what comes next is seen at once.
const hardlyAny = "hardly a packet comes out of the tunnels"

// Refuse ends it, or has it not begin, for a reason that no measurement tells.
func (a *Aggregation) Refuse(now time.Time, why string) {
	if a.mode != Auto {
		return
	}
	a.leave()
	a.barred = now.Add(aggregatePause)
	a.decide(now, Standby, fmt.Sprintf("%s; looked at again every %v", why, aggregatePause))
}

// refuse has nothing joined, for a load with which it does not pay.
func (a *Aggregation) refuse(now time.Time, why string, l load) {
	a.joins, a.costs, a.proven = false, false, false
	a.stretch, a.scant = stretch{since: now}, time.Time{}
	a.backoff = min(max(2*a.backoff, aggregatePause), aggregatePauseMost)
	a.pause, a.refused = now.Add(a.backoff), l
	a.decide(now, Standby, fmt.Sprintf("%s; looked at again in %v, or with another load", why, a.backoff))
}
