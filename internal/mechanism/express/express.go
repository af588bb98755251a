// SPDX-License-Identifier: Apache-2.0

// Package express hands frames from the NICs straight to the pods' veths, where nothing on the way there
// could tell.
package express

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
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
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

const name = string(plan.ByExpress)

// Host is what it borrows of the daemon.
type Host interface {
	mechanism.Host
	// Readings are how devices receive, as of a while ago, and the settings that any mechanism has changed.
	Readings() (devices node.Reader, ours map[plan.Setting]plan.Owned)
	// Cookie is that of the NICs' namespace.
	Cookie() uint64
	Places() *xdp.Places
	// Passed waits until what came before it has left the stack.
	Passed(context.Context) error
	// PriorityOnNIC tells whether priority's program, which knows paths as well, is on the NICs.
	PriorityOnNIC() bool
	PriorityCounters() (datapath.PriorityCounters, error)
	// Split tells whether flows are cut into micro-flows.
	Split() bool
	Aggregation() governor.State
	AggregationMode() governor.Mode
	Trials() *trial.Trials
	// BeginCensus counts the packets of the tunnels, by flow.
	BeginCensus() (datapath.FlowCounts, error)
}

// datagrams tells how many packets came, and how many of them were of UDP.
func datagrams(c datapath.FlowCounts) (packets, udp uint64, err error) {
	flows, rest, err := c.Flows()
	for _, f := range append(flows, rest) {
		packets, udp = packets+f.Packets, udp+f.Datagrams
	}
	return packets, udp, err
}

// Kernel is what it needs of datapath.Datapath.
type Kernel interface {
	AttachXDP(datapath.Device) (io.Closer, error)
	AddPath(datapath.ExpressKey, datapath.ExpressPath) error
	// WithdrawPath has flows leave a path, ClosePath ends it.
	WithdrawPath(datapath.ExpressKey) error
	ClosePath(datapath.ExpressKey) error
	// FixSenders tells where senders are whose frames a tunnel drops from elsewhere.
	FixSenders(map[datapath.Sender]netip.Addr) error
	// SetExpress has frames take the paths, HoldExpress keeps them from it for as long.
	SetExpress(on bool) error
	HoldExpress(on bool) error
	// CountUnread has datagrams counted that sockets had no room for.
	CountUnread(on bool) error
	ExpressDrops() (uint64, error)
	// ExpressUnfit are frames that no path can take, by reason.
	ExpressUnfit() (map[string]uint64, error)
	Counters() (datapath.Counters, error)
}

// Express is the mechanism.
type Express struct {
	mechanism.Base
	host     Host
	dp       Kernel
	mode     governor.Mode
	landing  landing
	watchers *shortcut.Watchers // nil while it does not act
	// evaluates checks each path from a NIC to a pod.
	evaluates func(eligibility) ([]*path, error)
	paths     []*path // as last evaluated
	// open are the paths that flows may take, closing those that they are leaving.
	open    map[datapath.ExpressKey]opened
	closing map[datapath.ExpressKey]leaving

	since   time.Time // when it began to act, or ceased to
	checked time.Time
	check   mechanism.Check
	retry   time.Time
	err     error // why the last attempt to put it in place failed
	said    mechanism.Told
	dropped uint64
	recheck recheck

	// wanted: frames are to take the paths that are safe, and a program is to be on the NICs for that.
	wanted  bool
	gov     governor.Express // whether, where nothing forces it
	trial   *trial.Trial
	layout  string              // what the trial is held against
	without float64             // frames a second that were delivered then
	census  datapath.FlowCounts // under way, or nil
	meter   trial.Meter
	acted   uint64 // frames that had gone straight to pods at the last count
	of      uint64 // of so many
}

// opened is what a path was when it was opened.
type opened struct {
	host  node.DevKey
	lands plan.Target // the pod's end
	to    datapath.ExpressPath
}

// leaving is a path that flows are leaving.
type leaving struct {
	since time.Time
	lands plan.Target
}

