// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/docker/numbered"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
)

const (
	port = 7000
	dev  = "eth0" // a container's device of the overlay network
	// rate of paced traffic, of which nothing has to be lost.
	rate = 20000
)

// load is traffic from a container of one engine to a container of the other.
type load struct {
	t        testing.TB
	s        *swarm
	from, to *container
	wire     bed.WireStats // when it began
}

// startLoad starts both containers and returns when datagrams arrive. Both are on the core that does
// not poll the NIC, as far as there are others.
func startLoad(t testing.TB, s *swarm, reader []string, args ...string) *load {
	t.Helper()
	apps := runtime.NumCPU() - 1
	l := &load{t: t, s: s}
	l.to = s.run(t, s.receiver, apps, append([]string{"reader", "-port", fmt.Sprint(port)}, reader...)...)
	var err error
	if l.wire, err = s.bed.WireStats(); err != nil {
		t.Fatal(err)
	}
	l.from = s.run(t, s.sender, apps, append([]string{"sender", "-to", fmt.Sprintf("%s:%d", l.to.ip, port)}, args...)...)
	l.goesOn()
	return l
}

func paced(t testing.TB, s *swarm) *load {
	t.Helper()
	return startLoad(t, s, nil, "-flows", "4", "-rate", fmt.Sprint(rate))
}

// counters of a container's program; zero before it has said any.
func (c *container) counters() numbered.Counters {
	c.t.Helper()
	n, err := numbered.Load(filepath.Join(c.share, "counters"))
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	return n
}

// goesOn waits until another few hundred datagrams have arrived.
func (l *load) goesOn() {
	l.t.Helper()
	const more = 1000
	first := l.to.counters().Received
	rig.Until(l.t, "traffic goes on", func() (bool, string) {
		r := l.to.counters()
		return r.Received >= first+more, fmt.Sprintf("sent %d, %+v\n%s", l.from.counters().Sent, r, l.from.output())
	})
}

// undrained is how many datagrams may be overtaken when a daemon with this log ends.
func undrained(log string) uint64 {
	if rig.Undrained(log) {
		return rig.InRing
	}
	return 0
}

// overtaken is how many datagrams of a reader's came late, but for those that the wire may have overtaken until then.
func (l *load) overtaken(n numbered.Counters, at bed.WireStats) uint64 {
	return n.Late - min(n.Late, at.Requeued-l.wire.Requeued)
}

// stop ends the sender and judges what became of its datagrams: all of them arrived, but for those
// that the kernel counts as dropped on the wire and at the reader, unchanged and, but for so many and those
// that the wire may have overtaken, in order.
func (l *load) stop(late uint64) {
	l.t.Helper()
	l.from.end()
	sent := l.from.counters().Sent
	var last numbered.Counters
	var now bed.WireStats
	var dropped uint64
	rig.AwaitAll(sent, func() uint64 {
		var err error
		if now, err = l.s.bed.WireStats(); err != nil {
			l.t.Fatal(err)
		}
		last = l.to.counters()
		dropped = now.RxDropped - l.wire.RxDropped + last.Overflow
		return last.Received + dropped
	})
	l.t.Logf("sent %d, %d dropped and counted, %d requeued at the wire; %+v", sent, dropped, now.Requeued-l.wire.Requeued, last)
	if last.Received > sent || sent-last.Received > dropped {
		l.t.Errorf("%d datagrams were sent, %d arrived, %d were dropped and counted", sent, last.Received, dropped)
	}
	if n := l.overtaken(last, now); n > late {
		l.t.Errorf("%d datagrams were overtaken, %d may", n, late)
	}
	if last.Duplicated+last.Stale+last.Corrupt > 0 {
		l.t.Errorf("datagrams came twice, far too late, or changed: %+v", last)
	}
}

// check makes every further change residue: of the hosts, of the network on the receiving engine, of
// the load's containers, and of the mounts.
func (l *load) check(t *testing.T) {
	t.Helper()
	scope := rig.Scope(l.s.bed)
	scope.Namespaces = append(scope.Namespaces, l.s.overlay(l.s.receiver), nsPath(l.to), nsPath(l.from))
	residue.Check(t, scope)
	before := mountinfo(t, os.Getpid())
	inside := mountinfo(t, l.to.pid)
	if ro := sysIsReadOnly(inside); !ro {
		t.Fatalf("/sys of a container can be written:\n%s", inside)
	}
	t.Cleanup(func() {
		same(t, "mounts", before, mountinfo(t, os.Getpid()))
		same(t, "mounts of the container", inside, mountinfo(t, l.to.pid))
	})
}

func nsPath(c *container) string { return fmt.Sprintf("/proc/%d/ns/net", c.pid) }

func mountinfo(t testing.TB, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// same names the lines that came or went.
func same(t testing.TB, what, before, after string) {
	t.Helper()
	for line := range strings.Lines(after) {
		if !strings.Contains(before, line) {
			t.Errorf("left behind: %s: %s", what, line)
		}
	}
	for line := range strings.Lines(before) {
		if !strings.Contains(after, line) {
			t.Errorf("gone: %s: %s", what, line)
		}
	}
}

// sysIsReadOnly looks at the mount, and at the file system, which all mounts of it share.
func sysIsReadOnly(mounts string) bool {
	for line := range strings.Lines(mounts) {
		left, right, _ := strings.Cut(line, " - ")
		f, super := strings.Fields(left), strings.Fields(right)
		if len(f) > 5 && f[4] == "/sys" && len(super) > 2 {
			return has(f[5], "ro") && has(super[2], "ro")
		}
	}
	return false
}

func has(options, option string) bool {
	return strings.Contains(","+options+",", ","+option+",")
}

// mask is where packets of the container's device are handed to; none: wherever they come.
func (c *container) mask() string {
	c.t.Helper()
	h, err := netns.OfPID(c.pid)
	if err != nil {
		c.t.Fatal(err)
	}
	defer h.Close() // a container that goes is not kept alive
	return rig.Mask(c.t, h, dev)
}
