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
	// Busiest are the tunnels that have received most lately. One that stays has to be overtaken by twice as much.
	Busiest(most int, stays func(node.DevKey) bool) []node.Tunnel
	// SkipsTunnels tells whether frames go straight to pods, which no tunnel sees.
	SkipsTunnels() bool
	// HasLanes tells whether priority's lanes may hold packets.
	HasLanes() bool
	// Relearn has what stages cost learned anew, unless the pipeline is in place.
	Relearn()
	// LoadAggregation loads the program that counts what comes out of tunnels.
	LoadAggregation() (Program, error)
	// Traces tells whether polls are traced.
	Traces() bool
	// LoadClock starts what tells what receiving costs.
	LoadClock() (Clock, error)
	// SetApart gives packets in priority's lanes numbers; fresh: those that are there already have none.
	SetApart(on bool) (fresh bool, err error)
}

// Program is a datapath.Aggregation.
type Program interface {
	// Attach attaches it to a tunnel.
	Attach(datapath.Device) (io.Closer, error)
	// AttachNIC attaches to a NIC what tells flows that its GRO would reorder.
	AttachNIC(datapath.Device) (io.Closer, error)
	// Fits tells it how long frames are at most that come in one packet of the NICs.
	Fits(frame int) error
	Counters() (datapath.AggregateCounters, error)
	Close() error
}

// Clock is a datapath.Clock.
type Clock interface {
	Read() (datapath.Received, error)
	Close() error
}

// stage is what is decided, as far as devices are concerned. idle: it is only counted what comes, and no rule is looked at.
type stage struct{ idle, joins bool }

func (a *Aggregate) stage() stage {
	return stage{a.gov.Last().State == governor.Standby, a.gov.Joins()}
}

// Aggregate is the mechanism.
type Aggregate struct {
	mechanism.Base
	host Host
	mode governor.Mode
	gov  *governor.Aggregation
	// reads reads what there is to plan by; all: nothing is taken from the last full scan.
	reads func(owned map[plan.Setting]plan.Owned, all bool) (plan.AggregateInput, error)
	// taken says why GRO joins none of the datagrams to a port, empty if that is not known.
	taken   func(port uint16) (string, error)
	dp      Program // nil while nothing is counted
	done    stage   // of what was carried out last
	counted datapath.AggregateCounters
	clock   Clock // nil while nothing is judged
	cost    datapath.Received
	short   bool                       // a core is short of time
	at      time.Time                  // counted then
	joins   float64                    // datagrams a second that were joined, in the last window
	past    datapath.AggregateCounters // of the times before
	hooks   mechanism.Hooks            // on tunnels
	nics    mechanism.Hooks            // on NICs, unless it is only counted what comes
	skipped []plan.Skip
	none    bool                      // no underlay can
	rules   *shortcut.JoinEligibility // nil while it does not act, and where it is forced
	check   mechanism.Check
	scans   mechanism.Pace // at changes of rules
	dirty   bool           // rules have changed since the last full scan
	moved   bool           // devices have
	told    string
	said    mechanism.Told
	waits   bool // what lanes hold is to be handed on first
	retry   time.Time
	err     error // why the last attempt to put it in place failed
}

// New is the mechanism in a mode.
func New(host Host, mode governor.Mode) *Aggregate {
	a := &Aggregate{host: host, mode: mode, gov: governor.NewAggregation(mode)}
	a.reads, a.taken = a.read, takenByHost
	return a
}

// Configure changes its mode, from the next step on.
func (a *Aggregate) Configure(mode governor.Mode) {
	a.mode = mode
	a.gov.Reconfigure(mode)
}

// State is what was decided last; governor.Parked: it is found out whether it pays. What the stages cost,
// and whether flows of datagrams can be split, is another matter once they are joined.
func (a *Aggregate) State() governor.State {
	if a.gov.Judges() {
		return governor.Parked
	}
	return a.gov.Last().State
}

// Joined is how many datagrams a second were joined, in the last window.
func (a *Aggregate) Joined() float64 { return a.joins }

// Skipped are the devices that it left alone at its last full scan, and why.
func (a *Aggregate) Skipped() []plan.Skip { return a.skipped }

// Rescanned is mechanism.Mechanism's: the next step is a full scan.
func (a *Aggregate) Rescanned(context.Context) error {
	a.check.Again()
	a.moved = true
	return nil
}

