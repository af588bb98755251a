// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"strings"

	"github.com/overlane/overlane/internal/xdp"
)

// wants is how priority wants one: by itself on trial, by rules or classes as asked.
func (p *Priority) wants() xdp.Want {
	asked := len(p.added)+len(p.opts.Rules) > 0 || p.opts.Auto
	return xdp.Want{By: xdp.Priority, Asked: asked || p.placed != nil && !p.demand.on}
}

// tooDear says why priority is not tried by itself: no NIC has a place for its program, or it costs
// too much to put it there without being asked.
func (p *Priority) tooDear() string {
	if p.placed != nil {
		return "" // what is there shows what it is worth
	}
	if why := p.unserved(); why != "" {
		return why
	}
	if why := p.host.Places().NoNIC(p.host.Snapshot().Underlays, xdp.Want{By: xdp.Priority}); why != "" {
		return "no trial can show whether it pays: " + why
	}
	return ""
}

// unserved says why there is no NIC at all for its program, or nothing.
func (p *Priority) unserved() string {
	if snap := p.host.Snapshot(); len(snap.Underlays) == 0 {
		return snap.LacksNIC()
	}
	return ""
}

// noNIC says why priority's program is nowhere.
func (p *Priority) noNIC() string {
	if why := p.unserved(); why != "" {
		return why
	}
	if why := p.host.Places().NoNIC(p.host.Snapshot().Underlays, p.wants()); why != "" {
		return "no underlay takes its program: " + strings.TrimPrefix(why, "no XDP program: ")
	}
	return "no underlay takes its program, see the devices"
}
