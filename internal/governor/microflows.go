// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Branches are the cores that take the micro-flows of what one core polls, of its elephants.
type Branches struct {
	Of    int   // the core that polls the NIC
	Cores []int // a branch each
	// Behind is the core on which the flows go on behind the merge, where there is one.
	Behind int
}

// SetOf is the place in Sets of what takes the micro-flows of flows that a core polls; -1: these
// stay whole. Where it was not known that the core would need some, it shares those of another.
func (l Layout) SetOf(core int) int {
	if slices.Contains(l.Whole, core) || len(l.Sets) == 0 {
		return -1
	}
	if i := slices.IndexFunc(l.Sets, func(s Branches) bool { return s.Of == core }); i >= 0 {
		return i
	}
	return core % len(l.Sets)
}

// Lacks tells whether one of the cores has no branches of its own.
func (l Layout) Lacks(cores []int) bool {
	return slices.ContainsFunc(cores, func(core int) bool {
		return !slices.ContainsFunc(l.Sets, func(s Branches) bool { return s.Of == core })
	})
}

// shared tells whether the branches of a core take elephants of another one as well. split is as for Needy.
func (l Layout) shared(core int, split map[int]float64) bool {
	for other, part := range split {
		if other != core && part > 0 && l.SetOf(other) == l.SetOf(core) {
			return true
		}
	}
	return false
}

// Needy are the cores whose elephants are to have branches of their own, the neediest first. Before micro-flows
// are in place these are the cores that are short of time. Then they are those that have some, as long as a flow
// of theirs is split, and those that lack some: elephants that share another core's would take much of one,
// or flows stay whole that are too much for one. split is, by core, what its split flows would take of one.
func (l Limits) Needy(in Input, at Layout, split map[int]float64) []int {
	var needy []int
	for _, s := range at.Sets {
		if split[s.Of] > 0 {
			needy = append(needy, s.Of)
		}
	}
	var others []int
	for cpu, c := range in.Cores {
		if slices.Contains(needy, cpu) {
			continue
		}
		if split[cpu] >= l.Idle && at.shared(cpu, split) || (at.None() || slices.Contains(at.Whole, cpu)) && l.short(c, true) {
			others = append(others, cpu)
		}
	}
	slices.SortFunc(others, func(a, b int) int {
		ca, cb := in.Cores[a], in.Cores[b]
		return cmp.Or(cmp.Compare(split[b], split[a]), cmp.Compare(cb.Saturated, ca.Saturated), cmp.Compare(cb.Rate, ca.Rate), cmp.Compare(a, b))
	})
	return append(needy, others...)
}

