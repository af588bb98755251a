// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/trial"
)

// Microflows say which flows may be split, and into what.
type Microflows struct {
	Mode  governor.Mode
	Batch int // frames of a micro-flow; 0: off
	Cores int // lanes of one flow, at most
	// Elephant is how many bytes a second make a flow one; 0: what is much for one core.
	Elephant float64
	// Unordered: UDP flows may be split although no resequencer puts them in order again.
	Unordered bool
	// Hold is how long a packet waits at most for one that comes before it, where nothing
	// tells that it is lost.
	Hold time.Duration
	// NoXDP says why flows are not cut by XDP, on a NIC, but behind it; nil where they are.
	NoXDP error
	// NoMerge says why this kernel has no resequencer, nil where it has.
	NoMerge error
}

const (
	// elephantShare of what one core can do makes a flow an elephant.
	elephantShare = 0.4
	// fruitful is the least part of one core that the frames of elephants would take there for
	// micro-flows to stay; they are given fruitlessFor to show it, and not tried again before
	// fruitlessPause is over. What other flows a node has is no matter.
	fruitful       = 0.2
	fruitlessFor   = time.Second
	fruitlessPause = 30 * time.Second
)

// microflows decides when elephants are split.
type microflows struct {
	gov     *governor.Governor
	trial   *trial.Trial
	nic     []int     // cores that poll NICs, as far as that is known
	counted splitOn   // when the stretch that is judged began
	since   time.Time // that
	// elephants are, by the core that polls them, what they would take of one, in the last one; nil: not known.
	elephants map[int]float64
	needy     []int     // cores that lacked branches of their own, when those that were in place were taken off
	pause     time.Time // not before
	why       string    // that
	// meter measures without, the frames a second that are delivered before their programs come; 0: not known.
	meter   trial.Meter
	without float64
	said    mechanism.Told
}

// splitOn is what each core polled that came out of tunnels, and what of it belonged to flows that were split.
type splitOn struct{ all, split []uint64 }

// splitOn reads it. Of two programs on an underlay one counts what comes.
func (p *Pipeline) splitOn() (c splitOn, err error) {
	behind, err := p.dp.OverlayOn()
	if err != nil {
		return c, err
	}
	if c.all, err = p.dp.XDPOverlayOn(); err != nil {
		return c, err
	}
	for core, n := range behind {
		c.all[core] = max(c.all[core], n)
	}
	c.split, err = p.dp.SplitOn()
	return c, err
}

// saw takes a window in which they are asked for and not in place, and follows a sender that becomes faster.
func (m *microflows) saw(w governor.Window) {
	switch now := w.Delivered(); {
	case now == 0:
	case m.without == 0:
		m.without = now
	default:
		m.without += (now - m.without) / 2
	}
}

// forget what was delivered without them: that was another load.
func (m *microflows) forget() { m.meter, m.without = trial.Meter{}, 0 }

// noMicroflows says why no flow can be split, or nothing.
func (p *Pipeline) noMicroflows() (state control.MechanismState, reason string) {
	m := p.opts.Microflows
	switch {
	case m.Mode == governor.Off || m.Batch == 0:
		return control.Off, "switched off by configuration"
	case m.NoMerge != nil && !m.Unordered:
		return control.Unsupported, fmt.Sprintf("split flows could not be put in order again (%v); with udp-order: none, UDP flows are split all the same", m.NoMerge)
	case p.host.PriorityOnNIC():
		return control.Standby, "priority's program is on the underlays"
	case p.opts.Mode == governor.Forced && m.Mode != governor.Forced:
		return control.Standby, "the pipeline is forced by configuration"
	}
	return "", ""
}

