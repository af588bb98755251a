// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/test/residue"
)

// Datagrams that crossed the overlay in super-packets, by whatever way these take, are at the
// pod's socket what they were.
func TestAggregatedDatagramsComeAsTheyWereSent(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
	off := func(opts *daemon.Options) {
		opts.Pipeline.Mode = governor.Off
		opts.Pipeline.Microflows.Mode = governor.Off
	}
	sync := func(opts *daemon.Options) {
		off(opts)
		opts.Priority.Sync = true
		opts.Priority.Rules = []rules.Rule{{Name: "IPv6", Class: rules.Latency, Prefix: netip.MustParsePrefix("fd00:244::/64"), Network: rules.Overlay}}
	}
	for _, way := range []struct {
		name string
		top  topology
		tier governor.Tier
		how  func(*daemon.Options)
		near bool // the sender is on the same machine, and the wire no relay
		once bool // is the same on each kernel: not in emulated machines
	}{
		{name: "bridge", top: bridged, tier: governor.TC, how: off},
		{name: "route", top: routed, tier: governor.TC, how: off, once: true},
		{name: "tunnel in its own namespace", top: apart, tier: governor.TC, how: off, once: true},
		{name: "same machine", top: bridged, tier: governor.TC, how: off, near: true, once: true},
		{name: "RPS", top: bridged, tier: governor.TC, how: func(*daemon.Options) {}},
		{name: "cpumap", top: bridged, tier: governor.XDP, how: func(*daemon.Options) {}},
		{name: "priority", top: bridged, tier: governor.TC, how: sync},
		{name: "micro-flows", top: bridged, tier: governor.TC, how: func(opts *daemon.Options) {
			splits(governor.XDP, 32, 1)(opts)
			opts.Pipeline.Microflows.Elephant = 1
			if !merges() {
				opts.Pipeline.Microflows.NoMerge = errors.New("this kernel has none")
			}
		}},
	} {
		if way.once && *machineWide {
			continue
		}
		t.Run(way.name, func(t *testing.T) {
			watchKernel(t)
			s := layBare(t, "vxlan", way.top, way.near)
			residue.Check(t, s.all())
			d, stop := s.start(t, way.tier, way.how, func(opts *daemon.Options) { opts.Aggregate = governor.Forced })
			until(t, "datagrams are joined", func() bool {
				p := s.parcels(t, v4, 200, &parcels{seed: 1})
				p.finish(t)
				return t.Failed() || d.Status().Counters.AggregatedPackets > 0
			})
			begin := d.Status().Counters
			flows, n := s.assortment(t, 3000)
			end := d.Status()
			joined, supers := end.Counters.AggregatedPackets-begin.AggregatedPackets, end.Counters.SuperPackets-begin.SuperPackets
			t.Logf("%d of %d datagrams crossed in %d super-packets; %d came to sockets that asked for them as one", joined, n, supers, flows[1].inOne)
			if err := stop(); err != nil {
				t.Errorf("the daemon ended: %v", err)
			}
			if c := end.Counters; way.name == "priority" && (c.LatencyPackets == begin.LatencyPackets || c.BulkLane == begin.BulkLane || c.ShortCut+c.BulkShortCut == 0) {
				t.Errorf("latency overtook nothing, or by the bridge: %+v", c)
			}
			// A socket that asked for super-packets tells how many there were at least.
			if joined < uint64(flows[1].inOne) || flows[1].inOne == 0 {
				t.Errorf("nothing to see: %+v", end.Mechanisms)
			}
			p := s.parcels(t, v4, 200, &parcels{seed: 6, whole: true})
			p.finish(t)
		})
	}
}

// layBare is lay with a wire out of which a frame comes for each datagram, and bare unless it is
// near: a packet that its host knows to be encapsulated a NIC's GRO leaves alone (udp_gro_receive).
func layBare(t *testing.T, kind string, top topology, near bool) *splitting {
	t.Helper()
	s := &splitting{}
	if !near {
		var err error
		if s.between, err = silent(); err != nil {
			t.Fatal(err)
		}
	}
	s.lay(t, kind, top)
	err := s.hosts[0].pod.Do(func() error {
		return errors.Join(segmentEarly(podDev), ethtool.SetFeature(podDev, "tx-udp-segmentation", false))
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alarms are what a kernel says of a fault of its own.
var alarms = regexp.MustCompile(`cut here|BUG:|Oops|general protection fault|refcount_t`)

// watchKernel fails the test if the kernel finds fault with itself meanwhile.
func watchKernel(t *testing.T) {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Logf("the kernel's log is not watched: %v", err)
		return
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer unix.Close(fd)
		buf := make([]byte, 8192)
		for {
			n, err := unix.Read(fd, buf)
			switch {
			case errors.Is(err, unix.EPIPE):
				continue // the oldest have gone
			case errors.Is(err, unix.EAGAIN):
				return
			case err != nil:
				t.Errorf("read the kernel's log: %v", err)
				return
			}
			if line := strings.TrimSpace(string(buf[:n])); alarms.MatchString(line) {
				t.Errorf("the kernel: %s", line)
			}
		}
	})
}