// PlaceMicroflows decides which lanes take the micro-flows of elephants. Each core that is helped, of which
// Short names the neediest first, has up to most lanes of its own: as many as take what a core can cut, and
// the one behind the merge can take. Where there are not two cores for each, the neediest have them, and the
// flows of the others stay whole. Where there is one at all, the core that polls takes its part, if it may
// take work. tier says where flows are cut: in tier XDP before the first stage, which lanes do as well, else
// behind it. merge: flows are put in order again, and go on from there on a core that is free, or else on the
// last of the lanes.
func PlaceMicroflows(tier Tier, m Machine, most int, merge bool, measured Costs) Layout {
	cost, source := measured.OrTypical(), "measured stage costs"
	if !measured.Known() {
		source = "typical stage costs"
	}
	one := cost.NIC + cost.Tunnel + cost.Pod
	// What a frame costs the polling core in any case, what a branch that is this core, and
	// what one that is another.
	poll, here, there := float64(splitPoll), one, one+splitThread
	if tier != XDP {
		poll, here, there = cost.NIC+cost.Hop/2, cost.Tunnel+cost.Pod, cost.Tunnel+cost.Pod+cost.Hop/2
	}
	helped, near := m.helped(), m.near()
	free := len(near.free)
	few := min(2, most, free)
	switch {
	case len(m.NIC) == 0:
		return Layout{Gain: 1, Reason: "no overlay packets have come yet"}
	case free == 0 && len(m.others()) > 0:
		return Layout{Gain: 1, Reason: "tasks, or packets that they receive, need all the cores that poll no NIC"}
	case free == 0:
		return Layout{Gain: 1, Reason: "every core polls a NIC: there is none for a micro-flow"}
	case few < 2 && !slices.ContainsFunc(m.NIC, func(c int) bool { return slices.Contains(m.Cores, c) }):
		return Layout{Gain: 1, Reason: fmt.Sprintf("one core, %d, polls no NIC, and the others may take no work: micro-flows need two", near.free[0])}
	}
	l := Layout{Split: true, Here: few < 2, Merge: merge}
	sets := min(len(helped), free/few, MaxLanes/few, MaxSets)
	if m.Short != nil {
		l.Whole = slices.Compact(slices.Sorted(slices.Values(slices.Concat(m.NIC, helped))))
		l.Whole = slices.DeleteFunc(l.Whole, func(core int) bool { return slices.Contains(helped[:sets], core) })
	}
	rest := free - sets*few
	// What the core behind the merge has to do. One more for each, and branches have less.
	behind := 0.
	if merge {
		behind = cost.Pod
	}
	if merge && rest >= sets {
		rest, behind = rest-sets, behind+cost.Hop/2
		here, there = here-cost.Pod+cost.Hop/2, there-cost.Pod+cost.Hop/2
	}
	width := few
	for !l.Here && width < most && rest >= sets && (width+1)*sets <= MaxLanes && there/float64(width) > max(poll, behind) {
		width, rest = width+1, rest-sets
	}
	if l.Here {
		// Of each frame the polling core takes the part p, and both are done at once:
		// poll + p*here = (1-p)*there.
		p := max((there-poll)/(here+there), 0)
		l.Gain = one / max(poll, behind, (1-p)*there)
	} else {
		// The core that polls does nothing else.
		l.Gain = one / max(poll, behind, there/float64(width))
	}
	second := false
	if tier == XDP && !l.Here && rest >= sets*width {
		// A core more for each, so that its two halves are done at once.
		half := max(cost.NIC+splitThread, there-cost.NIC-splitThread) + cost.Hop/2
		if gain := one / max(poll, behind, half/float64(width)); gain > clearly*l.Gain {
			l.Gain, second = gain, true
		}
	}
	for _, core := range helped[:sets] {
		l.Sets = append(l.Sets, Branches{Of: core, Cores: lanes(near.take(core, width))})
	}
	var all, seconds, last []int
	for i := range l.Sets {
		s := &l.Sets[i]
		all = append(all, s.Cores...)
		if second {
			seconds = append(seconds, near.take(s.Of, width)...)
		}
	}
	for i := range l.Sets {
		s := &l.Sets[i]
		s.Behind = s.Cores[len(s.Cores)-1]
		if alone := near.take(s.Of, 1); len(alone) > 0 {
			s.Behind = alone[0]
		}
		last = append(last, s.Behind)
	}
	if l.NIC, l.Tunnel = lanes(all), lanes(seconds); tier != XDP {
		l.NIC, l.Tunnel = nil, lanes(all)
	}
	if merge {
		l.Pod = lanes(last)
	}
	l.Reason = fmt.Sprintf("%s (%.0f ns a frame): %.2f times one core's rate predicted for one flow", source, one, l.Gain)
	return l
}

// near hands out the cores that poll no NIC and can take work.
type near struct {
	m     Machine
	free  []int
	taken map[int]bool
	known map[[2]int][]int // free, as of a core on such a node and at such a cache
}

func (m Machine) near() *near {
	n := &near{m: m, taken: map[int]bool{}, known: map[[2]int][]int{}}
	// The merge counts on it that no branch polls a NIC.
	n.m.Load = maps.Clone(m.Load)
	if n.m.Load == nil {
		n.m.Load = map[int]float64{}
	}
	for _, core := range slices.Concat(m.NIC, m.helped()) {
		n.m.Load[core] = 1
	}
	n.m.Cores, n.m.Short = m.others(), m.helped()
	n.free = n.m.free()
	return n
}

// take returns so many of those that are left, the nearest to a core first.
func (n *near) take(of, many int) (cores []int) {
	t := n.m.Topology
	at := [2]int{t.Node[of], t.Cache[of]}
	if n.known[at] == nil {
		m := n.m
		m.Short = []int{of}
		n.known[at] = m.free()
	}
	for _, c := range n.known[at] {
		if len(cores) < many && !n.taken[c] {
			cores, n.taken[c] = append(cores, c), true
		}
	}
	return cores
}
