// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"cmp"
	"math"
	"slices"
)

// Topology is how a machine's cores are wired. What it does not name is alike: the zero value
// describes cores that have nothing but themselves.
type Topology struct {
	Node     map[int]int   // a core's NUMA node
	Cache    map[int]int   // the group of cores that share its last level of cache
	Siblings map[int][]int // the other threads of the same physical core
}

// Machine is what a placement is made for.
type Machine struct {
	// Cores may take work, sorted.
	Cores []int
	// NIC are the cores that poll a NIC, sorted.
	NIC []int
	// Short are those of NIC that need help; nil: all of them.
	Short []int
	// Load is the share of a core that is taken already, 0 to 1: by tasks and by what it receives.
	Load map[int]float64
	// Tasks is the tasks' part of that. A core of which they take more than Most takes no work.
	Tasks    map[int]float64
	Most     float64
	Topology Topology
}

// helped are the cores whose work is to go elsewhere.
func (m Machine) helped() []int {
	if m.Short == nil {
		return m.NIC
	}
	return m.Short
}

// others are the cores that may take work and poll no NIC.
func (m Machine) others() []int {
	return slices.DeleteFunc(slices.Clone(m.Cores), func(c int) bool { return slices.Contains(m.NIC, c) })
}

// room is the share of a core that is left for work of others.
func (m Machine) room(core int) float64 { return max(1-m.Load[core], 0) }

const (
	// least is the room that makes a core worth a hop.
	least = 0.2
	// busySibling is the room below which a core has little left for the other threads of its own.
	busySibling = 0.5
)

// free are the cores that can take work, the best first: by how they are wired to others that work, by
// whether they share the cache of a core that is helped, poll themselves, by their load, and the lowest. A
// core that polls a NIC is one only where it is known to need no help itself.
func (m Machine) free() []int {
	helped, polls := set(m.helped()), set(m.NIC)
	nodes, caches := map[int]bool{}, map[int]bool{}
	for c := range helped {
		nodes[m.Topology.Node[c]], caches[m.Topology.Cache[c]] = true, true
	}
	var free []ranked
	for _, c := range m.Cores {
		if helped[c] || m.Short == nil && polls[c] || m.room(c) < least || m.Most > 0 && m.Tasks[c] > m.Most {
			continue
		}
		r := ranked{wired: own, load: int(math.Round(10 * m.Load[c])), core: c}
		if !nodes[m.Topology.Node[c]] && len(nodes) > 0 {
			r.wired = otherNode
		}
		if !caches[m.Topology.Cache[c]] && len(caches) > 0 {
			r.cache = 1
		}
		if polls[c] {
			r.polls = 1
		}
		if slices.ContainsFunc(m.Topology.Siblings[c], func(s int) bool { return helped[s] || m.room(s) < busySibling }) {
			r.wired = besideBusy
		}
		free = append(free, r)
	}
	slices.SortFunc(free, ranked.compare)
	// Of the threads of one core, the first takes a lane before the others do.
	before := make(map[int]bool, len(free))
	for i, r := range free {
		if r.wired == own && slices.ContainsFunc(m.Topology.Siblings[r.core], func(s int) bool { return before[s] }) {
			free[i].wired = besideLane
		}
		before[r.core] = true
	}
	slices.SortFunc(free, ranked.compare)
	var cores []int
	for _, r := range free {
		cores = append(cores, r.core)
	}
	return cores
}

// ranked is a core that can take work; what comes first decides, and less is better.
type ranked struct{ wired, cache, polls, load, core int }

func (a ranked) compare(b ranked) int {
	return cmp.Or(cmp.Compare(a.wired, b.wired), cmp.Compare(a.cache, b.cache), cmp.Compare(a.polls, b.polls), cmp.Compare(a.load, b.load), cmp.Compare(a.core, b.core))
}

// How a core is wired to others that work, the best first.
const (
	own        = iota // nothing else runs on it
	besideLane        // another of its threads is a lane
	otherNode         // no core that is helped is on its NUMA node
	besideBusy        // another of its threads has little room, or is helped
)

func set(cores []int) map[int]bool {
	s := make(map[int]bool, len(cores))
	for _, c := range cores {
		s[c] = true
	}
	return s
}

// Machine is the one of a window, for a placement that helps the given cores; nil: those that are not
// known yet.
func (in Input) Machine(short []int, limits Limits, t Topology) Machine {
	m := Machine{
		Cores: in.Configured, NIC: in.Pollers(), Short: short,
		Load: make(map[int]float64, len(in.Cores)), Tasks: make(map[int]float64, len(in.Cores)), Most: limits.TasksOn, Topology: t,
	}
	for cpu, c := range in.Cores {
		m.Load[cpu], m.Tasks[cpu] = max(c.Load, c.Tasks), c.Tasks
	}
	// What a lane takes of others is what is to be placed: it has what it polls itself.
	for _, cpu := range in.Layout.Cores() {
		m.Load[cpu] = min(m.Tasks[cpu]+in.path(in.Cores[cpu]), 1)
	}
	return m
}
