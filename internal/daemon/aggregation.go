// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// aggregation has the underlays join datagrams of one flow that come in a row.
type aggregation struct {
	gov     *governor.Aggregation
	dp      *datapath.Aggregation // nil while it does not act
	counted datapath.AggregateCounters
	at      time.Time                  // counted then
	joins   float64                    // datagrams a second that were joined, in the last window
	past    datapath.AggregateCounters // of the times before
	hooks   map[node.DevKey]io.Closer  // on tunnels
	skipped []plan.Skip
	none    bool // no underlay can
	joined  *joined
	check   mechanism.Check
	looks   mechanism.Pace // at changes of rules
	stirred bool           // rules have changed since the last look
	told    string
	waits   bool // what lanes hold is to be handed on first
	retry   time.Time
	err     error // why the last attempt to put it in place failed
}

// stepAggregation takes one window: count, decide, act.
func (d *Daemon) stepAggregation(now time.Time) error {
	a := &d.aggr
	if d.opts.Aggregate == governor.Off && a.dp == nil {
		a.gov.Step(now, governor.AggregationWindow{})
		return nil
	}
	rate, _, err := d.overlay(now)
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
		w.Packets, w.Datagrams, w.Supers, w.Follows = n.Packets, n.Datagrams, n.Supers, n.Follows
		a.joins = float64(n.Datagrams) / max(now.Sub(a.at).Seconds(), time.Millisecond.Seconds())
		a.counted, a.at, w.Behind = c, now, d.sensor.behind
	}
	before := a.gov.Last()
	dec := before
	// What goes straight to pods no tunnel sees: aggregation stays what express is held against.
	if d.opts.Aggregate != governor.Auto || before.State != governor.Active || len(d.expr.open) == 0 {
		dec = a.gov.Step(now, w)
	}
	if dec.State == governor.Active {
		a.told = ""
	}
	d.decided("aggregate", before, dec)
	switch {
	case dec.State == governor.Standby:
		_, err := d.stopAggregation()
		return err
	case a.dp == nil && now.Before(a.retry):
	case a.dp == nil || dec.State != before.State || a.waits || a.check.Due(now) || a.stirred && a.looks.Due(now):
		return d.tryAggregation(now, true)
	}
	return nil
}

// events tell that rules may be otherwise now; nil while it does not act.
func (a *aggregation) events() <-chan struct{} {
	if a.joined == nil {
		return nil
	}
	return a.joined.watchers.Changed()
}

// rulesChanged looks at rules that may have changed, at once unless they change all the time.
func (d *Daemon) rulesChanged(now time.Time) error {
	d.aggr.stirred = true
	if d.aggr.dp == nil || !d.aggr.looks.Due(now) {
		return nil // with a window that begins soon
	}
	return d.tryAggregation(now, false)
}

// ruleShare is the part of the daemon's time that looking at rules that change may take: 1/100.
const ruleShare = 100

// tryAggregation makes it fit the node; where that fails, it leaves no trace. all: nothing is taken from
// the last look.
func (d *Daemon) tryAggregation(now time.Time, all bool) error {
	defer d.begins("aggregate")()
	a := &d.aggr
	all = all && a.check.Due(now)
	a.stirred = false
	began := time.Now()
	made, owned, err := d.planAggregation(all)
	a.looks.Took(began, ruleShare*time.Since(began)/mechanism.LookShare)
	if all {
		a.check.Made(began)
	}
	if a.err = err; err == nil && a.none && d.opts.Aggregate == governor.Auto && len(made.Skipped) > 0 {
		return d.refuseAggregation(now, made.Skipped)
	}
	if a.err == nil {
		a.err = d.followAggregation(made, owned, a.gov.Last().State == governor.Active)
	}
	if a.err != nil {
		a.retry = now.Add(mechanism.RetryAfter)
		d.log.Error("aggregate could not be put in place", "mechanism", "aggregate", "reason", a.err, "again_in", mechanism.RetryAfter)
		_, err := d.stopAggregation()
		return err
	}
	return nil
}

// refuseAggregation stands by where no device may join datagrams, and says what stands in the way.
func (d *Daemon) refuseAggregation(now time.Time, skipped []plan.Skip) error {
	a := &d.aggr
	before := a.gov.Last()
	why := strings.TrimPrefix(skipped[0].Reason, "left alone: ")
	a.gov.Refuse(now, why)
	if before.State == governor.Active || a.told != why {
		a.told = why
		d.log.Info("aggregate standby", "mechanism", "aggregate", "reason", a.gov.Last().Reason)
	}
	_, err := d.stopAggregation()
	a.skipped = skipped
	return err
}

// planAggregation plans by what is on the node. all: nothing is taken from the last look.
func (d *Daemon) planAggregation(all bool) (plan.Plan, map[plan.Setting]plan.Owned, error) {
	a := &d.aggr
	owned := d.owned(plan.ByAggregation)
	var reasons map[node.DevKey]string
	if d.opts.Aggregate != governor.Forced {
		if a.joined == nil {
			a.joined = newJoined(d.scanner, d.dp.Owns)
			a.joined.watchers = shortcut.NewWatchers(d.scanner, d.dp.Owns, nil)
		}
		var err error
		if reasons, err = a.joined.look(d.snap, all); err != nil {
			return plan.Plan{}, owned, err
		}
	}
	made := plan.Aggregate(AggregateInput(d.scanner, d.snap, owned, reasons))
	a.skipped, a.none = made.Skipped, len(made.Skipped) >= len(receivers(d.snap))+len(d.snap.Tunnels)
	return made, owned, nil
}