const (
	// closeAfter is by when every flow has left a path that is withdrawn.
	closeAfter = 100 * time.Millisecond
	// settles is how long it takes in a trial until flows are on their paths, or have left
	// them: one that has left takes its path again after 100 ms (OL_EXPRESS_PAUSE_NS), of which the
	// windows without it are most.
	settles = 60 * time.Millisecond
)

// New is the mechanism of a daemon that began then.
func New(host Host, dp Kernel, mode governor.Mode, began time.Time) *Express {
	t := trial.New(name, trial.ForGoodput, settles)
	return &Express{host: host, dp: dp, mode: mode, evaluates: eligibility.paths, trial: t, since: began}
}

// Configure changes its mode, from the next step on.
func (e *Express) Configure(mode governor.Mode) { e.mode = mode }

// Tries is mechanism.Mechanism's.
func (e *Express) Tries() []*trial.Trial { return []*trial.Trial{e.trial} }

// Acts tells whether there may be paths, or settings for them.
func (e *Express) Acts() bool { return e.watchers != nil }

// Tracing is mechanism.Mechanism's.
func (e *Express) Tracing() mechanism.Tracing { return mechanism.Tracing{Always: e.Acts()} }

// Steers is mechanism.Mechanism's.
func (e *Express) Steers() mechanism.Steering {
	if e.Acts() {
		return mechanism.Kept
	}
	return mechanism.NotSteered
}

// HasPaths tells whether flows may go straight to pods now.
func (e *Express) HasPaths() bool { return len(e.open) > 0 }

// Changed is mechanism.Mechanism's: what speaks for and against paths may be otherwise.
func (e *Express) Changed() <-chan struct{} { return e.watchers.Changed() }

// Rescanned is mechanism.Mechanism's: the next step checks all of the node.
func (e *Express) Rescanned(context.Context) error {
	e.check.Again()
	return nil
}

// Step is mechanism.Mechanism's: decide, act.
func (e *Express) Step(ctx context.Context, now time.Time) error {
	if e.mode == governor.Off {
		_, err := e.Stop(ctx)
		return err
	}
	if e.mode == governor.Forced {
		if err := e.forget(); err != nil {
			return err
		}
		e.wanted = true
	}
	active, err := e.host.Awake(now)
	if err != nil {
		return err
	}
	active = (active || e.mode == governor.Forced) && now.After(e.retry)
	switch {
	case !active && e.watchers == nil:
	case !active:
		e.host.Log().Info("express standby", "mechanism", name, "reason", "hardly a packet comes")
		_, err := e.Stop(ctx)
		return err
	case e.watchers == nil || e.check.Due(now) || len(e.closing) > 0:
		return e.Follow(ctx, now)
	}
	return nil
}

// Polls is mechanism.Mechanism's: there are paths that flows may be on.
func (e *Express) Polls() bool { return len(e.open)+len(e.closing) > 0 }

// Follow is mechanism.Mechanism's: it makes it fit the node; where that fails, it leaves no trace.
func (e *Express) Follow(ctx context.Context, now time.Time) error {
	defer e.host.Begins(name)()
	before := len(e.open)
	if e.err = e.follow(ctx, now); e.err != nil {
		e.retry = now.Add(mechanism.RetryAfter)
		e.said = mechanism.Told{}
		e.host.Log().Error("express could not be put in place", "mechanism", name, "reason", e.err, "again_in", mechanism.RetryAfter)
		_, err := e.Stop(ctx)
		return err
	}
	if n := len(e.open); n != before {
		e.host.Log().Info("express paths", "mechanism", name, "open", n, "were", before)
	}
	return nil
}

// Poll is mechanism.Mechanism's. It looks for frames that do not arrive as well.
func (e *Express) Poll(ctx context.Context, now time.Time) error {
	drops, err := e.dp.ExpressDrops()
	if err != nil {
		return err
	}
	dropped := drops != e.dropped
	e.dropped = drops
	if !e.recheck.due(dropped, now.Sub(e.checked)) && !e.watchers.Poll() {
		return nil
	}
	return e.Follow(ctx, now)
}

