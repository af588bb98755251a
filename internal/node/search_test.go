// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/overlane/overlane/internal/netns"
)

// plug gives the bridge of a host a port that leads to a namespace, and waits until the kernel has told of it.
func plug(t *testing.T, s *Scanner, host, pod *ns, port string) Snapshot {
	t.Helper()
	host.ip(t, fmt.Sprintf("link add %s type veth peer name eth0 netns $1\nlink set %[1]s master br0 up", port), pod)
	return until(t, s, port+" is seen", func(n Snapshot) bool {
		return slices.Contains(podNames(n), port) || slices.ContainsFunc(n.Skipped, func(skip Skip) bool { return skip.Dev.Name == port })
	})
}

// All descriptors of the machine are read where an id comes that nothing else explains, once, and not where pods end.
func TestDescriptorsAreReadOnceForAnIDThatNothingExplains(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	a.ip(t, bridge)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	hidden, pod, next := wrap(t, h), named(t, w.dir, "pod"), named(t, w.dir, "next")
	for _, n := range []*ns{hidden, pod, next} {
		n.quiet(t)
	}
	s := w.scanner(a)
	scan(t, s)
	calm(t, s)
	read := func(what string, laps int) {
		t.Helper()
		calm(t, s)
		if s.search.laps != laps {
			t.Fatalf("%s: descriptors were read %d times, want %d", what, s.search.laps, laps)
		}
	}
	laps := s.search.laps
	plug(t, s, a, pod, "ve1")
	read("a pod with a name", laps)
	plug(t, s, a, hidden, "ve2")
	read("a pod whose namespace only this process has open", laps+1)
	plug(t, s, a, next, "ve3")
	read("another pod with a name", laps+1)
	unname(filepath.Join(w.dir, "pod"))
	if snap := until(t, s, "the name goes", func(Snapshot) bool { return true }); !slices.Equal(podNames(snap), []string{"ve3"}) {
		t.Fatalf("%+v", snap)
	}
	read("a pod that ends", laps+1)
}

// A scan has so much time for descriptors. The next one goes on, and no process is left out for an id that comes in
// the middle.
func TestSearchesGoOnInTheNextScan(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	a.ip(t, bridge)
	pods := []*ns{opened(t), opened(t)}
	s := w.scanner(a)
	scan(t, s)
	calm(t, s)
	s.search.most = 0
	add := func(i int) string {
		port := fmt.Sprint("ve", i)
		a.ip(t, fmt.Sprintf("link add %s type veth peer name eth0 netns $1\nlink set %[1]s master br0 up", port), pods[i])
		return port
	}
	find := func(port string) {
		t.Helper()
		for !slices.Contains(podNames(scan(t, s)), port) {
			over := true
			for _, end := range s.search.ends {
				over = over && s.search.laps >= end
			}
			if over {
				t.Fatalf("the search for the namespace behind %s was in vain", port)
			}
		}
	}
	port := add(0)
	lap := s.search.laps
	if snap := scan(t, s); len(snap.Pods) != 0 || s.search.laps != lap {
		t.Fatalf("one scan has read all descriptors: %+v", snap)
	}
	<-s.Events() // it goes on by itself
	find(port)
	for pid := strconv.Itoa(pods[1].proc.Process.Pid); slices.Contains(s.search.pids, pid); {
		s.search.some(func(string) {})
	}
	find(add(1))
}