// Tracing is mechanism.Mechanism's. Where a poll ends is known of polls that are traced.
func (a *Aggregate) Tracing() mechanism.Tracing { return mechanism.Tracing{Steady: a.gov.Judges()} }

// Busy is mechanism.Mechanism's.
func (a *Aggregate) Busy(governor.Input) bool { return a.gov.Costs() }

// Decide is mechanism.Mechanism's: the next step judges by it.
func (a *Aggregate) Decide(_ context.Context, in governor.Input) error {
	a.short = false
	for _, c := range in.Cores {
		a.short = a.short || c.Saturated > polls && c.Saturated+c.Tasks > full
	}
	return nil
}

// A core is short of time when polls that follow directly on one another take more than polls of its time, and with what
// tasks take it is full. What a poll of a NIC brings is polled behind it directly, also where the NIC has no more.
const polls, full = 0.5, 0.9

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
	w := governor.AggregationWindow{Rate: rate, Short: a.short}
	if a.dp != nil {
		if err := a.count(now, &w); err != nil {
			return err
		}
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
	defer func() { a.said.Decided(a.host.Log(), name, a.gov.Last(), a.done.joins, true) }()
	if err := a.measures(a.gov.Costs()); err != nil {
		return err
	}
	is := a.stage()
	switch {
	case !a.gov.Counts() || a.done.joins && !is.joins:
		_, err := a.stop()
		return err // where it still counts, from the next window on
	case a.dp == nil && now.Before(a.retry):
	case a.dp == nil || is != a.done || a.waits || a.moved || !is.idle && (a.check.Due(now) || a.dirty && a.scans.Due(now)):
		return a.try(now, true)
	}
	return nil
}

// count completes a window by what was counted since the last one.
func (a *Aggregate) count(now time.Time, w *governor.AggregationWindow) error {
	c, err := a.dp.Counters()
	if err != nil {
		return err
	}
	n := c.Sub(a.counted)
	w.Packets, w.UDP, w.Datagrams, w.Supers, w.Follows, w.Mixed = n.Packets, n.UDP, n.Datagrams, n.Supers, n.Follows, n.Mixed
	// Where none is traced all is one poll.
	if a.host.Traces() {
		w.Together = n.Together
	}
	a.joins = float64(n.Datagrams) / max(now.Sub(a.at).Seconds(), time.Millisecond.Seconds())
	a.counted, a.at = c, now
	// Forced, it stays whatever the reason: the list of sockets would be read for each window.
	if a.mode == governor.Auto && a.gov.Joins() && n.Supers == 0 && n.Follows > 0 {
		if w.Taken, err = a.taken(n.Port); err != nil {
			return err
		}
	}
	if a.clock == nil {
		return nil
	}
	cost, err := a.clock.Read()
	if err != nil {
		return err
	}
	w.Busy, w.Unread = cost.Busy-a.cost.Busy, cost.Unread-a.cost.Unread
	a.cost = cost
	return nil
}

// takenByHost says whether a socket of the NICs' namespace keeps GRO from joining what is sent to a port.
func takenByHost(port uint16) (why string, err error) {
	if taken, err := shortcut.TakenByGRO(port); err != nil || !taken {
		return "", err
	}
	return fmt.Sprintf("a program of the host receives on UDP port %d of all addresses, and GRO takes the pods' datagrams to that port for its own", port), nil
}

// noClock is one where the kernel has none: what cannot be measured has not paid.
type noClock struct{}

func (noClock) Read() (r datapath.Received, err error) { return r, nil }
func (noClock) Close() error                           { return nil }

// measures has it measured what receiving costs, or no longer: that costs, too.
func (a *Aggregate) measures(on bool) (err error) {
	switch {
	case on && a.clock == nil:
		if a.clock, err = a.host.LoadClock(); err != nil {
			a.host.Log().Warn("what receiving costs is not measured", "mechanism", name, "reason", err)
			a.clock = noClock{}
		}
		a.cost, err = a.clock.Read()
	case !on && a.clock != nil:
		err = a.clock.Close()
		a.clock = nil
	}
	return err
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
	a.dirty, a.moved = false, false
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
		a.err = a.follow(made, owned)
	}
	if a.err != nil {
		a.retry = now.Add(mechanism.RetryAfter)
		a.said = mechanism.Told{}
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
		a.told, a.said = why, mechanism.Told{}
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
	if a.mode != governor.Forced && !a.stage().idle {
		if a.rules == nil {
			s, own := a.host.Scanner(), a.host.Owns
			a.rules = shortcut.NewJoinEligibility(s, own, shortcut.NewWatchers(s, own, nil))
		}
		if reasons, err = a.rules.Scan(snap, all, len(owned) > 0); err != nil {
			return in, err
		}
	}
	return planInput(a.host.Scanner(), snap, a.host.Busiest(mostTunnels, a.counts), owned, reasons), nil
}