// recheck is about paths that drop frames. A landing that is gone drops all, and a pod that does not
// keep up some: the longer it goes on, the likelier is that, and an evaluation costs.
type recheck struct{ wait time.Duration }

// due tells whether the paths are to be evaluated again, so long since they were.
func (d *recheck) due(dropped bool, since time.Duration) bool {
	if !dropped {
		d.wait = 0
		return false
	}
	if since < d.wait {
		return false
	}
	d.wait = min(max(2*d.wait, shortcut.PollEvery), mechanism.CheckEvery)
	return true
}

// follow evaluates each path anew, and has frames take those that are safe.
func (e *Express) follow(ctx context.Context, now time.Time) error {
	if e.watchers == nil {
		e.watchers = e.host.Watchers()
		e.open, e.closing = map[datapath.ExpressKey]opened{}, map[datapath.ExpressKey]leaving{}
		e.since = now
	}
	e.checked = now
	began := time.Now()
	made, safe, err := e.evaluate(now)
	e.check.Made(began)
	if err != nil {
		return err
	}
	for k, l := range e.closing {
		if now.Sub(l.since) < closeAfter {
			delete(safe, k)
			continue
		}
		if err := e.dp.ClosePath(k); err != nil {
			return err
		}
		delete(e.closing, k)
	}
	err = errors.Join(e.openAll(ctx, made, safe), e.leaveLandings())
	if len(e.closing) == 0 {
		err = errors.Join(err, e.host.Places().ReleaseUnfit(xdp.Express))
	}
	return err
}

// evaluate withdraws the paths that are no longer safe, before anything else is done. It returns
// those that are, and what it takes to have frames take them.
func (e *Express) evaluate(now time.Time) (made plan.Plan, safe map[datapath.ExpressKey]path, err error) {
	l := e.eligibility()
	e.paths, err = e.evaluates(l)
	made = l.plan(e.paths, e.host.AggregationMode() != governor.Off && e.landing.joins(e.host, now))
	safe = map[datapath.ExpressKey]path{}
	for _, w := range e.paths {
		if w.reason == "" {
			safe[w.key] = *w
		}
	}
	for k, o := range e.open {
		if has(safe, k) {
			continue
		}
		err = errors.Join(err, e.dp.WithdrawPath(k))
		delete(e.open, k)
		e.closing[k] = leaving{since: now, lands: o.lands}
	}
	return made, safe, errors.Join(err, e.dp.FixSenders(fixedSenders(e.paths)))
}

// fixedSenders are those of all tunnels with paths.
func fixedSenders(paths []*path) map[datapath.Sender]netip.Addr {
	all, seen := map[datapath.Sender]netip.Addr{}, map[node.DevKey]bool{}
	for _, w := range paths {
		if w.reason != "" || seen[w.tunnel.Key()] {
			continue
		}
		seen[w.tunnel.Key()] = true
		for mac, host := range w.fixed {
			all[datapath.Sender{VNI: w.key.VNI, Port: w.key.Port, MAC: mac}] = host
		}
	}
	return all
}

// Meanwhile is mechanism.Mechanism's: it withdraws paths that are no longer safe.
func (e *Express) Meanwhile(now time.Time) {
	if len(e.open) == 0 || !e.watchers.Stale(now) {
		return
	}
	e.check.Again() // the rest follows as soon as there is time
	if _, _, err := e.evaluate(now); err != nil {
		e.host.Log().Warn("express paths could not be evaluated", "mechanism", name, "reason", err)
	}
}

func has[K comparable, V any](m map[K]V, k K) bool { _, ok := m[k]; return ok }

