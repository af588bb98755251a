// SPDX-License-Identifier: Apache-2.0

// Package aggregate has the underlays join datagrams of one flow that come in a row, so that they cross the overlay as
// one packet.
package aggregate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

const name = string(plan.ByAggregation)

// Host is what it borrows of the daemon.
type Host interface {
	mechanism.Host
	// Rate is how many packets a second come out of all tunnels; what GRO has joined is one.
	Rate(now time.Time) (float64, error)
	// Behind is governor.AggregationWindow's.
	Behind() float64
	// SkipsTunnels tells whether frames go straight to pods, which no tunnel sees.
	SkipsTunnels() bool
	// HasLanes tells whether priority's lanes may hold packets.
	HasLanes() bool
	// Relearn has what stages cost learned anew, unless the pipeline is in place.
	Relearn()
	// LoadAggregation loads the program that counts what comes out of tunnels.
	LoadAggregation() (Program, error)
	// SetApart gives packets in priority's lanes numbers; fresh: those that are there already have none.
	SetApart(on bool) (fresh bool, err error)
}

// Program is a datapath.Aggregation.
type Program interface {
	// Attach attaches it to a tunnel.
	Attach(datapath.Device) (io.Closer, error)
	// Fits tells it how long frames are at most that come in one packet of the NICs.
	Fits(frame int) error
	Counters() (datapath.AggregateCounters, error)
	Close() error
}

// Aggregate is the mechanism.
type Aggregate struct {
	mechanism.Base
	host Host
	mode governor.Mode
	gov  *governor.Aggregation
	// reads reads what there is to plan by; all: nothing is taken from the last full scan.
	reads   func(owned map[plan.Setting]plan.Owned, all bool) (plan.AggregateInput, error)
	dp      Program // nil while it does not act
	counted datapath.AggregateCounters
	at      time.Time                  // counted then
	joins   float64                    // datagrams a second that were joined, in the last window
	past    datapath.AggregateCounters // of the times before
	hooks   mechanism.Hooks            // on tunnels
	skipped []plan.Skip
	none    bool                      // no underlay can
	rules   *shortcut.JoinEligibility // nil while it does not act, and where it is forced
	check   mechanism.Check
	scans   mechanism.Pace // at changes of rules
	dirty   bool           // rules have changed since the last full scan
	told    string
	waits   bool // what lanes hold is to be handed on first
	retry   time.Time
	err     error // why the last attempt to put it in place failed
}

// New is the mechanism in a mode.
func New(host Host, mode governor.Mode) *Aggregate {
	a := &Aggregate{host: host, mode: mode, gov: governor.NewAggregation(mode)}
	a.reads = a.read
	return a
}

// Configure changes its mode, from the next step on.
func (a *Aggregate) Configure(mode governor.Mode) {
	a.mode = mode
	a.gov.Reconfigure(mode)
}

// State is what was decided last; governor.Parked: it is watched whether datagrams come in a row. What the stages cost,
// and whether flows of datagrams can be split, is another matter once they are joined.
func (a *Aggregate) State() governor.State { return a.gov.Last().State }

// Joined is how many datagrams a second were joined, in the last window.
func (a *Aggregate) Joined() float64 { return a.joins }

// Skipped are the devices that it left alone at its last full scan, and why.
func (a *Aggregate) Skipped() []plan.Skip { return a.skipped }

// Rescanned is mechanism.Mechanism's: the next step is a full scan.
func (a *Aggregate) Rescanned(context.Context) error {
	a.check.Again()
	return nil
}

// Tracing is mechanism.Mechanism's.
func (a *Aggregate) Tracing() mechanism.Tracing { return mechanism.Tracing{Steady: a.dp != nil} }

// Step is mechanism.Mechanism's: count, decide, act.
func (a *Aggregate) Step(_ context.Context, now time.Time) error {
	if a.mode == governor.Off && a.dp == nil {
		a.gov.Step(now, governor.AggregationWindow{})
		return nil
	}
	rate, err := a.host.Rate(now)
	if err != nil {
		return err
	}
	w := governor.AggregationWindow{Rate: rate}
	if a.dp != nil {
		c, err := a.dp.Counters()
		if err != nil {
			return err
		}
		n := c.Sub(a.counted)
		w.Packets, w.Datagrams, w.Supers, w.Follows, w.Mixed = n.Packets, n.Datagrams, n.Supers, n.Follows, n.Mixed
		a.joins = float64(n.Datagrams) / max(now.Sub(a.at).Seconds(), time.Millisecond.Seconds())
		a.counted, a.at, w.Behind = c, now, a.host.Behind()
	}
	before := a.gov.Last()
	dec := before
	// What goes straight to pods no tunnel sees: aggregation stays what express is held against.
	if a.mode != governor.Auto || before.State != governor.Active || !a.host.SkipsTunnels() || w.Mixed > 0 {
		dec = a.gov.Step(now, w)
	}
	if dec.State == governor.Active {
		a.told = ""
	}
	mechanism.Decided(a.host.Log(), name, before, dec)
	switch {
	case dec.State == governor.Standby:
		_, err := a.stop()
		return err
	case a.dp == nil && now.Before(a.retry):
	case a.dp == nil || dec.State != before.State || a.waits || a.check.Due(now) || a.dirty && a.scans.Due(now):
		return a.try(now, true)
	}
	return nil
}

