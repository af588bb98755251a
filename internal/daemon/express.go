// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// express hands frames from the NICs straight to the pods' veths, where nothing on the way there
// could tell.
type express struct {
	watchers *shortcut.Watchers // nil while it does not act
	ways     []way              // as last judged
	// open are the ways that flows may take, closing those that they are leaving.
	open    map[datapath.ExpressKey]opened
	closing map[datapath.ExpressKey]leaving

	since   time.Time // when it began to act, or ceased to
	checked time.Time
	check   mechanism.Check
	retry   time.Time
	err     error // why the last attempt to put it in place failed
	dropped uint64
	doubt   doubt

	// wanted: frames are to take the ways that are safe, and a program is to be on the NICs for that.
	wanted  bool
	gov     governor.Express // whether, where nothing forces it
	trial   *trial.Trial
	layout  string  // what the trial is held against
	without float64 // frames a second that were delivered then
	census  *census // under way, or nil
	meter   trial.Meter
	counted datapath.Counters         // at the last look
	prio    datapath.PriorityCounters // the same
}

// opened is what a way was when it was opened.
type opened struct {
	host, pod node.DevKey
	lands     plan.Target // the pod's end
	to        datapath.ExpressWay
}

// leaving is a way that flows are leaving.
type leaving struct {
	since time.Time
	lands plan.Target
}

const (
	// closeAfter is by when every flow has left a way that is withdrawn.
	closeAfter = 100 * time.Millisecond
	// expressSettles is how long it takes in a trial until flows are on their ways, or have left
	// them: one that has left takes its way again after 100 ms (OL_EXPRESS_PAUSE_NS), of which the
	// windows without it are most.
	expressSettles = 60 * time.Millisecond
)

// stepExpress takes one window: decide, act.
func (d *Daemon) stepExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	if d.opts.Express == governor.Off {
		_, err := d.stopExpress(ctx)
		return err
	}
	if d.opts.Express == governor.Forced {
		if err := e.forget(d.dp); err != nil {
			return err
		}
		e.wanted = true
	}
	active, err := d.isAwake(now)
	if err != nil {
		return err
	}
	active = (active || d.opts.Express == governor.Forced) && now.After(e.retry)
	switch {
	case !active && e.watchers == nil:
	case !active:
		d.log.Info("express standby", "mechanism", "express", "reason", "hardly a packet comes")
		_, err := d.stopExpress(ctx)
		return err
	case e.watchers == nil || e.check.Due(now) || len(e.closing) > 0:
		return d.tryExpress(ctx, now)
	}
	return nil
}

// glancing tells whether there are ways that flows may be on.
func (e *express) glancing() bool { return len(e.open)+len(e.closing) > 0 }

// tryExpress makes it fit the node; where that fails, it leaves no trace.
func (d *Daemon) tryExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	defer d.begins("express")()
	before := len(e.open)
	if e.err = d.followExpress(ctx, now); e.err != nil {
		e.retry = now.Add(mechanism.RetryAfter)
		d.log.Error("express could not be put in place", "mechanism", "express", "reason", e.err, "again_in", mechanism.RetryAfter)
		_, err := d.stopExpress(ctx)
		return err
	}
	if n := len(e.open); n != before {
		d.log.Info("express ways", "mechanism", "express", "open", n, "were", before)
	}
	return nil
}

// glanceExpress looks for what makes no event, and for frames that do not arrive.
func (d *Daemon) glanceExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	drops, err := d.dp.ExpressDrops()
	if err != nil {
		return err
	}
	dropped := drops != e.dropped
	e.dropped = drops
	if !e.doubt.raised(dropped, now.Sub(e.checked)) && !e.watchers.Poll() {
		return nil
	}
	return d.tryExpress(ctx, now)
}

// doubt is about ways that drop frames. A landing that is gone drops all, and a pod that does not
// keep up some: the longer it goes on, the likelier is that, and to judge costs.
type doubt struct{ wait time.Duration }

