// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// GRO that stops joining datagrams in the middle of a poll lets the rest of it overtake what it
// holds: in a flood one end of aggregation in four, if overlane does not see to it.
func TestAggregationEndsBetweenPolls(t *testing.T) {
	speed.Turn(t)
	const ends = 24
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{NIC: bed.Softirq})
	residue.Check(t, rig.Scope(b))
	tr := send(t, b, 1, flooded)
	config := func(aggregate string) string {
		return fmt.Sprintf("underlays: [%s]\nmetrics: off\npipeline: off\nmicroflows: {mode: off}\npriority: {mode: off}\naggregate: %s\n", b.Receiver().Wire, aggregate)
	}
	p := startAway(t, b, config("forced"))
	joins := func() {
		var first uint64
		must(t, p.await("datagrams are joined", func(st control.Status) bool {
			if first == 0 {
				first = st.Counters.SuperPackets
			}
			return first > 0 && st.Counters.SuperPackets > first+100
		}))
	}
	for range ends {
		joins()
		must(t, p.configure(config("off")))
		must(t, p.await("aggregation is off", func(st control.Status) bool {
			m := st.Mechanism("aggregate")
			return m.Name == "aggregate" && m.State == control.Off
		}))
		must(t, p.configure(config("forced")))
	}
	joins()
	p.Signal(unix.SIGKILL) // the guardian ends it
	p.Exited()
	p.GoneBoth()
	// Where others hold the core for a tenth of a second, one end cannot wait for it (KNOWN_ISSUES.md): the rest of a poll
	// is late. If none waited, some six would be.
	tr.excused = min(tr.late(t), rig.Poll)
	tr.judge(t, nil)
}

// Packets of a socket on the same machine have it with them over a veth until XDP copies them, and to
// GRO those with and without are of two flows: a program that comes or goes in the middle of a poll
// has the later ones overtake the earlier, where datagrams are joined.
func TestXDPComesAndGoesBetweenPolls(t *testing.T) {
	speed.Turn(t)
	const changes = 100
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{NIC: bed.Thread})
	must(t, b.StopFlowControl()) // with it, a sender that has to wait overtakes itself
	rx, flow := b.Receiver(), traffic.NewFlow(b, 0, 0, true, false, 0)
	var index int
	must(t, rx.NS.Do(func() error {
		dev, err := net.InterfaceByName(rx.Wire)
		if err == nil {
			index = dev.Index
			err = ethtool.SetFeature(rx.Wire, ethtool.UDPForwarding, true)
		}
		return err
	}))
	check, err := traffic.NewChecker(-1)
	must(t, err)
	t.Cleanup(func() { must(t, check.Close()) })
	must(t, check.Listen(rx.Pods[0].NS, netip.AddrPortFrom(flow.Dst, flow.DstPort)))
	dp, err := datapath.Load()
	must(t, err)
	t.Cleanup(func() { must(t, dp.Close()) })
	gen, err := traffic.StartSegments(b, traffic.SegmentConfig{Flows: []traffic.Flow{flow}, Size: datagram.MinSize, Rate: 600_000, Core: b.PlaceCores().Gen[0]})
	must(t, err)
	stop := sync.OnceValue(gen.Stop)
	t.Cleanup(func() { must(t, stop()) })
	var v traffic.Verdict
	come := func() { // some polls' worth
		before := v.Received
		rig.Until(t, "2000 datagrams come", func() (bool, string) {
			v, err = check.Total(1)
			must(t, err)
			return v.Received >= before+2000, fmt.Sprintf("%+v", v)
		})
	}
	for range changes {
		come()
		l, err := dp.AttachXDP(datapath.Device{Netns: rx.NS, Ifindex: index})
		must(t, err)
		come()
		must(t, l.Close())
	}
	if come(); v.Reordered+v.Duplicated+v.Stale > 0 {
		t.Errorf("order was broken: %+v", v)
	}
	must(t, stop())
}

// startAway starts a daemon on a core on which the NIC is not polled: left to itself it may be
// there by chance.
func startAway(t *testing.T, b *bed.Bed, config string) *product {
	t.Helper()
	return &product{bed: b, Daemon: rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: program(t), Config: config, Before: func() error {
		var set unix.CPUSet
		set.Set(b.PlaceCores().Apps)
		return unix.SchedSetaffinity(0, &set)
	}})}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
