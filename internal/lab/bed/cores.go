// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/config"
	"golang.org/x/sys/unix"
)

// Cores says which core does what in a bed on this machine.
type Cores struct {
	NIC []int // polls wire queue i
	Gen []int // feeds wire queue i; which core sends decides the queue
	// Paced is where the paced generator sends from.
	Paced int
	// Sender has the sending host's stack, and the programs that send or ask.
	Sender int
	Steer  []int // what RPS and the product may use
	Apps   int   // where what was sent is received, by programs: the first of Servers, if that has its own
	// Servers are for programs with several threads, or several programs.
	Servers []int
	// Busy are lanes that further programs keep busy.
	Busy []int
}

// fewCores are too few for each role to have its own.
const fewCores = 4

// PlaceCores spreads the roles over the machine.
func (o *Options) PlaceCores() Cores { return placeOn(machine(), o.Queues, o.NIC) }

// machine lists the cores that this program may use.
func machine() (cores []int) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for c := 0; len(cores) < set.Count(); c++ {
			if set.IsSet(c) {
				cores = append(cores, c)
			}
		}
		return cores
	}
	for c := range runtime.NumCPU() {
		cores = append(cores, c)
	}
	return cores
}

// placeOn spreads the roles over cores: those that receive are the first, those that send the last.
//
// On two cores the generator shares the second one with everything that is steered there, and only
// gets what is left (SCHED_IDLE). From four on generator, sender and applications have cores of
// their own, as far as there are any: each queue needs one that feeds it. Where no other is left for
// a lane, generators share theirs with lanes again; and the sender shares one with a generator
// before lanes have none.
func placeOn(cores []int, queues int, nic NIC) Cores {
	n := len(cores)
	last := cores[n-1]
	c := Cores{Apps: last, Sender: last, Paced: last}
	for q := range queues {
		c.NIC = append(c.NIC, cores[q%n])
		if nic == Softirq {
			// The wire is polled where it is fed.
			c.Gen = append(c.Gen, c.NIC[q])
			continue
		}
		// veth puts what core k sends into queue k mod queues.
		i := n - 1
		for i > 0 && cores[i]%queues != q {
			i--
		}
		c.Gen = append(c.Gen, cores[i])
	}
	free := without(cores, c.NIC, c.Gen)
	if n < fewCores {
		if c.Servers = without(free, []int{c.Apps}); len(c.Servers) == 0 {
			c.Servers = []int{c.Apps}
		}
		c.Steer = slices.Clone(cores)
		return c
	}

	c.Paced = c.Gen[0]
	apps := max(len(free)/3, 1)
	if len(free) > 2 {
		c.Sender = free[len(free)-1]
		free = free[:len(free)-1]
	}
	if len(free) > 0 {
		c.Servers = free[len(free)-apps:]
		free = free[:len(free)-apps]
	} else {
		c.Servers = []int{cores[n-2]}
	}
	c.Apps = c.Servers[0]
	if len(free) == 0 {
		free = without(c.Gen, c.Servers, []int{c.Sender})
	}
	c.Steer = union(c.NIC, free)
	return c
}

// union returns the cores of all lists, each once and in order.
func union(lists ...[]int) []int {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(lists...))))
}

// without returns those of the cores that none of the lists has.
func without(cores []int, lists ...[]int) []int {
	return slices.DeleteFunc(slices.Clone(cores), func(core int) bool {
		return slices.ContainsFunc(lists, func(l []int) bool { return slices.Contains(l, core) })
	})
}

// senderApart tells that the sender's core does nothing of what is received.
func (c Cores) senderApart() bool {
	return len(without([]int{c.Sender}, c.NIC, c.Steer, c.Servers, []int{c.Apps})) > 0
}

// Node lists the cores of the receiving host, where it has some of its own; none: it shares all
// of them.
func (c Cores) Node() []int {
	if !c.senderApart() {
		return nil
	}
	return union(c.NIC, c.Steer, c.Servers)
}

// Lanes are the cores that may take work and poll no queue.
func (c Cores) Lanes() []int { return without(c.Steer, c.NIC) }

// KeepBusy has further programs keep n cores busy: the first of the lanes, but those that generators need
// as well, which only get what is left of them.
func (c *Cores) KeepBusy(n int) error {
	free := without(c.Lanes(), c.Gen, []int{c.Sender})
	if n < 0 || n > len(free) {
		return fmt.Errorf("%d busy cores: %d lanes here share no core with a generator or the sender (%s)", n, len(free), c)
	}
	c.Busy = free[:n]
	return nil
}

// String names the roles. What is steered may also stay on the cores that poll.
func (c Cores) String() string {
	var parts []string
	for _, role := range []struct {
		name  string
		cores []int
	}{
		{"receive", c.NIC}, {"lanes", c.Lanes()}, {"busy", c.Busy}, {"applications", append([]int{c.Apps}, c.Servers...)},
		{"sender", []int{c.Sender}}, {"generator", append([]int{c.Paced}, c.Gen...)},
	} {
		if len(role.cores) > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", role.name, config.CPUList(union(role.cores))))
		}
	}
	return strings.Join(parts, ", ")
}
