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

// room is the share of a core that is left for work of others.
func (m Machine) room(core int) float64 { return max(1-m.Load[core], 0) }

// least is the room that makes a core worth a hop.
const least = 0.2

// free are the cores that can take work, the best first: on the NUMA node of the cores that are
// helped, no sibling of one that is busy, with the same cache, the idlest, the lowest. A core that
// polls a NIC comes last, and only where it is known to need no help itself.
func (m Machine) free() []int {
	helped := m.helped()
	fit := slices.DeleteFunc(slices.Clone(m.Cores), func(c int) bool {
		return slices.Contains(helped, c) || m.Short == nil && slices.Contains(m.NIC, c) ||
			m.room(c) < least || m.Most > 0 && m.Tasks[c] > m.Most
	})
	busy := func(c int) bool { return m.room(c) < 0.5 || slices.Contains(helped, c) }
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	rank := func(c int) [5]int {
		t := m.Topology
		near := func(of map[int]int) bool {
			return len(helped) == 0 || slices.ContainsFunc(helped, func(h int) bool { return of[h] == of[c] })
		}
		return [5]int{
			flag(!near(t.Node)), flag(slices.ContainsFunc(t.Siblings[c], busy)), flag(!near(t.Cache)),
			flag(slices.Contains(m.NIC, c)), int(math.Round(10 * m.Load[c])),
		}
	}
	slices.SortStableFunc(fit, func(a, b int) int {
		ra, rb := rank(a), rank(b)
		return cmp.Or(slices.Compare(ra[:], rb[:]), cmp.Compare(a, b))
	})
	// Of two threads of one core, the second is only worth something once all cores have one.
	var second []int
	for i := 0; i < len(fit); {
		if slices.ContainsFunc(fit[:i], func(c int) bool { return slices.Contains(m.Topology.Siblings[fit[i]], c) }) {
			second, fit = append(second, fit[i]), slices.Delete(fit, i, i+1)
			continue
		}
		i++
	}
	return append(fit, second...)
}

// Machine is the one of a window, for a placement that helps the given cores; nil: those that are not
// known yet.
func (in Input) Machine(short []int, limits Limits, t Topology) Machine {
	m := Machine{
		Cores: in.Configured, NIC: in.Pollers(), Short: short,
		Load: map[int]float64{}, Tasks: map[int]float64{}, Most: limits.TasksOn, Topology: t,
	}
	for cpu, c := range in.Cores {
		m.Load[cpu], m.Tasks[cpu] = max(c.Load, c.Tasks), c.Tasks
	}
	// What a lane receives now is what is to be placed.
	for _, cpu := range in.Layout.Cores() {
		m.Load[cpu] = m.Tasks[cpu]
	}
	return m
}
