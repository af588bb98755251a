// SPDX-License-Identifier: Apache-2.0

// Package privilege says which capabilities overlane needs and what for, and takes all others
// away, from every thread and for good.
package privilege

import (
	"fmt"
	"math/bits"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/shell"
)

// Capability is one of capabilities(7).
type Capability int

func (c Capability) String() string {
	for _, n := range needs {
		if n.Capability == c {
			return n.name
		}
	}
	return fmt.Sprintf("capability %d", int(c))
}

// Set is a set of capabilities, a bit for each, as the kernel writes them in /proc/PID/status.
type Set uint64

// Of is the set of some capabilities.
func Of(caps ...Capability) (s Set) {
	for _, c := range caps {
		s |= 1 << c
	}
	return s
}

// Has tells whether a capability is in the set.
func (s Set) Has(c Capability) bool { return s&(1<<c) != 0 }

// Capabilities lists the set, by number.
func (s Set) Capabilities() (list []Capability) {
	for ; s != 0; s &= s - 1 {
		list = append(list, Capability(bits.TrailingZeros64(uint64(s))))
	}
	return list
}

// Need is a capability that the daemon needs.
type Need struct {
	Capability
	name string
	// For is what the daemon does by it.
	For string
	// Without is what a daemon that lacks it does not do; empty: there is no use for such a one.
	Without string
}

// needs are all that the daemon ever needs. docs/privileges.md says by which check of the kernel.
var needs = []Need{
	{unix.CAP_BPF, "CAP_BPF", "loads its BPF programs and maps", ""},
	{unix.CAP_PERFMON, "CAP_PERFMON", "has BPF programs read the kernel's queues and what polls cost", ""},
	{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN", "attaches its programs to devices and changes settings of these", ""},
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "enters the network namespaces of tunnels and pods and reads their sysfs", ""},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "finds network namespaces without a name, by the processes in them",
		"tunnels and pods are found only in network namespaces that have a name in /run/netns or /run/docker/netns"},
	{unix.CAP_SYS_NICE, "CAP_SYS_NICE", "schedules the threads that poll NICs and those of lanes",
		"priority does nothing"},
}

// Daemon is what `overlane run` keeps.
func Daemon() (s Set) {
	for _, n := range needs {
		s |= Of(n.Capability)
	}
	return s
}

// Guardian is what its guardian keeps: enough to find and to write what outlives a daemon, and no
// BPF: what it does with the daemon's programs and maps it may do by their descriptors.
func Guardian() Set {
	return Of(unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SYS_NICE)
}

// Missing lists what a thread with these capabilities lacks of what the daemon needs.
func Missing(held Set) (list []Need) {
	for _, n := range needs {
		if !held.Has(n.Capability) && !(byAdmin.Has(n.Capability) && held.Has(unix.CAP_SYS_ADMIN)) {
			list = append(list, n)
		}
	}
	return list
}

// byAdmin are those for which the kernel takes CAP_SYS_ADMIN, too. Docker before 23 does not know them:
// there not even --privileged gives them.
const byAdmin = Set(1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON)

// Everyday is what a thread with these capabilities has in force all the time: what most of the daemon's
// system calls need. The other ones are raised for what needs them.
func Everyday(held Set) Set {
	s := byAdmin | Of(unix.CAP_NET_ADMIN)
	if held&byAdmin != byAdmin {
		s |= Of(unix.CAP_SYS_ADMIN)
	}
	return held & s
}

// Grant is how capabilities are given to the process that starts the daemon.
func Grant(missing []Need) shell.Line {
	var unit, flags []string
	for _, n := range missing {
		unit = append(unit, n.String())
		flags = append(flags, "--cap-add="+strings.TrimPrefix(n.String(), "CAP_"))
	}
	return shell.Command("CapabilityBoundingSet=%s in its systemd unit, or docker run %s", unit, flags)
}
