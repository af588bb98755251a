// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

type process struct {
	name   string
	parent int
	kernel bool
}

const kthreadd = 2

// listProcesses reads the processes and kernel threads of the machine, without
// the threads of processes.
func listProcesses() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended since
		}
		// PID (NAME) STATE PPID: the name may itself hold brackets and blanks.
		_, rest, _ := strings.Cut(string(stat), "(")
		end := strings.LastIndex(rest, ")")
		fields := strings.Fields(rest[max(end, 0)+1:])
		if end < 0 || len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		found[pid] = process{name: rest[:end], parent: parent, kernel: pid == kthreadd || parent == kthreadd}
	}
	return found, nil
}

// scheduling tells how a thread is scheduled and where it may run.
func scheduling(pid int) (string, error) {
	a, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return "", err
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &set); err != nil {
		return "", err
	}
	var cores []string
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cores = append(cores, strconv.Itoa(cpu))
		}
	}
	return fmt.Sprintf("policy %d nice %d priority %d cores %s", a.Policy, a.Nice, a.Priority, strings.Join(cores, ",")), nil
}

// readProcesses writes down the kernel threads of the receive path and the
// processes that run in namespaces of the scope.
func (o *observer) readProcesses(s *Snapshot, namespaces []*namespace, maps map[uint32]bool) error {
	processes, err := listProcesses()
	if err != nil {
		return err
	}
	cookies := map[uint64]uint64{}
	for _, ns := range namespaces {
		if !ns.home {
			cookies[ns.inode] = ns.cookie
		}
	}
	for pid, p := range processes {
		if p.kernel {
			if rule := o.threadRule(p.name, maps); rule != 0 {
				if how, err := scheduling(pid); err == nil {
					s.add(key{what: fmt.Sprintf("kernel thread %s", p.name)}, rule, "%s", how)
				}
			}
			continue
		}
		ino, ok := netnsInode("/proc/" + strconv.Itoa(pid) + "/ns/net")
		cookie, watched := cookies[ino]
		switch {
		case pid == os.Getpid() || !ok:
		case watched:
			s.add(key{ns: cookie, what: fmt.Sprintf("process %d", pid)}, appears, "%s", p.name)
		case o.scope.Machine && strings.HasPrefix(p.name, "overlane"):
			s.add(key{what: fmt.Sprintf("process %d", pid)}, appears, "%s", p.name)
		}
	}
	return nil
}

// threadRule picks the kernel threads that the receive path runs on. Those that
// every machine has must not change; those of a cpumap count with their map;
// those that poll a device are read with the device, unless all count.
func (o *observer) threadRule(name string, maps map[uint32]bool) counts {
	family, rest, _ := strings.Cut(name, "/")
	switch family {
	case "ksoftirqd", "backlog_napi":
		return changes
	case "cpumap": // cpumap/CPU/map:ID
		_, id, _ := strings.Cut(rest, "map:")
		n, err := strconv.ParseUint(id, 10, 32)
		if o.scope.Machine || err == nil && maps[uint32(n)] {
			return appears | changes
		}
	case "napi":
		if o.scope.Machine {
			return appears | changes
		}
	}
	return 0
}