// Polls is mechanism.Mechanism's: it does not wait for a window's end to hear that GRO lets packets overtake others.
func (a *Aggregate) Polls() bool { return a.dp != nil }

// Poll is mechanism.Mechanism's.
func (a *Aggregate) Poll(ctx context.Context, now time.Time) error {
	if a.dp == nil {
		return nil
	}
	c, err := a.dp.Counters()
	if err != nil || c.Mixed == a.counted.Mixed {
		return err
	}
	return a.Step(ctx, now)
}

// Changed is mechanism.Mechanism's: rules may be otherwise now.
func (a *Aggregate) Changed() <-chan struct{} { return a.rules.Changed() }

// Follow is mechanism.Mechanism's: it checks rules that may have changed, at once unless they change all the time.
func (a *Aggregate) Follow(_ context.Context, now time.Time) error {
	a.dirty = true
	if a.dp == nil || !a.scans.Due(now) {
		return nil // with a window that begins soon
	}
	return a.try(now, false)
}

// ruleShare is the part of the daemon's time that reading rules that change may take: 1/100.
const ruleShare = 100

// try makes it fit the node; where that fails, it leaves no trace. all: nothing is taken from
// the last full scan.
func (a *Aggregate) try(now time.Time, all bool) error {
	defer a.host.Begins(name)()
	all = all && a.check.Due(now)
	a.dirty = false
	began := time.Now()
	made, owned, err := a.plan(all)
	ended := time.Now()
	a.scans.Took(ended, ruleShare*ended.Sub(began)/mechanism.ScanShare)
	if all {
		a.check.Made(began)
	}
	if a.err = err; err == nil && a.none && a.mode == governor.Auto && len(made.Skipped) > 0 {
		return a.refuse(now, made.Skipped)
	}
	if a.err == nil {
		a.err = a.follow(made, owned, a.gov.Last().State == governor.Active)
	}
	if a.err != nil {
		a.retry = now.Add(mechanism.RetryAfter)
		a.host.Log().Error("aggregate could not be put in place", "mechanism", name, "reason", a.err, "again_in", mechanism.RetryAfter)
		_, err := a.stop()
		return err
	}
	return nil
}

// refuse stands by where no device may join datagrams, and says what stands in the way.
func (a *Aggregate) refuse(now time.Time, skipped []plan.Skip) error {
	before := a.gov.Last()
	why := strings.TrimPrefix(skipped[0].Reason, "left alone: ")
	a.gov.Refuse(now, why)
	if before.State == governor.Active || a.told != why {
		a.told = why
		a.host.Log().Info("aggregate standby", "mechanism", name, "reason", a.gov.Last().Reason)
	}
	_, err := a.stop()
	a.skipped = skipped
	return err
}

// plan plans by what is on the node. all: nothing is taken from the last full scan.
func (a *Aggregate) plan(all bool) (plan.Plan, map[plan.Setting]plan.Owned, error) {
	owned := a.host.Owned(plan.ByAggregation)
	in, err := a.reads(owned, all)
	if err != nil {
		return plan.Plan{}, owned, err
	}
	made := plan.Aggregate(in)
	a.skipped, a.none = made.Skipped, len(made.Skipped) >= len(in.Underlays)+len(in.Tunnels)
	return made, owned, nil
}

// read reads the devices, and, unless it is forced, the rules that would tell joined datagrams from single ones.
func (a *Aggregate) read(owned map[plan.Setting]plan.Owned, all bool) (in plan.AggregateInput, err error) {
	snap := a.host.Snapshot()
	var reasons map[node.DevKey]shortcut.Onlooker
	if a.mode != governor.Forced {
		if a.rules == nil {
			s, own := a.host.Scanner(), a.host.Owns
			a.rules = shortcut.NewJoinEligibility(s, own, shortcut.NewWatchers(s, own, nil))
		}
		if reasons, err = a.rules.Scan(snap, all, len(owned) > 0); err != nil {
			return in, err
		}
	}
	return planInput(a.host.Scanner(), snap, owned, reasons), nil
}