// openAll has frames take the paths that are safe.
func (e *Express) openAll(ctx context.Context, made plan.Plan, safe map[datapath.ExpressKey]path) error {
	if len(safe) == 0 || !e.wanted {
		return nil
	}
	refused, err := e.host.CarryOut(made.Steps)
	if err != nil {
		return err
	}
	for _, w := range e.paths {
		if why := refused[plan.Target(w.pod.Peer)]; why != "" && w.reason == "" {
			w.reason = "left alone: " + why
			delete(safe, w.key)
		}
	}
	fresh := false
	for _, w := range safe {
		planned := func(at plan.Attachment) bool { return at.Target == plan.Target(w.nic.Dev) }
		if e.hooked(w.nic) || !slices.ContainsFunc(made.Attach, planned) {
			continue
		}
		var left *xdp.Left
		err := e.host.Places().Take(w.nic, wanted(e.mode), func() (io.Closer, error) { return e.host.Attach(w.nic.Dev, e.dp.AttachXDP) })
		if err != nil && !errors.As(err, &left) && !errors.Is(err, node.ErrGone) {
			return err
		}
		fresh = fresh || e.hooked(w.nic)
	}
	if fresh {
		// What came before the hook must not be overtaken. It takes a while: then the paths are
		// evaluated again.
		if err := e.host.Passed(ctx); err != nil {
			e.host.Log().Debug("packets from before the hook may still be on their way", "reason", err)
		}
		e.check.Again()
		return nil
	}
	for k, w := range safe {
		if !e.hooked(w.nic) {
			continue // gone since the scan, or left alone
		}
		as := opened{w.pod.Host.Key(), plan.Target(w.pod.Peer), w.to}
		if e.open[k] == as {
			continue
		}
		err := e.openOne(k, w)
		switch {
		case errors.Is(err, node.ErrGone):
			continue
		case errors.Is(err, datapath.ErrTooManyPods):
			e.host.Log().Warn("some pods have no express path", "mechanism", name, "reason", err)
			continue
		case err != nil:
			return err
		}
		e.open[k] = as
	}
	return e.dp.SetExpress(true)
}

func (e *Express) openOne(k datapath.ExpressKey, w path) error {
	host, err := e.host.Scanner().Namespace(w.pod.Host.NetnsCookie)
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := e.host.Scanner().Namespace(w.pod.Peer.NetnsCookie)
	if err != nil {
		return err
	}
	defer pod.Close()
	w.to.Host = datapath.Device{Netns: host, Ifindex: w.pod.Host.Ifindex}
	w.to.Pod = datapath.CellDevice{Ifindex: w.pod.Peer.Ifindex, NetnsIno: pod.Inode()}
	return e.dp.AddPath(k, w.to)
}

// leaveLandings takes back what no path needs any more.
func (e *Express) leaveLandings() error {
	needed := map[plan.Target]bool{}
	for _, w := range e.paths {
		if w.reason == "" && e.wanted {
			needed[plan.Target(w.pod.Peer)] = true
		}
	}
	// A path with a reason against it has no key, and of a pod that left its bridge there is none.
	for _, l := range e.closing {
		needed[l.lands] = true
	}
	_, err := e.host.RestoreUnneeded(plan.ByExpress, func(s plan.Setting) bool { return needed[s.Target] })
	return err
}

// Stop is mechanism.Mechanism's.
func (e *Express) Stop(ctx context.Context) (rep apply.Report, err error) {
	if e.watchers == nil {
		return rep, nil
	}
	rep, err = e.leave(ctx)
	err = errors.Join(err, e.forget(), e.watchers.Close())
	e.watchers, e.paths, e.open, e.closing = nil, nil, nil, nil
	e.since = time.Now()
	return rep, err
}

// leave has all flows leave their paths, and takes back what it took to have them there: settings,
// and the program on the NICs where nothing else needs it.
func (e *Express) leave(ctx context.Context) (rep apply.Report, err error) {
	e.wanted = false
	for k := range e.open {
		err = errors.Join(err, e.dp.WithdrawPath(k))
		e.closing[k] = leaving{}
	}
	if len(e.closing) > 0 {
		// Frames that are on their way land before their landing is taken away.
		select {
		case <-time.After(closeAfter):
		case <-ctx.Done():
		}
	}
	for k := range e.closing {
		err = errors.Join(err, e.dp.ClosePath(k))
	}
	clear(e.open)
	clear(e.closing)
	rep, r := e.host.Restore(plan.ByExpress, nil)
	return rep, errors.Join(err, e.dp.SetExpress(false), e.dp.HoldExpress(false), r, e.host.Places().ReleaseAll(xdp.Express))
}

