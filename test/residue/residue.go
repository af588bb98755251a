// SPDX-License-Identifier: Apache-2.0

// Package residue judges whether anything was left behind: it writes down what
// the kernel says before and after, and names the differences.
//
// The judge shares no code with the product. It talks to bpf(2), netlink,
// ethtool, sysfs and procfs by itself, so that a wrong reading there cannot hide
// a wrong writing here. A test of this package holds it to that.
package residue

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/test/patience"
)

// Scope says whose traces count. The zero value watches what no test may touch:
// the settings of the namespace the test runs in, and BPF objects, mounts and
// pins that carry one of the product's names.
//
// Several tests may run on one machine at a time. What stands in namespaces out
// of scope is not looked at, and a BPF object that only processes out of scope
// hold open is theirs: in scope are the calling process, its descendants, and
// whatever runs in one of Namespaces.
type Scope struct {
	// Namespaces are network namespaces that count in full: every device, its
	// settings and attachments, every process. Each is a path such as
	// /run/netns/NAME or /proc/PID/ns/net; see also FD and Inode.
	Namespaces []string
	// Prefixes begin the names of BPF objects, pins, mounts and named
	// namespaces that count. Nil stands for DefaultPrefixes.
	Prefixes []string
	// Dirs are directories whose files count by name, such as a state
	// directory. One that does not exist is empty.
	Dirs []string
	// Machine widens the scope to everything on the machine: every BPF object,
	// mount and kernel thread, and every namespace that something holds by a
	// process, a descriptor or a mount. Only for runs that have the machine to
	// themselves.
	Machine bool
}

// DefaultPrefixes begin the names of everything the daemon makes. (A lab names
// its namespaces after itself.)
var DefaultPrefixes = []string{"ol_", "overlane"}