// follow carries a plan out. act: packets are joined, or else it is only watched
// whether they could be.
func (a *Aggregate) follow(made plan.Plan, owned map[plan.Setting]plan.Owned, act bool) error {
	if a.dp == nil {
		dp, err := a.host.LoadAggregation()
		if err != nil {
			return err
		}
		a.dp, a.hooks, a.counted, a.at = dp, mechanism.Hooks{}, datapath.AggregateCounters{}, time.Now()
	}
	here, snap := map[plan.Target]bool{}, a.host.Snapshot()
	for _, dev := range snap.Receivers() {
		here[plan.Target(dev)] = true
	}
	for _, t := range snap.Tunnels {
		here[plan.Target(t.Dev)] = true
	}
	rep, err := a.host.RestoreUnneeded(plan.ByAggregation, func(s plan.Setting) bool { return here[s.Target] })
	if err != nil {
		return err
	}
	if rep.Count(apply.Restored) > 0 {
		a.host.Relearn()
	}
	// The program that counts comes first, so that what is aggregated is counted.
	err = errors.Join(a.hooks.Follow(a.host, made.Attach, a.dp.Attach), a.dp.Fits(longest(snap)))
	if act {
		err = errors.Join(err, a.join(made.Steps))
	}
	return err
}

// Outer headers between IP and the inner frame: UDP's and the tunnel's without options, and IPv4's and IPv6's.
const (
	udpAndTunnel = 8 + 8
	ipv4, ipv6   = 20, 40
)

// longest is the length of the longest frame in a tunnel that comes in one packet of a NIC. What is longer came in outer
// fragments, which no GRO takes.
func longest(snap node.Snapshot) int {
	frame := 0
	for _, t := range snap.Tunnels {
		ip := ipv4
		if t.Outer == 6 {
			ip = ipv6
		}
		for _, u := range snap.Underlays {
			if slices.ContainsFunc(t.Underlays, u.Same) {
				frame = max(frame, u.MTU-ip-udpAndTunnel)
			}
		}
	}
	return cmp.Or(frame, math.MaxUint16)
}

// join has GRO join datagrams. What priority's lanes already hold has no numbers, and to
// GRO is another flow than what will have them: it is handed on first, by the next window.
func (a *Aggregate) join(steps []plan.Step) error {
	fresh, err := a.host.SetApart(true)
	if a.waits = fresh && a.host.HasLanes(); a.waits || err != nil {
		return err
	}
	if len(steps) > 0 {
		a.host.Relearn()
	}
	refused, err := a.host.CarryOut(steps)
	for target, why := range refused {
		a.skipped = append(a.skipped, plan.Skip{What: plan.Aggregates(target).String(), Reason: "left alone: " + why, Target: target})
	}
	return err
}

// Stop is mechanism.Mechanism's.
func (a *Aggregate) Stop(context.Context) (apply.Report, error) { return a.stop() }

// stop leaves no trace of it.
func (a *Aggregate) stop() (rep apply.Report, err error) {
	if a.rules != nil {
		err = a.rules.Close()
		a.rules = nil
	}
	if a.dp == nil {
		return rep, err
	}
	closed := err
	rep, err = a.host.Restore(plan.ByAggregation, nil)
	err = errors.Join(closed, err)
	_, e := a.host.SetApart(false)
	err = errors.Join(err, e, a.hooks.Close())
	c, e := a.dp.Counters()
	if e == nil {
		a.past = a.past.Add(c)
	}
	err = errors.Join(err, e, a.dp.Close())
	a.dp, a.skipped, a.waits, a.joins = nil, nil, false, 0
	if len(rep.Results) > 0 {
		a.host.Relearn()
	}
	return rep, err
}

// Fill is mechanism.Mechanism's.
func (a *Aggregate) Fill(st *control.Status, _ names.Names) error {
	c, err := a.counters()
	st.Counters.AggregatedPackets, st.Counters.SuperPackets, st.Counters.CountedPackets = c.Datagrams, c.Supers, c.Packets
	return err
}

// counters count since the daemon started.
func (a *Aggregate) counters() (datapath.AggregateCounters, error) {
	if a.dp == nil {
		return a.past, nil
	}
	c, err := a.dp.Counters()
	return a.past.Add(c), err
}

// Report is mechanism.Mechanism's.
func (a *Aggregate) Report() []control.Mechanism {
	dec := a.gov.Last()
	m := control.Mechanism{Name: name, State: mechanism.State(a.mode, dec.State), Reason: dec.Reason, Since: dec.Since, Trying: dec.State == governor.Parked}
	switch {
	case m.State != control.Active:
	case a.err != nil:
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, a.err)
	case a.none:
		m.State, m.Reason = control.Standby, "no underlay and no tunnel can do it, see the devices"
	}
	return []control.Mechanism{m}
}