// placeMicroflows is the placement in force, or the one that would be.
func (p *Pipeline) placeMicroflows(in governor.Input) governor.Layout {
	if _, reason := p.noMicroflows(); reason != "" {
		return governor.Layout{Reason: reason}
	}
	if why := p.host.Snapshot().LacksNIC(); why != "" {
		return governor.Layout{Reason: why}
	}
	m := &p.micro
	if p.actuator.armed && p.actuator.layout.Split {
		if p.opts.Microflows.Mode != governor.Forced && m.fruitless(in.Now) {
			return governor.Layout{Reason: m.why}
		}
		return p.actuator.layout
	}
	if nic := in.Pollers(); !p.actuator.armed && in.Now.Sub(p.polls.armed) >= lanesGone && len(nic) > 0 {
		m.nic = nic
	}
	if in.Now.Before(m.pause) {
		return governor.Layout{Reason: m.why}
	}
	if why := wholeAnyway(p.opts.Microflows, p.host.Aggregation(), p.host.Joined(), in); why != "" {
		return governor.Layout{Gain: 1, Reason: why}
	}
	needy := slices.Clone(m.needy)
	for _, core := range p.opts.Limits.Needy(in, governor.Layout{}, nil) {
		if !slices.Contains(needy, core) {
			needy = append(needy, core)
		}
	}
	return p.placeBranches(in, needy)
}

// placeBranches is the placement that would be made for cores whose elephants need branches, the neediest first;
// none: for all that poll.
func (p *Pipeline) placeBranches(in governor.Input, needy []int) governor.Layout {
	tier := governor.XDP
	if p.cutBehind() != "" {
		tier = governor.TC
	}
	nic := p.micro.nic
	needy = slices.DeleteFunc(needy, func(core int) bool { return !slices.Contains(nic, core) })
	machine, costs := p.machine(in, needy, p.opts.Microflows.Mode)
	if machine.NIC = nic; len(needy) > 0 {
		machine.Short = needy
	}
	l := governor.PlaceMicroflows(tier, machine, p.opts.Microflows.most(), p.opts.Microflows.NoMerge == nil, costs)
	if p.opts.Microflows.Mode == governor.Forced {
		l.Whole = nil
	} else if !l.None() && !l.Pays() {
		return governor.Layout{Gain: 1, Reason: "micro-flows are not worth it by " + l.Reason}
	}
	return l
}

// wholeAnyway says why there is nothing to split, or nothing: datagrams that are joined stay whole. To find that
// out by a trial takes the programs, seconds of loading on a slow machine, and what they cost meanwhile. joined is how
// many a second they are.
func wholeAnyway(m Microflows, aggregation governor.State, joined float64, in governor.Input) string {
	switch {
	case m.Mode == governor.Forced || m.Unordered:
		return ""
	case aggregation == governor.Parked:
		return watchedFirst
	case aggregation != governor.Active || joined == 0:
		return ""
	}
	if rest := in.Besides(joined); rest < fruitful {
		return fmt.Sprintf("UDP flows stay whole beside aggregation, and all other frames take %.0f %% of a core", rest*100)
	}
	return ""
}

// cutBehind says why flows are not cut on the NIC, but behind its stage; empty where they are. Each
// underlay has to take the program for that.
func (p *Pipeline) cutBehind() string {
	if no := p.opts.Microflows.NoXDP; no != nil {
		return no.Error()
	}
	for _, u := range p.host.Snapshot().Underlays {
		if why := p.host.Places().Why(u, p.opts.Microflows.want()); why != "" {
			return why
		}
	}
	return ""
}

// sample takes what elephants would take of one core in a stretch that is over, and begins one.
func (m *microflows) sample(in governor.Input, c splitOn) {
	if in.Now.Sub(m.since) < fruitlessFor {
		return
	}
	var all, most uint64
	came := make([]uint64, len(c.all))
	if !m.since.IsZero() {
		for core := range came {
			came[core] = c.all[core] - m.counted.all[core]
			all, most = all+came[core], max(most, came[core])
		}
	}
	if all > 0 {
		m.elephants, m.nic = map[int]float64{}, nil
		for core, n := range came {
			// Behind GRO packets are counted, and frames cost: elephants have the same part of both.
			if split := c.split[core] - m.counted.split[core]; split > 0 {
				m.elephants[core] = float64(split) / float64(all) * in.Path()
			}
			if n > 0 && n >= most/10 {
				m.nic = append(m.nic, core)
			}
		}
	}
	m.since, m.counted = in.Now, c
}

// fruitless tells that hardly anything is split, and lets a while pass from then on.
func (m *microflows) fruitless(now time.Time) bool {
	var share float64
	for _, part := range m.elephants {
		share += part
	}
	if m.elephants == nil || share >= fruitful {
		return false
	}
	m.pause = now.Add(fruitlessPause)
	m.why = fmt.Sprintf("flows that are much for one core by themselves take %.0f %% of one; looked at again every %s", share*100, fruitlessPause)
	return true
}