// raised tells whether the ways are to be judged again, so long since they were.
func (d *doubt) raised(dropped bool, since time.Duration) bool {
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

// followExpress judges each way anew, and has frames take those that are safe.
func (d *Daemon) followExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	if e.watchers == nil {
		e.watchers = d.newWatchers()
		e.open, e.closing = map[datapath.ExpressKey]opened{}, map[datapath.ExpressKey]leaving{}
		e.since = now
	}
	e.checked = now
	began := time.Now()
	made, safe, err := d.judgeWays(now)
	e.check.Made(began)
	if err != nil {
		return err
	}
	for k, l := range e.closing {
		if now.Sub(l.since) < closeAfter {
			delete(safe, k)
			continue
		}
		if err := d.dp.CloseWay(k); err != nil {
			return err
		}
		delete(e.closing, k)
	}
	return errors.Join(d.openWays(ctx, made, safe), d.leaveLandings())
}

// judgeWays withdraws the ways that are no longer safe, before anything else is done. It returns
// those that are, and what it takes to have frames take them.
func (d *Daemon) judgeWays(now time.Time) (made plan.Plan, safe map[datapath.ExpressKey]way, err error) {
	e := &d.expr
	l := d.lookout()
	e.ways, err = l.ways()
	in := l.input(e.ways)
	in.Join = d.opts.Aggregate != governor.Off && d.landing.joins(d, now)
	made = plan.Express(in)
	same := map[datapath.ExpressKey]int{}
	for i := range e.ways {
		w := &e.ways[i]
		at := slices.IndexFunc(made.Skipped, func(s plan.Skip) bool { return s.Target == target(w.pod.Peer) })
		if at >= 0 && w.reason == "" {
			w.reason = made.Skipped[at].Reason
		}
		if w.reason == "" {
			same[w.key]++
		}
	}
	fixed := fixedSenders(e.ways)
	safe = map[datapath.ExpressKey]way{}
	for i := range e.ways {
		w := &e.ways[i]
		switch {
		case w.reason != "":
		case len(w.fixed) > 0 && len(fixed) > datapath.MaxSenders:
			w.reason = fmt.Sprintf("the tunnels were told where more than %d senders are", datapath.MaxSenders)
		case same[w.key] > 1:
			w.reason = "another tunnel with the same number and port leads to a pod with the same address"
		default:
			safe[w.key] = *w
		}
	}
	for k, o := range e.open {
		if has(safe, k) {
			continue
		}
		err = errors.Join(err, d.dp.WithdrawWay(k))
		delete(e.open, k)
		e.closing[k] = leaving{since: now, lands: o.lands}
	}
	if len(fixed) > datapath.MaxSenders {
		fixed = nil
	}
	return made, safe, errors.Join(err, d.dp.FixSenders(fixed))
}

