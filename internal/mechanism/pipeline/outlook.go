// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// Foresee says what the pipeline and micro-flows would change on a node. Nothing is measured there but the core that
// has received most: cores are chosen by typical costs, or are a running daemon's.
func Foresee(v *mechanism.View, opts Options) (list []mechanism.Outlook, err error) {
	list = append(list, stages(v, opts))
	if opts.splits() && v.Prioritised == nil {
		split, err := elephants(v, opts.Microflows)
		if err != nil {
			return nil, err
		}
		list = append(list, split)
	}
	return list, nil
}

// stages is what becomes of the stages of all flows.
func stages(v *mechanism.View, opts Options) mechanism.Outlook {
	out := mechanism.Outlook{Name: name, Plan: plan.Pipeline(plan.Input{}), Placement: &mechanism.Placement{}}
	if opts.Mode == governor.Off {
		out.When = "the pipeline is switched off by configuration"
		return out
	}
	layout := v.Placed
	if layout == nil {
		l := place(v, opts.Tier)
		layout = &l
	}
	out.Placement = &mechanism.Placement{NIC: layout.NIC, Tunnel: layout.Tunnel, Pod: layout.Pod, Reason: layout.Reason}
	in := planInput(v.Scanner, v.Snapshot, *layout, v.Owned(plan.ByPipeline), v.Places, xdp.Want{By: xdp.Pipeline, Asked: true}, nil)
	in.PodMask = podMask(*layout, v.Cores)
	if opts.Tier == governor.XDP && len(layout.NIC) == 0 {
		in.Skipped = append(in.Skipped, withoutXDP(v, xdp.Want{By: xdp.Pipeline, Asked: true})...)
	}
	leaveToExpress(&in, v.Snapshot, func(p node.Pod) bool { return v.Express[p.Peer.Key()] })
	out.Plan = plan.Pipeline(in)
	out.Attach = v.Missing(out.Attach)
	switch {
	case out.Empty() && len(v.Snapshot.Tunnels) == 0:
		out.When = "run would only watch: there is no VXLAN or Geneve tunnel yet"
	case out.Empty() && v.Placed != nil:
		out.When = "nothing to change: the running daemon has done it"
	case out.Empty():
		out.When = "run would change nothing here now"
	case v.Placed != nil:
		out.When = "the running daemon is about to do this:"
	case opts.Mode == governor.Forced:
		out.When = "run would do this as soon as overlay packets arrive:"
	default:
		out.When = "run would do this once receive processing saturates a core:"
	}
	return out
}

// withoutXDP says of NICs why flows do not go to lanes there, but behind them.
func withoutXDP(v *mechanism.View, want xdp.Want) (list []plan.Skip) {
	for _, u := range v.Snapshot.Underlays {
		if why := v.Places.Bars(u, want); why != "" {
			list = append(list, skipXDP(u, why))
		}
	}
	return list
}

// place is the placement that a daemon would begin with.
func place(v *mechanism.View, wanted governor.Tier) governor.Layout {
	m := governor.Machine{Cores: v.Cores, NIC: []int{v.Receives}, Topology: v.Topology}
	if v.Prioritised != nil {
		if len(v.Polled) > 0 {
			m.NIC = v.Polled
		}
		return governor.PlaceBesidePriority(m, governor.Costs{})
	}
	takes := func(u node.Underlay) bool { return v.Places.Bars(u, xdp.Want{By: xdp.Pipeline, Asked: true}) == "" }
	tier := governor.TC
	if wanted == governor.XDP && (len(v.Snapshot.Underlays) == 0 || slices.ContainsFunc(v.Snapshot.Underlays, takes)) {
		tier = governor.XDP
	}
	return governor.Place(tier, m, governor.Costs{})
}

// splits tells whether flows may be split here: those whose order is restored, or need not be. A pipeline that is
// forced acts alone.
func (o Options) splits() bool {
	m := o.Microflows
	if o.Mode == governor.Forced && m.Mode != governor.Forced {
		return false
	}
	return m.Mode != governor.Off && (m.Unordered || m.NoMerge == nil)
}

// want is how micro-flows want a NIC: by themselves, unless they are forced.
func (m Microflows) want() xdp.Want {
	return xdp.Want{By: xdp.Microflows, Asked: m.Mode == governor.Forced}
}

// most is how many cores a flow may be spread over.
func (m Microflows) most() int { return min(m.Cores, datapath.MaxBranches) }

// elephants is what a flow that is too much for one core changes.
func elephants(v *mechanism.View, m Microflows) (mechanism.Outlook, error) {
	out := mechanism.Outlook{Name: microflowsName, Plan: plan.Pipeline(plan.Input{})}
	want := m.want()
	tier := governor.XDP
	refuses := func(u node.Underlay) bool { return v.Places.Bars(u, want) != "" }
	if m.NoXDP != nil || slices.ContainsFunc(v.Snapshot.Underlays, refuses) {
		tier = governor.TC
	}
	machine := governor.Machine{Cores: v.Cores, NIC: []int{v.Receives}, Topology: v.Topology}
	layout := governor.PlaceMicroflows(tier, machine, m.most(), m.NoMerge == nil, governor.Costs{})
	if layout.None() {
		out.When = "run would split no flow: " + layout.Reason
		return out, nil
	}
	var past map[node.DevKey]string
	if layout.Merge {
		ws := shortcut.NewWatchers(v.Scanner, v.Owns, nil)
		past = new(merging).skips(ws.PastHostEnds(v.Snapshot), v.Snapshot.Pods)
		if err := ws.Close(); err != nil {
			return out, err
		}
	}
	in := planInput(v.Scanner, v.Snapshot, layout, v.Owned(plan.ByPipeline), v.Places, want, past)
	if layout.Merge {
		in.Merge = mergeSteps(v.Snapshot, mergeIndex(in.Owned))
	}
	if tier == governor.TC && want.Asked {
		in.Skipped = append(in.Skipped, withoutXDP(v, want)...)
	}
	out.Plan = plan.Pipeline(in)
	planned := out.Attach
	out.Attach = v.Missing(planned)
	// Tunnels and pods that are left alone are no matter here, but where order is not restored.
	onNIC := func(sk plan.Skip) bool {
		return slices.ContainsFunc(v.Snapshot.Underlays, func(u node.Underlay) bool {
			return u.Ifindex == sk.Target.Ifindex && u.NetnsCookie == sk.Target.NetnsCookie
		})
	}
	out.Skipped = slices.DeleteFunc(out.Skipped, func(sk plan.Skip) bool { return !onNIC(sk) && !strings.HasPrefix(sk.What, podMerge) })
	what := "a flow"
	if !layout.Merge {
		what = "a UDP flow"
	}
	switch {
	case out.Empty() && len(planned) > 0:
		out.When = "to split flows, nothing is to be changed: the running daemon has done it"
	case out.Empty():
		out.When = "to split flows, run would change nothing here now"
	default:
		out.When = fmt.Sprintf("once %s is too much for one core, run would spread it over %s more:", what, printable.Plural(len(layout.NIC)+len(layout.Tunnel), "core"))
	}
	return out, nil
}
