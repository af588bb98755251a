// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"slices"
)

// PlaceMicroflows decides which lanes take the micro-flows of an elephant: up to most
// of the cores that poll no NIC. Where there are fewer than two, the core that polls takes
// its part, if it is one of them. tier says where flows are cut: in tier XDP before the first
// stage, which lanes do as well, else behind it. merge: flows are put in order again, and
// go on from there on a core that is free, or else on the last of the lanes.
func PlaceMicroflows(tier Tier, m Machine, most int, merge bool, measured Costs) Layout {
	cost, source := measured.OrTypical(), "measured stage costs"
	if !measured.Known() {
		source = "typical stage costs"
	}
	m.Short = nil // the merge counts on it that no branch polls a NIC
	free := m.free()
	branches := free[:min(len(free), most)]
	one := cost.NIC + cost.Tunnel + cost.Pod
	// What a frame costs the polling core in any case, what a branch that is this core, and
	// what one that is another.
	poll, here, there := float64(splitPoll), one, one+splitThread
	if tier != XDP {
		poll, here, there = cost.NIC+cost.Hop/2, cost.Tunnel+cost.Pod, cost.Tunnel+cost.Pod+cost.Hop/2
	}
	l := Layout{Split: true, NIC: lanes(branches)}
	if tier != XDP {
		l.NIC, l.Tunnel = nil, lanes(branches)
	}
	switch {
	case len(m.NIC) == 0:
		return Layout{Gain: 1, Reason: "no overlay packets have come yet"}
	case len(free) == 0 && len(m.others()) > 0:
		return Layout{Gain: 1, Reason: "tasks, or packets that they receive, need all the cores that poll no NIC"}
	case len(free) == 0:
		return Layout{Gain: 1, Reason: "every core polls a NIC: there is none for a micro-flow"}
	case len(branches) > 1:
		// The core that polls does nothing else.
		l.Gain = one / max(poll, there/float64(len(branches)))
	case !slices.ContainsFunc(m.NIC, func(c int) bool { return slices.Contains(m.Cores, c) }):
		return Layout{Gain: 1, Reason: fmt.Sprintf("one core, %d, polls no NIC, and the others may take no work: micro-flows need two", free[0])}
	default:
		// Of each frame the polling core takes the part p, and both are done at once:
		// poll + p*here = (1-p)*there.
		l.Here = true
		p := max((there-poll)/(here+there), 0)
		l.Gain = one / max(poll, (1-p)*there)
	}
	rest, behind := free[len(branches):], 0
	if merge {
		behind = 1
	}
	if n := len(branches); tier == XDP && !l.Here && len(rest) >= n+behind {
		// A core more for each, so that its two halves are done at once.
		half := max(cost.NIC+splitThread, cost.Tunnel+cost.Pod) + cost.Hop/2
		if gain := one / max(poll, half/float64(n)); gain > clearly*l.Gain {
			l.Gain, l.Tunnel, rest = gain, lanes(rest[:n]), rest[n:]
		}
	}
	if l.Merge = merge; merge {
		l.Pod = branches[len(branches)-1:]
		if len(rest) > 0 {
			l.Pod = rest[:1]
		}
	}
	l.Reason = fmt.Sprintf("%s (%.0f ns a frame): %.2f times one core's rate predicted for one flow", source, one, l.Gain)
	return l
}