// fixedSenders are those of all tunnels with ways.
func fixedSenders(ways []way) map[datapath.Sender]netip.Addr {
	all, seen := map[datapath.Sender]netip.Addr{}, map[node.DevKey]bool{}
	for _, w := range ways {
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

// watchWays withdraws ways that are no longer safe, while the daemon waits for something else.
func (d *Daemon) watchWays() {
	e := &d.expr
	if len(e.open) == 0 {
		return
	}
	now := time.Now()
	if !e.watchers.Stale(now) {
		return
	}
	e.check.Again() // the rest follows as soon as there is time
	if _, _, err := d.judgeWays(now); err != nil {
		d.log.Warn("express ways could not be judged", "mechanism", "express", "reason", err)
	}
}

func has[K comparable, V any](m map[K]V, k K) bool { _, ok := m[k]; return ok }

// openWays has frames take the ways that are safe.
func (d *Daemon) openWays(ctx context.Context, made plan.Plan, safe map[datapath.ExpressKey]way) error {
	e := &d.expr
	if len(safe) == 0 || !e.wanted {
		return nil
	}
	refused, err := d.carryOutEach(made.Steps)
	if err != nil {
		return err
	}
	for i := range e.ways {
		if why := refused[target(e.ways[i].pod.Peer)]; why != "" && e.ways[i].reason == "" {
			e.ways[i].reason = why
			delete(safe, e.ways[i].key)
		}
	}
	fresh := false
	for _, w := range safe {
		// Beside priority it is priority's that does this, where that has one.
		if d.hooked(w.nic) || d.prio.onNIC() {
			continue
		}
		var left *xdp.Left
		err := d.places.Take(w.nic, expressWant(d.opts.Express), func() (io.Closer, error) { return d.pipe.hang(w.nic.Dev, d.dp.AttachXDP) })
		if err != nil && !errors.As(err, &left) && !errors.Is(err, node.ErrGone) {
			return err
		}
		fresh = fresh || d.hooked(w.nic)
	}
	if fresh {
		// What came before the hook must not be overtaken. It takes a while: then the ways are
		// judged again.
		if err := d.pipe.passed(ctx, graceTimeout); err != nil {
			d.log.Debug("packets from before the hook may still be on their way", "reason", err)
		}
		e.check.Again()
		return nil
	}
	for k, w := range safe {
		if !d.hooked(w.nic) {
			continue // gone since the scan, or left alone
		}
		as := opened{w.pod.Host.Key(), w.pod.Peer.Key(), target(w.pod.Peer), w.to}
		if e.open[k] == as {
			continue
		}
		err := d.openWay(k, w)
		switch {
		case errors.Is(err, node.ErrGone):
			continue
		case errors.Is(err, datapath.ErrTooManyPods):
			d.log.Warn("some pods have no express path", "mechanism", "express", "reason", err)
			continue
		case err != nil:
			return err
		}
		e.open[k] = as
	}
	return d.dp.SetExpress(true)
}

func (d *Daemon) openWay(k datapath.ExpressKey, w way) error {
	host, err := d.scanner.Namespace(w.pod.Host.NetnsCookie)
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := d.scanner.Namespace(w.pod.Peer.NetnsCookie)
	if err != nil {
		return err
	}
	defer pod.Close()
	w.to.Host = datapath.Device{Netns: host, Ifindex: w.pod.Host.Ifindex}
	w.to.Pod = datapath.CellDevice{Ifindex: w.pod.Peer.Ifindex, NetnsIno: pod.Inode()}
	return d.dp.AddWay(k, w.to)
}

// leaveLandings takes back what no way needs any more.
func (d *Daemon) leaveLandings() error {
	needed := map[plan.Target]bool{}
	for _, w := range d.expr.ways {
		if w.reason == "" && d.expr.wanted {
			needed[target(w.pod.Peer)] = true
		}
	}
	// Who stands in a way has no key, and of a pod that left its bridge there is no way.
	for _, l := range d.expr.closing {
		needed[l.lands] = true
	}
	// The watchers see a pod go before the next scan does.
	err := d.locked.Forget(func(e apply.Entry) bool {
		return e.By == plan.ByExpress && !needed[e.Target] && d.pipe.gone(e.Target)
	})
	// A pod's namespace that is not found any more is about to go, and its device with it; or the
	// next scan finds it by another path.
	found := map[uint64]bool{}
	over := func(s plan.Setting) bool {
		if needed[s.Target] {
			return false
		}
		if !has(found, s.NetnsCookie) {
			found[s.NetnsCookie] = d.pipe.found(s.NetnsCookie)
		}
		return found[s.NetnsCookie]
	}
	if slices.ContainsFunc(slices.Collect(maps.Keys(d.owned(plan.ByExpress))), over) {
		_, e := d.restore(plan.ByExpress, over)
		err = errors.Join(err, e)
	}
	return err
}

// stopExpress leaves no trace of it.
func (d *Daemon) stopExpress(ctx context.Context) (rep apply.Report, err error) {
	e := &d.expr
	if e.watchers == nil {
		return rep, nil
	}
	rep, err = d.leaveWays(ctx)
	err = errors.Join(err, e.forget(d.dp), e.watchers.Close())
	e.watchers, e.ways, e.open, e.closing = nil, nil, nil, nil
	e.since = time.Now()
	return rep, err
}

// leaveWays has all flows leave their ways, and takes back what it took to have them there: settings,
// and the program on the NICs where nothing else needs it.
func (d *Daemon) leaveWays(ctx context.Context) (rep apply.Report, err error) {
	e := &d.expr
	e.wanted = false
	for k := range e.open {
		err = errors.Join(err, d.dp.WithdrawWay(k))
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
		err = errors.Join(err, d.dp.CloseWay(k))
	}
	clear(e.open)
	clear(e.closing)
	rep, r := d.restore(plan.ByExpress, nil)
	return rep, errors.Join(err, d.dp.SetExpress(false), d.dp.HoldExpress(false), r, d.places.ReleaseAll(xdp.Express))
}

// forget ends what finds out whether it pays.
func (e *express) forget(dp *datapath.Datapath) error {
	e.trial.Leave()
	e.gov = governor.Express{}
	err := errors.Join(e.census.end(), dp.CountUnread(false), dp.HoldExpress(false))
	e.census, e.meter = nil, trial.Meter{}
	return err
}

// proveExpress has frames take the ways only where that has shown that it pays, against what the node
// has without it, and as long as it does.
func (d *Daemon) proveExpress(ctx context.Context, in governor.Input) error {
	e := &d.expr
	if d.opts.Express != governor.Auto || e.watchers == nil {
		return nil
	}
	before := e.gov.Last()
	w, err := d.expressWindow(in)
	if err != nil {
		return err
	}
	if e.gov.Last().State != governor.Active {
		e.layout = d.besideExpress()
		if why, yes := e.trial.Judge.Bars(in.Now, d.expressSituation(in)); yes {
			e.gov.Refuse(in.Now, why)
		}
	}
	switch e.gov.Step(in.Now, w).State {
	case governor.Parked:
		err = d.lookBeforeExpress(in.Now)
	case governor.Active:
		err = d.tryExpressOut(in)
	}
	if err != nil {
		d.log.Warn("whether express pays could not be found out", "reason", err)
		e.gov.Refuse(in.Now, err.Error())
	}
	dec := e.gov.Last()
	mechanism.Decided(d.log, "express", before, dec)
	switch {
	case dec.State == governor.Active && !e.wanted:
		e.wanted = true
		e.check.Again()
		return d.dp.HoldExpress(true) // until the trial has flows take their ways
	case dec.State == governor.Standby:
		e.trial.Leave()
		err = errors.Join(e.census.end(), d.dp.CountUnread(false))
		e.census = nil
		if e.wanted {
			_, l := d.leaveWays(ctx)
			err = errors.Join(err, l)
			e.since = time.Now()
		}
		return err
	}
	return nil
}

// expressWindow is what there was to see since the last one.
func (d *Daemon) expressWindow(in governor.Input) (w governor.ExpressWindow, err error) {
	e := &d.expr
	w.Saturated = shortOfTime(in)
	for _, way := range e.ways {
		if way.reason == "" || way.waits {
			w.Ways++
		}
	}
	if other := d.trials.Trying(); other != nil && other != e.trial || d.aggr.State() == governor.Parked {
		w.Unsettled = true
	}
	if e.gov.Last().State != governor.Active {
		return w, nil
	}
	c, err := d.dp.Counters()
	if err != nil {
		return w, err
	}
	p, err := d.priorityCounters()
	if err != nil {
		return w, err
	}
	acted, of := straight(c, p)
	was, all := straight(e.counted, e.prio)
	e.counted, e.prio = c, p
	w.Straight, w.Overlay = acted-was, of-all
	return w, nil
}

// besideExpress names what the node has without it.
func (d *Daemon) besideExpress() string {
	if d.aggr.State() == governor.Active {
		return "express for aggregate"
	}
	return "express"
}

func (d *Daemon) expressSituation(in governor.Input) governor.Situation {
	in.Layout = governor.Layout{}
	s := trial.Situation(in)
	s.Layout, s.Without = d.expr.layout, d.expr.without
	return s
}

// straight tells how many frames went straight to pods.
func straight(c datapath.Counters, p datapath.PriorityCounters) (acted, of uint64) {
	return c.Express, max(c.XDPOverlay, c.Express+p.Latency+p.Bulk)
}

// lookBeforeExpress counts the datagrams that come out of the tunnels, and measures what is delivered
// without it.
func (d *Daemon) lookBeforeExpress(now time.Time) (err error) {
	e := &d.expr
	switch {
	case e.gov.Counting() && e.census == nil:
		e.census, err = d.beginCensus()
	case !e.gov.Over(now):
	case e.gov.Counting():
		packets, udp, err := e.census.datagrams()
		err = errors.Join(err, e.census.end())
		e.census = nil
		if err != nil || e.gov.Counted(now, packets, udp).State != governor.Parked {
			return err
		}
		if err := d.dp.CountUnread(true); err != nil {
			return err
		}
		sum, err := d.total(straight, nil)
		e.meter.Begin(sum)
		return err
	default:
		sum, err := d.total(straight, nil)
		if err != nil {
			return err
		}
		e.without = e.meter.Window(sum, false).Delivered()
		e.counted, err = d.dp.Counters()
		if err != nil {
			return err
		}
		e.prio, err = d.priorityCounters()
		e.gov.Measured(now)
		return err
	}
	return err
}

// tryExpressOut lets it show whether it pays, once ways are open.
func (d *Daemon) tryExpressOut(in governor.Input) error {
	e := &d.expr
	s := d.expressSituation(in)
	switch {
	case len(e.open) == 0:
		if e.gov.Late(in.Now) {
			e.gov.Refuse(in.Now, "no way could be opened")
		}
		return nil
	case e.trial.Judge.Stale(in.Now, s):
		e.gov.Again(in.Now, "it is looked at from the beginning whether it still pays")
		return nil
	}
	acts, err := d.trials.Try(e.trial, in, s, straight, nil)
	if err != nil {
		return err
	}
	if why, yes := e.trial.Judge.Bars(in.Now, s); yes {
		e.gov.Refuse(in.Now, why)
		return nil
	}
	return d.dp.HoldExpress(!acts)
}

// expressMechanism is what it does.
func (d *Daemon) expressMechanism() control.Mechanism {
	e := &d.expr
	m := control.Mechanism{Name: "express", State: control.Standby, Since: e.since}
	if m.Since.IsZero() {
		m.Since = d.since
	}
	safe := 0
	for _, w := range e.ways {
		if w.reason == "" || w.waits {
			safe++
		}
	}
	switch {
	case d.opts.Express == governor.Off:
		m.State, m.Reason = control.Off, "switched off by configuration"
	case e.err != nil:
		m.Reason = fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, e.err)
	case e.watchers == nil:
		m.Reason = "hardly a packet comes"
	case len(e.ways) == 0:
		m.Reason = "as soon as there is a pod"
	case safe == 0:
		m.Reason = "no way is without a policy or a foreign program: " + e.ways[0].reason
	case !e.wanted:
		m.Reason = e.gov.Last().Reason
	default:
		m.State, m.Reason = control.Active, fmt.Sprintf("%d of %d ways from NICs to pods are open", len(e.open), len(e.ways))
	}
	if why := e.trial.Reason(); e.wanted && why != "" {
		m.Reason += "; " + why
	}
	return m
}

// fillExpress tells of each way whether it is open, and why not.
func (d *Daemon) fillExpress(st *control.Status, names Names) {
	for _, w := range d.expr.ways {
		out := control.ExpressWay{NIC: w.nic.Name, Tunnel: w.tunnel.Name, Pod: w.pod.Host.Name, Netns: w.pod.Host.NetnsCookie, Name: names.Pod(w.pod), Open: w.reason == "" && has(d.expr.open, w.key), Reason: names.Text(w.reason)}
		st.Express = append(st.Express, out)
	}
}

// claims tells whether a pod's packets come, or are to come, straight from the NIC.
func (e *express) claims(p node.Pod) bool {
	return e.wanted && slices.ContainsFunc(e.ways, func(w way) bool { return w.pod.Peer.Same(p.Peer) && (w.reason == "" || w.waits) })
}
