// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"

	"github.com/overlane/overlane/internal/governor"
)

// machine is what a placement in this window is made for, and what its stages cost. One that is forced by configuration
// helps all that poll. It asks for no core's load, nor for measured costs: by these it may be worth nothing, and plan
// has none.
func (p *Pipeline) machine(in governor.Input, short []int, mode governor.Mode) (governor.Machine, governor.Costs) {
	if mode == governor.Forced {
		return governor.Machine{Cores: in.Configured, NIC: in.Pollers(), Topology: p.topology}, governor.Costs{}
	}
	if len(short) == 0 {
		short = nil // not known yet
	}
	return in.Machine(short, p.opts.Limits, p.topology), in.Costs
}

// place is where the pipeline's lanes would be, for the cores that are short of time.
func (p *Pipeline) place(in governor.Input, short []int) governor.Layout {
	m, costs := p.machine(in, short, p.opts.Mode)
	if p.host.PriorityOnNIC() {
		m.NIC = p.host.PriorityCores()
		return governor.PlaceBesidePriority(m, costs)
	}
	tier := p.tier()
	if tier == governor.XDP {
		// A core that polls takes no lane of the nic stage, whether it has time to spare or not.
		m.NIC, m.Short = p.polls.lately(), nil
	}
	return governor.Place(tier, m, costs)
}

// refitLanes has the pipeline taken off, its flows drained, where its lanes do not fit any more. It is placed
// anew then, by what is so now.
func (p *Pipeline) refitLanes(in governor.Input, dec governor.Decision) {
	// Behind lanes of the nic stage the tunnels' polls tell where these are, not which core polls the NIC.
	if !p.actuator.armed || !p.actuator.layout.Split && len(p.actuator.layout.NIC) > 0 || p.evict {
		p.refit.Leave()
		return
	}
	if p.actuator.layout.Split {
		p.refitBranches(in, dec)
		return
	}
	short := dec.Short
	if len(short) == 0 {
		short = p.opts.Limits.Short(in, false)
	}
	in.Layout = p.actuator.layout
	at := governor.InPlace{Layout: p.actuator.layout, Cores: p.before}
	if why := p.refit.Step(in, at, dec, p.place(in, short)); why != "" {
		p.host.Log().Info("pipeline is placed anew", "mechanism", name, "reason", why)
		p.evict = true
	}
}

// avoidCores makes flows leave the lanes of cores that tasks need.
func (p *Pipeline) avoidCores(dec governor.Decision, mechanism string) error {
	if slices.Equal(p.avoid, dec.Avoid) {
		return nil
	}
	for _, core := range dec.Avoid {
		if !slices.Contains(p.avoid, core) {
			p.host.Log().Info("flows leave a core", "mechanism", mechanism, "core", core, "reason", "tasks need it")
		}
	}
	p.avoid = dec.Avoid
	return p.leaveCores()
}

// leaveCores makes flows leave the lanes of cores that are to take none.
func (p *Pipeline) leaveCores() error {
	return p.actuator.leave(func(core int) bool {
		return !slices.Contains(p.host.Cores(), core) || slices.Contains(p.avoid, core)
	})
}