// forget ends what finds out whether it pays.
func (e *Express) forget() error {
	e.trial.Leave()
	e.gov = governor.Express{}
	e.meter = trial.Meter{}
	return errors.Join(mechanism.EndCensus(&e.census), e.dp.CountUnread(false), e.dp.HoldExpress(false))
}

// Decide is mechanism.Mechanism's. Frames take the paths only where that has shown that it pays, against what the node
// has without it, and as long as it does.
func (e *Express) Decide(ctx context.Context, in governor.Input) error {
	if e.mode != governor.Auto || e.watchers == nil {
		return nil
	}
	w, err := e.window(in)
	if err != nil {
		return err
	}
	if e.gov.Last().State != governor.Active {
		e.layout = e.beside()
		if why, yes := e.trial.Judge.Bars(in.Now, e.situation(in)); yes {
			e.gov.Refuse(in.Now, why)
		}
	}
	switch e.gov.Step(in.Now, w).State {
	case governor.Parked:
		err = e.measureBefore(in.Now)
	case governor.Active:
		err = e.tryOut(in)
	}
	if err != nil {
		e.host.Log().Warn("whether express pays could not be found out", "reason", err)
		e.gov.Refuse(in.Now, err.Error())
	}
	dec := e.gov.Last()
	e.said.Decided(e.host.Log(), name, dec, e.HasPaths(), true)
	switch {
	case dec.State == governor.Active && !e.wanted:
		e.wanted = true
		e.check.Again()
		return e.dp.HoldExpress(true) // until the trial has flows take their paths
	case dec.State == governor.Standby:
		e.trial.Leave()
		err = errors.Join(mechanism.EndCensus(&e.census), e.dp.CountUnread(false))
		if e.wanted {
			_, l := e.leave(ctx)
			err = errors.Join(err, l)
			e.since = time.Now()
		}
		return err
	}
	return nil
}

// window is what there was to see since the last one.
func (e *Express) window(in governor.Input) (w governor.ExpressWindow, err error) {
	w.Saturated, w.Paths = in.ShortOfTime(), e.fit()
	if other := e.host.Trials().Trying(); other != nil && other != e.trial || e.host.Aggregation() == governor.Parked {
		w.Unsettled = true
	}
	if e.gov.Last().State != governor.Active {
		return w, nil
	}
	acted, of := e.acted, e.of
	err = e.count()
	w.Straight, w.Overlay = e.acted-acted, e.of-of
	return w, err
}

// count takes over how many frames have gone straight to pods. An error leaves what was counted last.
func (e *Express) count() error {
	c, err := e.dp.Counters()
	if err != nil {
		return err
	}
	acted, of, err := e.straight(c)
	if err == nil {
		e.acted, e.of = acted, of
	}
	return err
}

// fit is how many paths flows may take, or as soon as the pipeline lets them.
func (e *Express) fit() (n int) {
	for _, w := range e.paths {
		if w.fits() {
			n++
		}
	}
	return n
}

// beside names what the node has without it.
func (e *Express) beside() string {
	if e.host.Aggregation() == governor.Active {
		return "express for aggregate"
	}
	return "express"
}

func (e *Express) situation(in governor.Input) governor.Situation {
	in.Layout = governor.Layout{}
	s := trial.Situation(in)
	s.Layout, s.Without = e.layout, e.without
	return s
}

// straight tells how many frames went straight to pods.
func (e *Express) straight(c datapath.Counters) (acted, of uint64, err error) {
	p, err := e.host.PriorityCounters()
	return c.Express, max(c.XDPOverlay, c.Express+p.Latency+p.Bulk), err
}

