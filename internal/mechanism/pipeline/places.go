// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"slices"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// wants is how a layout of the pipeline or of micro-flows wants one: tier xdp is the pipeline's
// only where the configuration says so.
func (p *Pipeline) wants(l governor.Layout) xdp.Want {
	if l.Split {
		return p.opts.Microflows.want()
	}
	return xdp.Want{By: xdp.Pipeline, Asked: true}
}

// tier is which facilities the pipeline may use now: where no NIC takes XDP, it steers behind the NIC's
// stage.
func (p *Pipeline) tier() governor.Tier {
	if p.noXDPTier() != "" {
		return governor.TC
	}
	return p.opts.Tier
}

// inTheWay tells that flows are sent to a core on which latency traffic may be.
func (p *Pipeline) inTheWay() bool {
	return p.host.PriorityOnNIC() && slices.ContainsFunc(p.actuator.layout.Cores(), func(c int) bool { return slices.Contains(p.host.PriorityCores(), c) })
}

// noXDPTier says why tier xdp is asked for and no NIC takes it; empty if one does, or it is not.
func (p *Pipeline) noXDPTier() string {
	if p.opts.Tier != governor.XDP {
		return ""
	}
	if why := leaves(p.host.Snapshot(), p.host.Places()); why != "" {
		return why
	}
	return p.host.Places().NoNIC(p.host.Snapshot().Underlays, xdp.Want{By: xdp.Pipeline, Asked: true})
}

// leaves says why frames of a NIC that has a program already, which would send them to lanes all the same, are to take
// none: RPS or RFS moves them, or the program may not take them any more.
func leaves(snap node.Snapshot, places *xdp.Places) string {
	for _, u := range snap.Underlays {
		if !places.On(u) {
			continue
		}
		if why := cmp.Or(places.Unfit(u), u.Moves); why != "" {
			return why
		}
	}
	return ""
}

// withoutXDP are the NICs on which what was asked for has no program.
func (p *Pipeline) withoutXDP() []plan.Skip {
	var asked []xdp.Want
	if p.opts.Tier == governor.XDP && p.opts.Mode != governor.Off {
		asked = append(asked, xdp.Want{By: xdp.Pipeline, Asked: true})
	}
	if w := p.opts.Microflows.want(); w.Asked {
		asked = append(asked, w)
	}
	var list []plan.Skip
	for _, u := range p.host.Snapshot().Underlays {
		i := slices.IndexFunc(asked, func(w xdp.Want) bool { return p.host.Places().Why(u, w) != "" })
		if i >= 0 {
			list = append(list, plan.Skip{What: u.Dev.String(), Reason: p.host.Places().Why(u, asked[i])})
		}
	}
	return list
}