// FD is the path of a namespace that the calling process holds open.
func FD(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// Inode finds a path to a network namespace by its inode number.
func Inode(ino uint64) (string, error) {
	all, err := listNamespaces()
	if err != nil {
		return "", err
	}
	path, ok := all[ino]
	if !ok {
		return "", fmt.Errorf("find network namespace %d: nothing holds it open", ino)
	}
	return path, nil
}

func (s Scope) named(name string) bool {
	if s.Machine {
		return true
	}
	prefixes := s.Prefixes
	if prefixes == nil {
		prefixes = DefaultPrefixes
	}
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// Snapshot is what one look at the kernel found.
type Snapshot struct {
	facts map[key]fact
	names map[uint64]string // namespace cookie -> what to call it
}

// key places a fact: in a namespace (0: the machine), at a device ("": none).
type key struct {
	ns   uint64
	dev  string
	what string
}

type fact struct {
	value  string
	counts counts
}

// counts says which differences in a fact are residue.
type counts uint8

const (
	appears counts = 1 << iota
	vanishes
	changes

	any_ = appears | vanishes | changes
)

func (s *Snapshot) add(k key, c counts, format string, args ...any) {
	s.facts[k] = fact{fmt.Sprintf(format, args...), c}
}

// Read looks once. It needs root.
func Read(scope Scope) (Snapshot, error) {
	o, err := openScope(scope)
	if err != nil {
		return Snapshot{}, err
	}
	defer o.close()
	return o.read()
}

// Take looks once and ends the test if it cannot.
func Take(tb testing.TB, scope Scope) Snapshot {
	tb.Helper()
	needRoot(tb)
	s, err := Read(scope)
	if err != nil {
		tb.Fatalf("residue: %v", err)
	}
	return s
}

// settle bounds the wait for what the kernel frees late: BPF objects after an
// RCU grace period, namespaces and kernel threads by a worker.
var settle = patience.For(5 * time.Second)

// Check looks now and again when the test ends, and fails it with what differs.
// Clean-ups run last in, first out: call Check after making what may stay (the
// lab) and before making what must go (the daemon).
//
// The namespaces in scope are held open until then: one that the test deletes
// lives on, and is judged, until the end of the test.
func Check(tb testing.TB, scope Scope) {
	tb.Helper()
	check(tb, scope, settle)
}

func check(tb testing.TB, scope Scope, patience time.Duration) {
	tb.Helper()
	needRoot(tb)
	o, err := openScope(scope)
	if err != nil {
		tb.Fatalf("residue: %v", err)
	}
	before, err := o.read()
	if err != nil {
		o.close()
		tb.Fatalf("residue: %v", err)
	}
	tb.Cleanup(func() {
		tb.Helper()
		defer o.close()
		left, err := o.settled(before, patience)
		if err != nil {
			tb.Errorf("residue: %v", err)
		}
		for _, line := range left {
			tb.Errorf("residue: %s", line)
		}
	})
}

// Settled looks until nothing differs from before, for five seconds or longer on a slow machine,
// and names what still does. It is Check for programs that are no tests.
func Settled(before Snapshot, scope Scope) ([]string, error) {
	o, err := openScope(scope)
	if err != nil {
		return nil, err
	}
	defer o.close()
	return o.settled(before, settle)
}

// settled looks until nothing differs from before or patience is over.
func (o *observer) settled(before Snapshot, patience time.Duration) ([]string, error) {
	pause := 10 * time.Millisecond
	for deadline := time.Now().Add(patience); ; pause = min(2*pause, 500*time.Millisecond) {
		after, err := o.read()
		if err != nil {
			return nil, err
		}
		left := Diff(before, after)
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
		time.Sleep(pause) // nothing announces the end of a grace period
	}
}

// Diff names every difference that is residue, in a stable order. A namespace
// or device that came or went is one line, not one for each of its settings.
func Diff(before, after Snapshot) []string {
	type line struct {
		k    key
		text string
	}
	var lines []line
	place := func(k key) string { return k.place(after.names, before.names) }
	for k, was := range before.facts {
		is, there := after.facts[k]
		switch {
		case !there && was.counts&vanishes != 0 && !covered(k, before, after):
			lines = append(lines, line{k, fmt.Sprintf("gone: %s: was %s", place(k), was.value)})
		case there && is.value != was.value && is.counts&changes != 0:
			lines = append(lines, line{k, fmt.Sprintf("changed: %s: was %s, is %s", place(k), was.value, is.value)})
		}
	}
	for k, is := range after.facts {
		if _, was := before.facts[k]; !was && is.counts&appears != 0 && !covered(k, after, before) {
			lines = append(lines, line{k, fmt.Sprintf("left behind: %s: %s", place(k), is.value)})
		}
	}
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.k.ns, b.k.ns), strings.Compare(a.k.dev, b.k.dev), strings.Compare(a.k.what, b.k.what))
	})
	texts := make([]string, len(lines))
	for i, l := range lines {
		texts[i] = l.text
	}
	return texts
}

// Facts whose coming and going speaks for all others at the same place.
const (
	whatNetns  = "network namespace"
	whatDevice = "device"
)

// covered reports whether a fact in here, missing there, is explained by its
// device or namespace missing there.
func covered(k key, here, there Snapshot) bool {
	only := func(in key) bool {
		if in == k {
			return false
		}
		_, a := here.facts[in]
		_, b := there.facts[in]
		return a && !b
	}
	return only(key{ns: k.ns, what: whatNetns}) ||
		k.dev != "" && only(key{ns: k.ns, dev: k.dev, what: whatDevice})
}

func (k key) place(names ...map[uint64]string) string {
	var parts []string
	if k.ns != 0 {
		name := fmt.Sprintf("netns cookie %d", k.ns)
		for _, n := range names {
			if n[k.ns] != "" {
				name = n[k.ns]
				break
			}
		}
		parts = append(parts, name)
	}
	if k.dev != "" {
		parts = append(parts, k.dev)
	}
	return strings.Join(append(parts, k.what), " ")
}

func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: lists BPF objects and enters network namespaces")
	}
}

// gone reports whether err says that the thing being looked at has just ended,
// which a look at a living machine must bear.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, errESRCH) || errors.Is(err, errENODEV)
}