// refitBranches has micro-flows taken off, their flows whole, where a core's elephants lack branches of their own,
// or tasks need a branch's core, and there are cores for them. They are placed anew then.
func (p *Pipeline) refitBranches(in governor.Input, dec governor.Decision) {
	in.Layout = p.actuator.layout
	var needy []int
	if p.micro.elephants != nil {
		needy = p.opts.Limits.Needy(in, in.Layout, p.micro.elephants)
	} else {
		for _, s := range in.Layout.Sets {
			needy = append(needy, s.Of)
		}
	}
	if !in.Layout.Lacks(needy) && len(dec.Avoid) == 0 {
		p.refit.Leave()
		return
	}
	if why := p.refit.Step(in, governor.InPlace{Layout: in.Layout}, dec, p.placeBranches(in, slices.Clone(needy))); why != "" {
		p.host.Log().Info("micro-flows are placed anew", "mechanism", microflowsName, "reason", why)
		p.evict, p.micro.needy = true, needy
	}
}

// split is what flows are cut into.
func (p *Pipeline) split(in governor.Input) datapath.Split {
	m, layout := p.opts.Microflows, in.Layout
	if p.actuator.armed {
		layout = p.actuator.layout
	}
	s := datapath.Split{TCP: layout.Merge, Batch: m.Batch, Here: layout.Here, Frames: math.Inf(1), Bytes: math.Inf(1)}
	if s.Second = len(layout.Tunnel) > 0; len(layout.NIC) == 0 {
		s.At, s.Second = datapath.Tunnel, false
	}
	s.Numbered = layout.Merge && !m.Unordered
	s.UDP = m.Unordered || s.Numbered
	if m.Elephant > 0 {
		s.Bytes = m.Elephant
		return s
	}
	c := in.Costs.OrTypical()
	s.Frames = elephantShare * 1e9 / (c.NIC + c.Tunnel + c.Pod)
	return s
}

// stepMicroflows decides for the window, and puts their placement into in.
func (p *Pipeline) stepMicroflows(in *governor.Input) (governor.Decision, error) {
	if p.actuator.armed && p.actuator.layout.Split && p.actuator.steering {
		c, err := p.splitOn()
		if err != nil {
			return governor.Decision{}, err
		}
		p.micro.sample(*in, c)
	} else {
		p.micro.since, p.micro.elephants = time.Time{}, nil
	}
	in.Layout = p.placeMicroflows(*in)
	p.micro.trial.Bar(in)
	switch {
	case p.actuator.armed:
	case in.Layout.None() || p.opts.Microflows.Mode == governor.Forced:
		p.micro.forget()
	default:
		sum, err := p.host.Trials().Count(p.steered, nil)
		if err != nil {
			return governor.Decision{}, err
		}
		p.micro.saw(p.micro.meter.Window(sum, false))
	}
	dec := p.micro.gov.Step(*in)
	if dec.State == governor.Standby || p.actuator.armed && !p.evict {
		p.micro.needy = nil
	}
	return dec, nil
}

// reportMicroflows is what they do.
func (p *Pipeline) reportMicroflows() control.Mechanism {
	dec := p.micro.gov.Last()
	m := control.Mechanism{Name: microflowsName, State: mechanism.State(p.opts.Microflows.Mode, dec.State), Reason: dec.Reason, Since: dec.Since}
	if state, reason := p.noMicroflows(); reason != "" {
		m.State, m.Reason = state, reason
		return m
	}
	if p.actuator.armed && p.actuator.layout.Split {
		m.Gain = p.actuator.layout.Gain
		if whole := p.actuator.layout.Whole; len(whole) > 0 {
			m.Reason += fmt.Sprintf("; flows that cores %s poll stay whole: they need no help, or there are no branches for them", config.CPUList(whole))
		}
	}
	if why := p.micro.trial.Reason(); why != "" {
		m.Reason += "; " + why
	}
	if why := p.cutBehind(); why != "" {
		m.Reason += fmt.Sprintf("; flows are cut behind the NIC's stage (%s)", why)
	}
	if why := p.actuator.noUDP; why != "" && !p.opts.Microflows.Unordered {
		m.Reason += "; UDP flows stay whole: " + why
	}
	p.whatIs(&m)
	return m
}
