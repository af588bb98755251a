// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// beyond is a network that the receiving host has two paths to, and the sender's pods the tunnel.
var beyond = netip.MustParsePrefix("10.99.0.0/24")

// forwards makes the receiving host of a routed bed a router to that network, which chooses the path of a flow by its
// hash. It returns the devices of the paths; behind each another host is meant.
func forwards(t *testing.T, b *bed.Bed) [2]string {
	t.Helper()
	rx, tx := b.Receiver(), b.Sender()
	dst := &net.IPNet{IP: beyond.Addr().AsSlice(), Mask: net.CIDRMask(beyond.Bits(), 32)}
	out := [2]string{"out0", "out1"}
	must(t, rx.NS.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0)
	}))
	nl := rig.In(t, rx.NS)
	defer nl.Close()
	r := &netlink.Route{Dst: dst}
	for i, name := range out {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		veth.PeerName = fmt.Sprint("far", i)
		must(t, nl.LinkAdd(veth))
		far, err := nl.LinkByName(veth.PeerName)
		must(t, err)
		must(t, nl.LinkSetUp(far))
		dev, err := nl.LinkByName(name)
		must(t, err)
		must(t, nl.LinkSetUp(dev))
		via := net.IPv4(10, 98, byte(i), 1)
		must(t, nl.NeighAdd(&netlink.Neigh{LinkIndex: dev.Attrs().Index, State: netlink.NUD_PERMANENT, IP: via, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}))
		r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{LinkIndex: dev.Attrs().Index, Gw: via, Flags: unix.RTNH_F_ONLINK})
	}
	must(t, nl.RouteAdd(r))

	nl = rig.In(t, tx.NS)
	defer nl.Close()
	tunnel, err := nl.LinkByName(bed.Tunnel)
	must(t, err)
	far := netip.PrefixFrom(rx.Pods[0].IP4, 24).Masked().Addr()
	must(t, nl.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: tunnel.Attrs().Index, Gw: far.AsSlice(), Flags: unix.RTNH_F_ONLINK}))
	return out
}

// What the host forwards out of a tunnel has the kernel's own hash again, by which paths, queues and buckets are chosen:
// not the one that chose the core, which is the same for all that stays where it is, and hardly differs within a lane.
func TestForwardedFlowsAreSpreadByTheirOwnHash(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, steered := range []bool{true, false} {
		if !turn() {
			continue
		}
		t.Run(fmt.Sprintf("steered=%v", steered), func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{Topology: bed.Routed})
			out := forwards(t, b)
			config := forced
			if !steered { // the pod stage alone goes on on another core
				config += fmt.Sprintf("cores: %d\n", otherCore(t, b))
			}
			check(t, b)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
			l := rig.StartLoad(t, b, 4)
			rig.Until(t, "the pipeline acts", func() (bool, string) {
				lanes := map[string]bool{}
				for _, lane := range d.Status().Lanes {
					lanes[lane.Stage] = true
				}
				return lanes["pod"] && lanes["tunnel"] == steered && podPackets(d) > 0, fmt.Sprint(lanes, d.Log())
			})

			const flows, rounds = 64, 4
			const most = flows * rounds * 15 / 16
			was := sentBy(t, b, out)
			var c *net.UDPConn
			must(t, b.Sender().Pods[0].NS.Do(func() (err error) {
				c, err = net.ListenUDP("udp4", nil)
				return err
			}))
			defer c.Close()
			var took [2]uint64
			sent, looks := 0, 0
			rig.Until(t, "they are forwarded", func() (bool, string) {
				// Once more where a backlog was full.
				if looks++; looks%100 == 1 {
					for n := range flows * rounds {
						to := netip.AddrPortFrom(beyond.Addr().Next(), uint16(1000+n%flows))
						_, err := c.WriteToUDPAddrPort([]byte("x"), to)
						must(t, err)
					}
					sent += flows * rounds
				}
				now := sentBy(t, b, out)
				took = [2]uint64{now[0] - was[0], now[1] - was[1]}
				return took[0]+took[1] >= most, fmt.Sprintf("%d of %d", took, sent)
			})
			if min(took[0], took[1]) < flows*rounds/8 {
				t.Errorf("of %d flows the two paths got %d packets", flows, took)
			}
			ends(t, d)
			left(t, d, l.Stop())
		})
	}
}

// sentBy is how many packets devices of the receiving host have sent.
func sentBy(t *testing.T, b *bed.Bed, devs [2]string) (n [2]uint64) {
	t.Helper()
	nl := rig.In(t, b.Receiver().NS)
	defer nl.Close()
	for i, name := range devs {
		l, err := nl.LinkByName(name)
		must(t, err)
		n[i] = l.Attrs().Statistics.TxPackets
	}
	return n
}