// counts tells whether a tunnel has the program that counts.
func (a *Aggregate) counts(tunnel node.DevKey) bool {
	return a.hooks[mechanism.Hook{DevKey: tunnel, Program: plan.CountProgram}] != nil
}

// follow carries a plan out.
func (a *Aggregate) follow(made plan.Plan, owned map[plan.Setting]plan.Owned) error {
	if a.dp == nil {
		dp, err := a.host.LoadAggregation()
		if err != nil {
			return err
		}
		a.dp, a.hooks, a.nics, a.counted, a.at = dp, mechanism.Hooks{}, mechanism.Hooks{}, datapath.AggregateCounters{}, time.Now()
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
	// Programs come first, so that what is aggregated is counted.
	tunnels, nics := attachments(made.Attach)
	if a.stage().idle {
		nics = nil
	}
	err = errors.Join(a.hooks.Follow(a.host, tunnels, mechanism.AttachFor, a.dp.Attach),
		a.nics.Follow(a.host, nics, mechanism.AttachFor, a.dp.AttachNIC), a.dp.Fits(longest(snap)))
	if errors.Is(err, mechanism.ErrMore) {
		a.moved = true // goes on with the next window
		return nil
	}
	a.done = a.stage()
	if a.done.idle {
		err = errors.Join(err, a.forgetRules())
	}
	if a.done.joins {
		err = errors.Join(err, a.join(made.Steps))
	}
	return err
}

// attachments parts those to tunnels from those to NICs.
func attachments(planned []plan.Attachment) (tunnels, nics []plan.Attachment) {
	for _, at := range planned {
		if at.Program == plan.OrderProgram {
			nics = append(nics, at)
		} else {
			tunnels = append(tunnels, at)
		}
	}
	return tunnels, nics
}

// longest is the length of the longest frame in a tunnel that comes in one packet of a NIC. What is longer came in outer
// fragments, which no GRO takes.
func longest(snap node.Snapshot) int {
	frame := 0
	for _, t := range snap.Tunnels {
		for _, u := range snap.Underlays {
			if slices.ContainsFunc(t.Underlays, u.Same) {
				frame = max(frame, u.MTU-t.Overhead(u)+node.EthernetHeader)
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
func (a *Aggregate) Stop(context.Context) (apply.Report, error) {
	rep, err := a.stop()
	return rep, errors.Join(err, a.measures(false))
}

// forgetRules has changes of rules followed no more.
func (a *Aggregate) forgetRules() (err error) {
	if a.rules != nil {
		err = a.rules.Close()
		a.rules = nil
	}
	return err
}

// stop leaves no trace of it.
func (a *Aggregate) stop() (rep apply.Report, err error) {
	closed := a.forgetRules()
	if a.dp == nil {
		return rep, closed
	}
	rep, err = a.host.Restore(plan.ByAggregation, nil)
	err = errors.Join(closed, err)
	_, e := a.host.SetApart(false)
	err = errors.Join(err, e, a.nics.Close(), a.hooks.Close())
	c, e := a.dp.Counters()
	if e == nil {
		a.past = a.past.Add(c)
	}
	err = errors.Join(err, e, a.dp.Close())
	a.dp, a.done, a.skipped, a.waits, a.joins = nil, stage{}, nil, false, 0
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
	m := control.Mechanism{Name: name, State: mechanism.State(a.mode, dec.State), Reason: dec.Reason, Since: dec.Since, Trying: a.State() == governor.Parked}
	switch {
	case m.State != control.Active:
	case a.err != nil:
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, a.err)
	case a.none:
		m.State, m.Reason = control.Standby, "no underlay and no tunnel can do it, see the devices"
	}
	return []control.Mechanism{m}
}
