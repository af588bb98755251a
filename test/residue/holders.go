// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// holders says which processes hold BPF objects open: "prog 12" -> ours, theirs.
type holders map[string]*struct{ ours, theirs bool }

func holderKey(kind string, id uint32) string { return kind + " " + strconv.Itoa(int(id)) }

func (h holders) note(key string, ours bool) {
	if h[key] == nil {
		h[key] = &struct{ ours, theirs bool }{}
	}
	if ours {
		h[key].ours = true
	} else {
		h[key].theirs = true
	}
}

// only reports whether processes out of scope alone hold the object. One that
// no process holds was forgotten, and counts.
func (h holders) only(kind string, id uint32) bool {
	e := h[holderKey(kind, id)]
	return e != nil && e.theirs && !e.ours
}

// spread lets a holder of a link hold its program, and one of a program hold
// its maps.
func (h holders) spread(links, programs []object) {
	pass := func(from, to string) {
		if e := h[from]; e != nil {
			if e.ours {
				h.note(to, true)
			}
			if e.theirs {
				h.note(to, false)
			}
		}
	}
	for _, l := range links {
		pass(holderKey("link", l.id), holderKey("prog", l.uses[0]))
	}
	for _, p := range programs {
		for _, m := range p.uses {
			pass(holderKey("prog", p.id), holderKey("map", m))
		}
	}
}

// heldByOthers goes through the descriptors of every process.
func (o *observer) heldByOthers() (holders, error) {
	processes, err := listProcesses()
	if err != nil {
		return nil, err
	}
	h := holders{}
	for pid, p := range processes {
		if p.kernel {
			continue
		}
		ours := o.ours(processes, pid)
		files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		for _, file := range files {
			target, err := os.Readlink(file)
			if err != nil || !strings.HasPrefix(target, "anon_inode:bpf") {
				continue
			}
			info, err := os.ReadFile(strings.Replace(file, "/fd/", "/fdinfo/", 1))
			if err != nil {
				continue
			}
			for lines := bufio.NewScanner(bytes.NewReader(info)); lines.Scan(); {
				label, value, _ := strings.Cut(lines.Text(), "_id:")
				if label == "prog" || label == "map" || label == "link" {
					h.note(label+" "+strings.TrimSpace(value), ours)
				}
			}
		}
	}
	return h, nil
}

// ours reports whether a process is in scope: this one, one that descends from
// it, or one in a namespace of the scope.
func (o *observer) ours(processes map[int]process, pid int) bool {
	if ino, ok := netnsInode("/proc/" + strconv.Itoa(pid) + "/ns/net"); ok && o.owns(ino) {
		return true
	}
	for range len(processes) {
		if pid == os.Getpid() {
			return true
		}
		p, ok := processes[pid]
		if !ok {
			return false
		}
		pid = p.parent
	}
	return false
}
