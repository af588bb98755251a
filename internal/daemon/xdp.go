// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// microflowsWant is how micro-flows want a NIC: by themselves, unless they are forced.
func (d *Daemon) microflowsWant() xdp.Want {
	return xdp.Want{By: xdp.Microflows, Asked: d.opts.Microflows.Mode == governor.Forced}
}

// priorityWants is how priority wants one: by itself on trial, by rules or classes as asked.
func (d *Daemon) priorityWants() xdp.Want {
	asked := len(d.added)+len(d.opts.Rules) > 0 || d.opts.Priority.Auto
	return xdp.Want{By: xdp.Priority, Asked: asked || d.prio != nil && !d.demand.on}
}

// pipelineWants is how a layout of the pipeline or of micro-flows wants one: tier xdp is the pipeline's
// only where the configuration says so.
func (d *Daemon) pipelineWants(l governor.Layout) xdp.Want {
	if l.Split {
		return d.microflowsWant()
	}
	return xdp.Want{By: xdp.Pipeline, Asked: true}
}

// tier is which facilities the pipeline may use now: where no NIC takes XDP, it steers behind the NIC's
// stage.
func (d *Daemon) tier() governor.Tier {
	if d.noXDPTier() != "" {
		return governor.TC
	}
	return d.opts.Tier
}

// noXDPTier says why tier xdp is asked for and no NIC takes it; empty if one does, or it is not.
func (d *Daemon) noXDPTier() string {
	if d.opts.Tier != governor.XDP {
		return ""
	}
	return d.noNIC(xdp.Want{By: xdp.Pipeline, Asked: true})
}

// noNIC says why no NIC has a place for a mechanism, but for other programs of ours; empty if one
// has, or if there is no NIC.
func (d *Daemon) noNIC(w xdp.Want) (why string) {
	for _, u := range d.host.Snapshot().Underlays {
		if why = d.places.Bars(u, w); why == "" {
			return ""
		}
	}
	return why
}

// tooDear says why priority is not tried by itself: no NIC has a place for its program, or it costs
// too much to put it there without being asked.
func (d *Daemon) tooDear() string {
	if d.prio != nil {
		return "" // what is there shows what it is worth
	}
	if why := d.noNIC(xdp.Want{By: xdp.Priority}); why != "" {
		return "no trial can show whether it pays: " + why
	}
	return ""
}

// noPriorityNIC says why priority's program is nowhere.
func (d *Daemon) noPriorityNIC() string {
	if why := d.noNIC(d.priorityWants()); why != "" {
		return "no underlay takes its program: " + strings.TrimPrefix(why, "no XDP program: ")
	}
	return "no underlay takes its program, see the devices"
}

// withoutXDP are the NICs on which what was asked for has no program.
func (d *Daemon) withoutXDP() []plan.Skip {
	var asked []xdp.Want
	if d.opts.Tier == governor.XDP && d.opts.Mode != governor.Off {
		asked = append(asked, xdp.Want{By: xdp.Pipeline, Asked: true})
	}
	if w := d.microflowsWant(); w.Asked {
		asked = append(asked, w)
	}
	var list []plan.Skip
	for _, u := range d.host.Snapshot().Underlays {
		i := slices.IndexFunc(asked, func(w xdp.Want) bool { return d.places.Why(u, w) != "" })
		if i >= 0 {
			list = append(list, plan.Skip{What: u.Dev.String(), Reason: d.places.Why(u, asked[i])})
		}
	}
	return list
}

// polls remembers which cores poll NICs: a queue that nothing came to for a moment is a queue all the
// same, and its core none for a lane of the nic stage.
type polls struct {
	at    map[int]time.Time // cores, by when they last did
	last  time.Time         // window
	armed time.Time         // when lanes were last out
}

const (
	// polledFor is how long a core counts as one that polls.
	polledFor = time.Minute
	// lanesGone is after how long the lanes' own polls are over for certain.
	lanesGone = time.Second
)

// saw takes a window. Behind lanes nothing tells which core polls the NIC: what is known stays.
func (p *polls) saw(in governor.Input, armed bool) {
	since := in.Now.Sub(p.last)
	p.last = in.Now
	if armed {
		p.armed = in.Now
	}
	if p.at == nil {
		p.at = map[int]time.Time{}
	}
	if in.Now.Sub(p.armed) < lanesGone {
		for core := range p.at {
			p.at[core] = p.at[core].Add(since)
		}
		return
	}
	for _, core := range in.Pollers() {
		p.at[core] = in.Now
	}
}

// lately are the cores that have polled NICs, sorted.
func (p *polls) lately(now time.Time) []int {
	var cores []int
	for core, last := range p.at {
		if now.Sub(last) < polledFor {
			cores = append(cores, core)
		}
	}
	slices.Sort(cores)
	return cores
}
