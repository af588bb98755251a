// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// aggregation has the underlays join datagrams of one flow that come in a row.
type aggregation struct {
	gov     *governor.Aggregation
	dp      *datapath.Aggregation // nil while it does not act
	counted datapath.AggregateCounters
	past    datapath.AggregateCounters // of the times before
	hooks   map[node.DevKey]io.Closer  // on tunnels
	skipped []plan.Skip
	none    bool // no underlay can
	check   check
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
	var w governor.AggregationWindow
	if a.dp != nil {
		c, err := a.dp.Counters()
		if err != nil {
			return err
		}
		n := c.Sub(a.counted)
		w.Packets, w.Datagrams, w.Supers, w.Follows = n.Packets, n.Datagrams, n.Supers, n.Follows
		a.counted, w.Behind = c, d.sensor.behind
	} else if rate, err := d.softnet.read(now); err == nil && !math.IsInf(rate, 1) {
		w.Rate = rate
	}
	before := a.gov.Last()
	dec := a.gov.Step(now, w)
	if dec.State != before.State {
		d.log.Info("aggregation "+dec.State.String(), "reason", dec.Reason)
	}
	switch {
	case dec.State == governor.Standby:
		_, err := d.stopAggregation()
		return err
	case a.dp == nil && now.Before(a.retry):
	case a.dp == nil || dec.State != before.State || a.waits || a.check.due(now):
		defer a.check.made(time.Now())
		if a.err = d.followAggregation(dec.State == governor.Active); a.err != nil {
			a.retry = now.Add(retryAfter)
			d.log.Error("aggregation could not be put in place", "reason", a.err, "again_in", retryAfter)
			_, err := d.stopAggregation()
			return err
		}
	}
	return nil
}

// followAggregation makes it fit the node. act: packets are joined, or else it is only watched
// whether they could be.
func (d *Daemon) followAggregation(act bool) error {
	a := &d.aggr
	if a.dp == nil {
		dp, err := d.dp.LoadAggregation()
		if err != nil {
			return err
		}
		a.dp, a.hooks, a.counted = dp, map[node.DevKey]io.Closer{}, datapath.AggregateCounters{}
	}
	owned := apply.Owned(d.locked.Entries())
	in := AggregateInput(d.scanner, d.snap, owned)
	here := map[plan.Target]bool{}
	for _, dev := range slices.Concat(in.Underlays, in.Tunnels) {
		here[dev.Target] = true
	}
	err := d.locked.Forget(func(t plan.Target) bool {
		_, ours := owned[plan.Aggregates(t)]
		return ours && !here[t] && d.pipe.gone(t)
	})
	if err != nil {
		return err
	}
	made := plan.Aggregate(in)
	a.skipped, a.none = made.Skipped, len(made.Skipped) >= len(in.Underlays)+len(in.Tunnels)
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

// joinDatagrams has GRO join datagrams. What priority's lanes already hold has no numbers, and to
// GRO is another flow than what will have them: it is handed on first, by the next window.
func (d *Daemon) joinDatagrams(steps []plan.Step) error {
	fresh, err := d.dp.SetApart(true)
	if d.aggr.waits = fresh && d.prio != nil; d.aggr.waits || err != nil {
		return err
	}
	return d.carryOut(steps)
}

// stopAggregation leaves no trace of it.
func (d *Daemon) stopAggregation() (rep apply.Report, err error) {
	a := &d.aggr
	if a.dp == nil {
		return rep, nil
	}
	rep, err = d.restore(ofAggregation)
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
	a.dp, a.skipped, a.waits = nil, nil, false
	return rep, err
}

// ofAggregation tells whether a setting is aggregation's.
func ofAggregation(s plan.Setting) bool {
	return s.Kind == plan.EthtoolFeature && s.Attr == plan.UDPForwarding
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
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", retryAfter, a.err)
	case a.none:
		m.State, m.Reason = control.Standby, "no underlay and no tunnel can do it, see the devices"
	}
	return m
}
