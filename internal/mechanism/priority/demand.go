// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
)

// demand puts priority in place where the operator has named no flows, but some would profit.
type demand struct {
	gov   governor.Demand
	trial *trial.Trial
	on    bool // priority is in place for it
	said  mechanism.Told

	census datapath.FlowCounts // under way, or nil
}

// forLatency: frames wait less in the NIC, and bulk keeps most of what it had. To try it again
// takes a program onto the NIC, and off it, which many NICs do by resetting their queues.
var forLatency = governor.Terms{
	Goal:  governor.Wait,
	Keep:  map[governor.Metric]float64{governor.Goodput: 0.8},
	Holds: 10 * time.Minute,
}

// stepDemand takes one window: measure, decide, act.
func (p *Priority) stepDemand(ctx context.Context, in governor.Input) error {
	m := &p.demand
	if why := p.noDemand(); why != "" {
		return errors.Join(mechanism.EndCensus(&m.census), p.leaveDemand(ctx))
	}
	if !m.on {
		if why, yes := m.trial.Judge.Bars(in.Now, byPriority(in)); yes {
			m.gov.Refuse(in.Now, why)
			return mechanism.EndCensus(&m.census)
		}
	}
	dec := m.gov.Step(in.Now, in.ShortOfTime())
	if dec.State == governor.Parked && m.census != nil && m.gov.Over(in.Now) {
		c, err := small(m.census)
		if err := errors.Join(err, mechanism.EndCensus(&m.census)); err != nil {
			m.gov.Refuse(in.Now, err.Error())
			p.host.Log().Warn("flows could not be counted", "mechanism", "priority", "reason", err)
			return nil
		}
		dec = m.gov.Counted(in.Now, c)
	}
	defer func() { m.said.Decided(p.host.Log(), "priority", m.gov.Last(), m.on, true) }()
	switch {
	case dec.State == governor.Parked && m.census == nil:
		var err error
		if m.census, err = p.host.BeginCensus(); err != nil {
			m.gov.Refuse(in.Now, err.Error())
			p.host.Log().Warn("flows could not be counted", "mechanism", "priority", "reason", err)
		}
		return nil
	case dec.State == governor.Standby:
		return p.leaveDemand(ctx)
	case dec.State != governor.Active || !m.on && p.host.Trials().Trying() != nil:
		return nil
	case !m.on:
		return p.meetDemand(ctx, in)
	}
	return p.proveDemand(ctx, in)
}

// noDemand says why priority is not asked for, or nothing.
func (p *Priority) noDemand() string {
	switch {
	case !p.opts.OnDemand || p.opts.Off:
		return "switched off by configuration"
	case len(p.added)+len(p.opts.Rules) > 0:
		return "there are rules"
	case p.opts.No != nil || !p.opts.mayTry():
		return "it would not be safe, or its place is taken"
	case p.host.Split():
		return "micro-flows act"
	}
	return p.tooDear()
}

func byPriority(in governor.Input) governor.Situation {
	in.Layout = governor.Layout{}
	s := trial.Situation(in)
	s.Layout = "priority"
	return s
}

// small tells the small, sparse flows: what a flow may send in a tenth of a second counts for
// each that the census took.
func small(taken datapath.FlowCounts) (c governor.Census, err error) {
	flows, rest, err := taken.Flows()
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

// meetDemand puts priority in place. Bulk makes way as soon as the trial says so.
func (p *Priority) meetDemand(ctx context.Context, in governor.Input) error {
	m := &p.demand
	m.on = true
	m.trial.Leave()
	table, err := rules.Compile(nil)
	if err == nil {
		err = p.start(ctx, table)
	}
	if err == nil && !p.placed.onNIC() {
		why := p.noNIC()
		_, err = p.Stop(ctx)
		m.gov.Refuse(in.Now, why)
	}
	if err != nil {
		m.on = false // also where nothing was begun
		m.gov.Refuse(in.Now, err.Error())
		p.host.Log().Warn("priority could not be put in place", "mechanism", "priority", "reason", err)
	}
	return nil
}

// proveDemand lets priority show whether it pays.
func (p *Priority) proveDemand(ctx context.Context, in governor.Input) error {
	m := &p.demand
	was := m.trial.On()
	on, err := p.host.Trials().Try(m.trial, in, byPriority(in), p.madeWay, nil)
	if err != nil {
		return err
	}
	if why, yes := m.trial.Judge.Bars(in.Now, byPriority(in)); yes {
		m.gov.Refuse(in.Now, why)
		return p.leaveDemand(ctx)
	}
	if on != was {
		return p.placed.dp.SetTuning(p.tuning())
	}
	return nil
}

// madeWay tells how much of bulk made way.
func (p *Priority) madeWay(datapath.Counters) (acted, of uint64, err error) {
	c, err := p.Counters()
	return c.BulkLane + c.Refused, c.Bulk, err
}

// leaveDemand takes priority off again, if it was put in place for it.
func (p *Priority) leaveDemand(ctx context.Context) error {
	p.demand.trial.Leave()
	if !p.demand.on {
		return nil // or it is for rules that have come
	}
	_, err := p.Stop(ctx)
	return err
}
