// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"

	"github.com/overlane/overlane/internal/governor"
)

// machine is what a placement in this window is made for. One that is forced by configuration asks for no
// core's load, and helps all that poll.
func (d *Daemon) machine(in governor.Input, short []int, mode governor.Mode) governor.Machine {
	if mode == governor.Forced {
		return governor.Machine{Cores: in.Configured, NIC: in.Pollers(), Topology: d.opts.Topology}
	}
	if len(short) == 0 {
		short = nil // not known yet
	}
	return in.Machine(short, d.opts.Limits, d.opts.Topology)
}

// place is where the pipeline's lanes would be, for the cores that are short of time.
func (d *Daemon) place(in governor.Input, short []int) governor.Layout {
	m := d.machine(in, short, d.opts.Mode)
	if d.prio.onNIC() {
		m.NIC = d.prio.pollers()
		return governor.PlaceBesidePriority(m, in.Costs)
	}
	tier := d.tier()
	if tier == governor.XDP {
		// A core that polls takes no lane of the nic stage, whether it has time to spare or not.
		m.NIC, m.Short = d.polls.lately(in.Now), nil
	}
	return governor.Place(tier, m, in.Costs)
}

// refitLanes has the pipeline taken off, its flows drained, where its lanes do not fit any more. It is placed
// anew then, by what is so now.
func (d *Daemon) refitLanes(in governor.Input, dec governor.Decision) {
	// Behind lanes of the nic stage the tunnels' polls tell where these are, not which core polls the NIC.
	if !d.pipe.armed || !d.pipe.layout.Split && len(d.pipe.layout.NIC) > 0 || d.evict {
		d.refit.Leave()
		return
	}
	if d.pipe.layout.Split {
		d.refitBranches(in, dec)
		return
	}
	short := dec.Short
	if len(short) == 0 {
		short = d.opts.Limits.Short(in, false)
	}
	in.Layout = d.pipe.layout
	at := governor.InPlace{Layout: d.pipe.layout, Cores: d.before}
	if why := d.refit.Step(in, at, dec, d.place(in, short)); why != "" {
		d.log.Info("pipeline is placed anew", "mechanism", "pipeline", "reason", why)
		d.evict = true
	}
}

// avoidCores makes flows leave the lanes of cores that tasks need.
func (d *Daemon) avoidCores(dec governor.Decision, mechanism string) error {
	if slices.Equal(d.avoid, dec.Avoid) {
		return nil
	}
	for _, core := range dec.Avoid {
		if !slices.Contains(d.avoid, core) {
			d.log.Info("flows leave a core", "mechanism", mechanism, "core", core, "reason", "tasks need it")
		}
	}
	d.avoid = dec.Avoid
	return d.leaveCores()
}

// leaveCores makes flows leave the lanes of cores that are to take none.
func (d *Daemon) leaveCores() error {
	return d.pipe.leave(func(core int) bool {
		return !slices.Contains(d.cores, core) || slices.Contains(d.avoid, core)
	})
}
