// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
)

// rounds is the variable with the number of rounds that `make docker-bench` measures.
const rounds = "OVERLANE_DOCKER_BENCH"

const (
	// abstains is a daemon of which no mechanism acts for so long.
	abstains = 10 * time.Second
	// settles is from then until it is measured: trials, of some seconds each, are over mostly.
	settles = 5 * time.Second
)

// One UDP flow of 64 bytes to a container whose program reads each datagram, on a core that does not
// poll the NIC. It comes as from another machine: the lab's generator puts the frames on the wire
// that the sending container's would be, with what the reader leaves of its core. (Two engines on
// one machine share its cores; a sender through the first one's stack took more of them than all that
// is judged here.) Another reader takes datagrams in a row as one (UDP_GRO). The daemon, without a
// configuration, acts by itself. What it gains is measured by `make docker-bench`.
func TestDefaultActsBesideASaturatedCore(t *testing.T) {
	count, span := 1, 200*time.Millisecond
	if text := os.Getenv(rounds); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s: %q is no number of rounds", rounds, text)
		}
		count, span = n, 3*time.Second
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		reader []string
	}{
		{"udp-docker", nil},
		{"udp-docker-gro", []string{"-gro"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := engines(t)
			rec := report.New(report.Meta{Scenario: tt.name, NIC: string(s.bed.NIC), NAPI: s.bed.Polling(),
				Machine: report.Machine{Kernel: unix.ByteSliceToString(kernel.Release[:]), Cores: runtime.NumCPU()},
				Rounds:  count, Seconds: span.Seconds(), Command: "make docker-bench"})
			l := startLoad(t, s, tt.reader)
			l.check(t)
			l.from.end() // from now on the generator is in its place
			flood(t, l)
			clock := receiving(t, s)
			for round := range count {
				rec.Add(report.Overlay, round, l.measure(span, clock, nil))
				d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS})
				acts(t, d, round, count > 1)
				rec.Add("auto", round, l.measure(span, clock, d))
				ends(t, d)
			}
			l.goesOn()
			t.Logf("%+v", l.to.counters())
			if last := l.to.counters(); last.Duplicated+last.Stale+last.Corrupt > 0 {
				t.Errorf("datagrams came twice, far too late, or changed: %+v", last)
			}
			var table bytes.Buffer
			if err := rec.Finish().Table(&table); err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", table.String())
		})
	}
}

// acts waits until a mechanism acts; of a series, a round in which none does counts, too.
func acts(t *testing.T, d *rig.Daemon, round int, series bool) {
	t.Helper()
	begin := time.Now()
	yes := false
	rig.Until(t, "a mechanism acts", func() (bool, string) {
		st := peek(t, d)
		c := st.Counters
		yes = c.AggregatedPackets+c.SteeredPackets > 10000
		return yes || series && time.Since(begin) > abstains, fmt.Sprintf("%+v\n%+v", st.Mechanisms, c)
	})
	if yes {
		t.Logf("round %d: a mechanism acts after %s", round+1, time.Since(begin).Round(100*time.Millisecond))
	} else {
		t.Logf("round %d: none acts: %+v", round+1, peek(t, d).Mechanisms)
	}
	if series {
		time.Sleep(settles)
	}
}

// receiving is a clock of the time that cores spend receiving packets.
func receiving(t *testing.T, s *swarm) *traffic.CPUClock {
	t.Helper()
	clock, err := traffic.NewCPUClock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clock.Close(); err != nil {
			t.Error(err)
		}
	})
	threads, err := s.bed.NAPIThreads()
	if err == nil {
		err = clock.SetThreads(threads)
	}
	if err != nil {
		t.Fatal(err)
	}
	return clock
}

// offered is so many datagrams a second, more than two cores carry through an overlay to a reader.
const offered = 1_500_000

// flood sends from the sending container's addresses until the test ends.
func flood(t testing.TB, l *load) {
	t.Helper()
	b := l.s.bed
	wire := b.WireLink()
	flow := traffic.Flow{ID: 1, SrcPort: traffic.BasePort, DstPort: port, Outer: &wire, OuterPort: 50000, VNI: l.s.vni(t)}
	flow.Link = bed.Link{SrcMAC: l.from.mac(), DstMAC: l.to.mac(), Src: l.from.ip, Dst: l.to.ip}
	gen, err := traffic.StartLive(b, traffic.LiveConfig{Flows: []traffic.Flow{flow}, Size: 64,
		Core: b.PlaceCores().Gen[0], Gap: time.Second / offered})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := gen.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// vni is the network's, of its tunnel.
func (s *swarm) vni(t testing.TB) uint32 {
	t.Helper()
	h, err := netns.OfPath(s.overlay(s.receiver))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	nl := rig.In(t, h)
	defer nl.Close()
	links, err := nl.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok {
			return uint32(v.VxlanId)
		}
	}
	t.Fatalf("no tunnel in %s", s.overlay(s.receiver))
	return 0
}

// mac is of the container's device.
func (c *container) mac() bed.MAC {
	c.t.Helper()
	h, err := netns.OfPID(c.pid)
	if err != nil {
		c.t.Fatal(err)
	}
	defer h.Close()
	nl := rig.In(c.t, h)
	defer nl.Close()
	link, err := nl.LinkByName(dev)
	if err != nil {
		c.t.Fatal(err)
	}
	return bed.MAC(link.Attrs().HardwareAddr)
}

func peek(t testing.TB, d *rig.Daemon) control.Status {
	t.Helper()
	st, err := d.Peek()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// measure is what the reader read for a while, beside a daemon if there is one.
func (l *load) measure(span time.Duration, clock *traffic.CPUClock, d *rig.Daemon) map[string]float64 {
	l.t.Helper()
	usage := func() traffic.Usage {
		u, err := clock.Read()
		if err != nil {
			l.t.Fatal(err)
		}
		return u
	}
	var before, after control.Counters
	if d != nil {
		before = peek(l.t, d).Counters
	}
	a, from := l.to.counters(), usage()
	time.Sleep(span)
	b, busy := l.to.counters(), usage().Since(from).Busy()
	values := map[string]float64{
		report.KPPS:       float64(b.Received-a.Received) / 1000 / (b.At - a.At).Seconds(),
		report.Reordered:  float64(b.Late - a.Late),
		report.Dropped:    float64(b.Missing - a.Missing),
		report.Lost:       float64(b.Overflow - a.Overflow),
		report.CPUPerMpkt: busy.Seconds() / float64(b.Received-a.Received) * 1e6,
	}
	if d != nil {
		after = peek(l.t, d).Counters
		share := func(of, all uint64) float64 { return float64(of) / float64(max(all, of, 1)) }
		values[report.Acted] = max(
			share(after.AggregatedPackets-before.AggregatedPackets, after.CountedPackets-before.CountedPackets),
			share(after.SteeredPackets-before.SteeredPackets, after.OverlayPackets-before.OverlayPackets))
	}
	return values
}