// measureBefore counts the datagrams that come out of the tunnels, and measures what is delivered
// without it.
func (e *Express) measureBefore(now time.Time) (err error) {
	switch {
	case e.gov.Counting() && e.census == nil:
		e.census, err = e.host.BeginCensus()
	case !e.gov.Over(now):
	case e.gov.Counting():
		packets, udp, err := datagrams(e.census)
		err = errors.Join(err, mechanism.EndCensus(&e.census))
		if err != nil || e.gov.Counted(now, packets, udp).State != governor.Parked {
			return err
		}
		if err := e.dp.CountUnread(true); err != nil {
			return err
		}
		sum, err := e.host.Trials().Count(e.straight, nil)
		e.meter.Begin(sum)
		return err
	default:
		sum, err := e.host.Trials().Count(e.straight, nil)
		if err != nil {
			return err
		}
		e.without = e.meter.Window(sum, false).Delivered()
		if err := e.count(); err != nil {
			return err
		}
		e.gov.Measured(now)
	}
	return err
}

// tryOut lets it show whether it pays, once paths are open.
func (e *Express) tryOut(in governor.Input) error {
	s := e.situation(in)
	switch {
	case len(e.open) == 0:
		if e.gov.Late(in.Now) {
			e.gov.Refuse(in.Now, "no express path could be opened")
		}
		return nil
	case e.trial.Judge.Stale(in.Now, s):
		e.gov.Again(in.Now, "it is measured from the beginning whether it still pays")
		return nil
	}
	acts, err := e.host.Trials().Try(e.trial, in, s, e.straight, nil)
	if err != nil {
		return err
	}
	if why, yes := e.trial.Judge.Bars(in.Now, s); yes {
		e.gov.Refuse(in.Now, why)
		return nil
	}
	return e.dp.HoldExpress(!acts)
}

// Report is mechanism.Mechanism's.
func (e *Express) Report() []control.Mechanism {
	m := control.Mechanism{Name: name, State: control.Standby, Since: e.since, Trying: e.gov.Last().State == governor.Parked}
	switch {
	case e.mode == governor.Off:
		m.State, m.Reason = control.Off, "switched off by configuration"
	case e.err != nil:
		m.Reason = fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, e.err)
	case len(e.paths) == 0 && e.host.Snapshot().LacksPod() != "":
		m.Reason = e.host.Snapshot().LacksPod()
	case e.watchers == nil:
		m.Reason = "hardly a packet comes"
	case len(e.paths) == 0:
		m.Reason = "the paths to pods are not evaluated yet"
	case e.fit() == 0:
		m.Reason = "no express path is open: " + e.paths[0].reason
	case !e.wanted:
		m.Reason = e.gov.Last().Reason
	default:
		m.State, m.Reason = control.Active, fmt.Sprintf("%d of %d express paths from NICs to pods are open", len(e.open), len(e.paths))
	}
	if why := e.trial.Reason(); e.wanted && why != "" {
		m.Reason += "; " + why
	}
	return []control.Mechanism{m}
}

// Drops is mechanism.Mechanism's: for what found no room at a pod, or at its socket.
func (e *Express) Drops(c datapath.Counters) (uint64, error) { return c.ExpressDrop + c.Unread, nil }

// Fill is mechanism.Mechanism's.
func (e *Express) Fill(st *control.Status, called names.Names) error {
	for _, w := range e.paths {
		st.Express = append(st.Express, control.ExpressPath{
			NIC: w.nic.Name, Tunnel: w.tunnel.Name, Pod: w.pod.Host.Name, Netns: w.pod.Host.NetnsCookie, Name: called.Pod(w.pod),
			Open: w.reason == "" && has(e.open, w.key), Reason: called.Text(w.reason),
		})
	}
	c, err := e.dp.Counters()
	if err != nil {
		return err
	}
	n := &st.Counters
	n.ExpressPackets, n.ExpressLeft, n.ExpressDrops = c.Express, c.ExpressLeft, c.ExpressDrop
	n.ExpressUnfit, err = e.dp.ExpressUnfit()
	return err
}

// Close is mechanism.Mechanism's.
func (e *Express) Close() error { return e.host.Places().ReleaseAll(xdp.Express) }

// Claims tells whether a pod's packets come, or are to come, straight from the NIC.
func (e *Express) Claims(p node.Pod) bool {
	return e.wanted && slices.ContainsFunc(e.paths, func(w *path) bool { return w.pod.Peer.Same(p.Peer) && w.fits() })
}