// followAggregation carries a plan out. act: packets are joined, or else it is only watched
// whether they could be.
func (d *Daemon) followAggregation(made plan.Plan, owned map[plan.Setting]plan.Owned, act bool) error {
	a := &d.aggr
	if a.dp == nil {
		dp, err := d.dp.LoadAggregation()
		if err != nil {
			return err
		}
		a.dp, a.hooks, a.counted, a.at = dp, map[node.DevKey]io.Closer{}, datapath.AggregateCounters{}, time.Now()
	}
	here := map[plan.Target]bool{}
	for _, dev := range receivers(d.snap) {
		here[target(dev)] = true
	}
	for _, t := range d.snap.Tunnels {
		here[target(t.Dev)] = true
	}
	err := d.locked.Forget(func(e apply.Entry) bool {
		return e.By == plan.ByAggregation && !here[e.Target] && d.pipe.gone(e.Target)
	})
	if err != nil {
		return err
	}
	// Who counts comes first, so that what is aggregated is counted.
	want := map[node.DevKey]bool{}
	var errs []error
	for _, at := range made.Attach {
		want[key(at.Target)] = true
		if a.hooks[key(at.Target)] != nil {
			continue
		}
		dev := node.Dev{NetnsCookie: at.NetnsCookie, Ifindex: at.Ifindex, Name: at.Name}
		l, err := d.pipe.hang(dev, a.dp.Attach)
		switch {
		case err == nil:
			a.hooks[key(at.Target)] = l
		case !errors.Is(err, node.ErrGone):
			errs = append(errs, err)
		}
	}
	for key, l := range a.hooks {
		if !want[key] {
			errs = append(errs, l.Close())
			delete(a.hooks, key)
		}
	}
	errs = append(errs, a.dp.Watch(!act))
	if act {
		errs = append(errs, d.joinDatagrams(made.Steps))
	}
	return errors.Join(errs...)
}

// watches tells that it is watched whether datagrams come in a row. What the stages cost, and whether flows of
// datagrams can be split, is another matter once they are joined.
func (a *aggregation) watches() bool { return a.gov.Last().State == governor.Parked }

const watchedFirst = "it is watched first whether datagrams come in a row, and can cross the overlay as one packet"

// joinDatagrams has GRO join datagrams. What priority's lanes already hold has no numbers, and to
// GRO is another flow than what will have them: it is handed on first, by the next window.
func (d *Daemon) joinDatagrams(steps []plan.Step) error {
	fresh, err := d.dp.SetApart(true)
	if d.aggr.waits = fresh && d.prio != nil; d.aggr.waits || err != nil {
		return err
	}
	if len(steps) > 0 && !d.pipe.armed {
		d.sensor.relearn()
	}
	refused, err := d.carryOutEach(steps)
	for target, why := range refused {
		d.aggr.skipped = append(d.aggr.skipped, plan.Skip{What: plan.Aggregates(target).String(), Reason: why, Target: target})
	}
	return err
}

// stopAggregation leaves no trace of it.
func (d *Daemon) stopAggregation() (rep apply.Report, err error) {
	a := &d.aggr
	if a.joined != nil {
		err = a.joined.close()
		a.joined = nil
	}
	if a.dp == nil {
		return rep, err
	}
	closed := err
	rep, err = d.restore(plan.ByAggregation, nil)
	err = errors.Join(closed, err)
	_, e := d.dp.SetApart(false)
	err = errors.Join(err, e)
	for key, l := range a.hooks {
		err = errors.Join(err, l.Close())
		delete(a.hooks, key)
	}
	c, e := a.dp.Counters()
	if e == nil {
		a.past = a.past.Add(c)
	}
	err = errors.Join(err, e, a.dp.Close())
	a.dp, a.skipped, a.waits, a.joins = nil, nil, false, 0
	if len(rep.Results) > 0 && !d.pipe.armed {
		d.sensor.relearn()
	}
	return rep, err
}

// aggregated counts since the daemon started.
func (d *Daemon) aggregated() (datapath.AggregateCounters, error) {
	if d.aggr.dp == nil {
		return d.aggr.past, nil
	}
	c, err := d.aggr.dp.Counters()
	return d.aggr.past.Add(c), err
}

// aggregationMechanism is what it does.
func (d *Daemon) aggregationMechanism() control.Mechanism {
	a := &d.aggr
	dec := a.gov.Last()
	m := control.Mechanism{Name: "aggregate", State: mechanismState(d.opts.Aggregate, dec.State), Reason: dec.Reason, Since: dec.Since}
	switch {
	case m.State != control.Active:
	case a.err != nil:
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, a.err)
	case a.none:
		m.State, m.Reason = control.Standby, "no underlay and no tunnel can do it, see the devices"
	}
	return m
}
