// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
)

// demand puts priority in place where the operator has named no flows, but some would profit.
type demand struct {
	gov   governor.Demand
	trial *trial.Trial
	on    bool // priority is in place for it

	census *census // under way, or nil
}

// census counts what flows bring out of the tunnels.
type census struct {
	dp    *datapath.Census
	hooks []io.Closer
}

// forLatency: frames wait less in the NIC, and bulk keeps most of what it had. To try it again
// takes a program onto the NIC, and off it, which many NICs do by resetting their queues.
var forLatency = governor.Terms{
	Goal:  governor.Wait,
	Keep:  map[governor.Metric]float64{governor.Goodput: 0.8},
	Holds: 10 * time.Minute,
}

// stepDemand takes one window: measure, decide, act.
func (d *Daemon) stepDemand(ctx context.Context, in governor.Input) error {
	m := &d.demand
	if why := d.noDemand(); why != "" {
		return errors.Join(m.endCensus(), d.leaveDemand(ctx))
	}
	if !m.on {
		if why, yes := m.trial.Judge.Bars(in.Now, byPriority(in)); yes {
			m.gov.Refuse(in.Now, why)
			return m.endCensus()
		}
	}
	before := m.gov.Last()
	dec := m.gov.Step(in.Now, in.ShortOfTime())
	if dec.State == governor.Parked && m.census != nil && m.gov.Over(in.Now) {
		c, err := m.census.small()
		if err := errors.Join(err, m.endCensus()); err != nil {
			m.gov.Refuse(in.Now, err.Error())
			d.log.Warn("flows could not be counted", "mechanism", "priority", "reason", err)
			return nil
		}
		dec = m.gov.Counted(in.Now, c)
	}
	mechanism.Decided(d.log, "priority", before, dec)
	switch {
	case dec.State == governor.Parked && m.census == nil:
		var err error
		if m.census, err = d.beginCensus(); err != nil {
			m.gov.Refuse(in.Now, err.Error())
			d.log.Warn("flows could not be counted", "mechanism", "priority", "reason", err)
		}
		return nil
	case dec.State == governor.Standby:
		return d.leaveDemand(ctx)
	case dec.State != governor.Active || !m.on && d.trials.Trying() != nil:
		return nil
	case !m.on:
		return d.meetDemand(ctx, in)
	}
	return d.proveDemand(ctx, in)
}

// noDemand says why priority is not asked for, or nothing.
func (d *Daemon) noDemand() string {
	switch {
	case !d.opts.Priority.OnDemand || d.opts.Priority.Off:
		return "switched off by configuration"
	case len(d.added)+len(d.opts.Rules) > 0:
		return "there are rules"
	case d.opts.Priority.No != nil || d.opts.NoGuard != nil || d.opts.Tier == governor.XDP:
		return "it would not be safe, or its place is taken"
	case d.pipe.armed && d.pipe.layout.Split:
		return "micro-flows act"
	}
	return d.tooDear()
}

func byPriority(in governor.Input) governor.Situation {
	in.Layout = governor.Layout{}
	s := trial.Situation(in)
	s.Layout = "priority"
	return s
}

// beginCensus begins one, or leaves no trace of it.
func (d *Daemon) beginCensus() (*census, error) {
	dp, err := d.dp.LoadCensus()
	if err != nil {
		return nil, err
	}
	c := &census{dp: dp}
	for _, t := range d.host.Snapshot().Tunnels {
		l, err := d.host.Attach(t.Dev, dp.Attach)
		switch {
		case err == nil:
			c.hooks = append(c.hooks, l)
		case !errors.Is(err, node.ErrGone):
			return nil, errors.Join(err, c.End())
		}
	}
	return c, nil
}

// Datagrams tells how many packets came, and how many of them were of UDP (express.Census).
func (c *census) Datagrams() (packets, udp uint64, err error) {
	flows, rest, err := c.dp.Flows()
	for _, f := range append(flows, rest) {
		packets, udp = packets+f.Packets, udp+f.Datagrams
	}
	return packets, udp, err
}

// small tells the small, sparse flows: what a flow may send in a tenth of a second counts for
// each that the census took.
func (s *census) small() (c governor.Census, err error) {
	flows, rest, err := s.dp.Flows()
	if err != nil {
		return c, err
	}
	tenths := uint64(governor.CensusFor / (100 * time.Millisecond))
	c.All = rest.Packets
	for _, f := range flows {
		c.All += f.Packets
		// One packet may be the last of a flow, or the first of a large one.
		if f.Packets > 1 && f.Packets <= sparseFrames*tenths && f.Bytes <= sparseBytes*tenths {
			c.Flows++
			c.Sparse += f.Packets
		}
	}
	return c, nil
}

func (m *demand) endCensus() error {
	err := m.census.End()
	m.census = nil
	return err
}

// End leaves no trace of it; nil: there is none (express.Census).
func (c *census) End() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, h := range c.hooks {
		errs = append(errs, h.Close())
	}
	return errors.Join(append(errs, c.dp.Close())...)
}

// meetDemand puts priority in place. Bulk makes way as soon as the trial says so.
func (d *Daemon) meetDemand(ctx context.Context, in governor.Input) error {
	m := &d.demand
	m.on = true
	m.trial.Leave()
	table, err := rules.Compile(nil)
	if err == nil {
		err = d.startPriority(ctx, table)
	}
	if err == nil && !d.prio.onNIC() {
		why := d.noPriorityNIC()
		_, err = d.stopPriority(ctx)
		m.gov.Refuse(in.Now, why)
	}
	if err != nil {
		m.on = false // also where nothing was begun
		m.gov.Refuse(in.Now, err.Error())
		d.log.Warn("priority could not be put in place", "mechanism", "priority", "reason", err)
	}
	return nil
}

// proveDemand lets priority show whether it pays.
func (d *Daemon) proveDemand(ctx context.Context, in governor.Input) error {
	m := &d.demand
	was := m.trial.On()
	on, err := d.trials.Try(m.trial, in, byPriority(in), madeWay, nil)
	if err != nil {
		return err
	}
	if why, yes := m.trial.Judge.Bars(in.Now, byPriority(in)); yes {
		m.gov.Refuse(in.Now, why)
		return d.leaveDemand(ctx)
	}
	if on != was {
		return d.prio.dp.SetTuning(d.tuning())
	}
	return nil
}

// madeWay tells how much of bulk made way.
func madeWay(_ datapath.Counters, p datapath.PriorityCounters) (acted, of uint64) {
	return p.BulkLane + p.Refused, p.Bulk
}

// leaveDemand takes priority off again, if it was put in place for it.
func (d *Daemon) leaveDemand(ctx context.Context) error {
	d.demand.trial.Leave()
	if !d.demand.on {
		return nil // or it is for rules that have come
	}
	_, err := d.stopPriority(ctx)
	return err
}
