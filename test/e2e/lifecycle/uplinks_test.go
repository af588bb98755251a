// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// retunnel gives a host of a bridged bed another tunnel in place of its own.
func retunnel(t *testing.T, nl *netlink.Handle, vx *netlink.Vxlan) {
	t.Helper()
	old, err := nl.LinkByName(bed.Tunnel)
	must(t, err)
	bridge, err := nl.LinkByName(bed.Bridge)
	must(t, err)
	vx.Name, vx.MTU, vx.VxlanId, vx.Port = bed.Tunnel, bed.OverlayMTU, bed.VNI, bed.TunnelPort
	vx.HardwareAddr = old.Attrs().HardwareAddr
	must(t, errors.Join(nl.LinkDel(old), nl.LinkAdd(vx), nl.LinkSetMaster(vx, bridge), nl.LinkSetUp(vx)))
}

// secondWire is between the hosts beside the one that a bed has.
const secondWire = "wire2"

// uplinks gives the hosts of a bridged bed a second wire, and puts their addresses, the endpoints of their tunnels, on lo,
// where they are reached by both wires alike. It returns what has a host reach the other one by these wires: 0 the bed's
// own, 1 the second.
func uplinks(t *testing.T, b *bed.Bed) (by func(s bed.Side, wires ...int)) {
	t.Helper()
	nls := [2]*netlink.Handle{rig.In(t, b.Hosts[bed.A].NS), rig.In(t, b.Hosts[bed.B].NS)}
	t.Cleanup(func() { nls[bed.A].Close(); nls[bed.B].Close() })
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: secondWire, MTU: bed.WireMTU})
	veth.PeerName, veth.PeerNamespace = secondWire, netlink.NsFd(b.Hosts[bed.B].NS.FD())
	must(t, nls[bed.A].LinkAdd(veth))
	wires := func(s bed.Side) [2]string { return [2]string{b.Hosts[s].Wire, secondWire} }
	at := func(ip net.IP, bits int) *netlink.Addr {
		return &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 32)}}
	}
	own := func(s bed.Side, wire int) net.IP { return net.IPv4(192, 168, 43+byte(wire), byte(s)+1) }
	by = func(s bed.Side, list ...int) {
		t.Helper()
		route := &netlink.Route{Dst: at(b.Hosts[1-s].IP.AsSlice(), 32).IPNet, Src: b.Hosts[s].IP.AsSlice()}
		for _, wire := range list {
			link, err := nls[s].LinkByName(wires(s)[wire])
			must(t, err)
			route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: own(1-s, wire)})
		}
		must(t, nls[s].RouteReplace(route))
	}
	for s, nl := range nls {
		s := bed.Side(s)
		lo, err := nl.LinkByName("lo")
		must(t, err)
		for wire, name := range wires(s) {
			link, err := nl.LinkByName(name)
			must(t, err)
			if wire == 0 {
				must(t, nl.AddrDel(link, at(b.Hosts[s].IP.AsSlice(), 24)))
			}
			must(t, errors.Join(nl.LinkSetUp(link), nl.AddrAdd(link, at(own(s, wire), 24))))
		}
		must(t, nl.AddrAdd(lo, at(b.Hosts[s].IP.AsSlice(), 32)))
		must(t, b.Hosts[s].NS.Do(func() error {
			return os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0)
		}))
	}
	for s, nl := range nls {
		s := bed.Side(s)
		by(s, 0, 1)
		retunnel(t, nl, &netlink.Vxlan{SrcAddr: b.Hosts[s].IP.AsSlice(), Group: b.Hosts[1-s].IP.AsSlice(), TTL: 64})
	}
	return by
}

// cameBy is how many packets have come to the receiving host by its wires.
func cameBy(t *testing.T, b *bed.Bed) (n [2]uint64) {
	t.Helper()
	nl := rig.In(t, b.Receiver().NS)
	defer nl.Close()
	for i, name := range []string{b.Receiver().Wire, secondWire} {
		l, err := nl.LinkByName(name)
		must(t, err)
		n[i] = l.Attrs().Statistics.RxPackets
	}
	return n
}

// A tunnel whose endpoint is on lo, behind two NICs by which it is reached alike, as with EVPN on the host: both are
// served. Where the far host sends by one that no route names, the status says which part is not steered.
func TestBothUplinksOfATunnelAreServed(t *testing.T) {
	rig.NeedCores(t, 2)
	speed.Turn(t)
	b := rig.Lab(t, bed.Options{})
	by := uplinks(t, b)
	check(t, b)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced + "aggregate: off\n"})
	wires := []string{b.Receiver().Wire, secondWire}
	for _, verb := range []string{"doctor", "plan"} {
		out := d.Verb(verb).Out
		for _, wire := range wires {
			if !strings.Contains(out, wire) {
				t.Errorf("%s says nothing of %s:\n%s", verb, wire, out)
			}
		}
	}
	l := rig.StartLoad(t, b, 16)
	d.Acting()
	pipeline := func(what string, is func(m control.Mechanism, came [2]uint64, overlay, steered uint64) bool) {
		t.Helper()
		was, before := d.Status(), cameBy(t, b)
		rig.Until(t, what, func() (bool, string) {
			st, came := d.Status(), cameBy(t, b)
			overlay, steered := st.Counters.OverlayPackets-was.Counters.OverlayPackets, st.Counters.SteeredPackets-was.Counters.SteeredPackets
			came[0], came[1] = came[0]-before[0], came[1]-before[1]
			return is(st.Mechanism("pipeline"), came, overlay, steered), fmt.Sprintf("%v came, %d of the overlay, %d steered; %+v\n%s",
				came, overlay, steered, st.Mechanism("pipeline"), d.Log())
		})
	}
	const many = 1000
	pipeline("what comes by both is steered", func(m control.Mechanism, came [2]uint64, overlay, steered uint64) bool {
		return min(came[0], came[1]) > many && steered > overlay*95/100 && m.State == control.Active && !strings.Contains(m.Reason, "by no program")
	})
	for _, wire := range wires {
		if is, st := named(d, wire); !is {
			t.Errorf("status says nothing of %s: %s", wire, st)
		}
	}
	l.GoesOn()
	orderly(t, l.Verdict())

	by(bed.B, 0)
	pipeline("what comes by the other one is told of", func(m control.Mechanism, _ [2]uint64, _, _ uint64) bool {
		return m.State == control.Active && strings.Contains(m.Reason, "of the packets that come out of tunnels are seen by no program on a NIC")
	})
	if is, st := named(d, secondWire); is {
		t.Errorf("no route leads to %s any more: %s", secondWire, st)
	}
	by(bed.B, 0, 1)
	pipeline("both are served again", func(m control.Mechanism, came [2]uint64, overlay, steered uint64) bool {
		return min(came[0], came[1]) > many && m.State == control.Active && !strings.Contains(m.Reason, "by no program")
	})
	l.GoesOn()
	ends(t, d)
	l.Stop()
}

// A tunnel over a TUN device is left alone, and so each mechanism says, in the words of doctor. They act as soon as there
// is a NIC.
func TestWithoutANICEachMechanismSaysWhy(t *testing.T) {
	rig.NeedCores(t, 2)
	speed.Turn(t)
	b := rig.Lab(t, bed.Options{})
	nl := rig.In(t, b.Receiver().NS)
	defer nl.Close()
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "vpn0"}, Mode: netlink.TUNTAP_MODE_TUN}
	must(t, b.Receiver().NS.Do(func() error { return netlink.LinkAdd(tun) })) // made by an ioctl, which goes by the thread
	link, err := nl.LinkByName(tun.Name)
	must(t, err)
	over := &net.IPNet{IP: net.IPv4(10, 6, 0, 1), Mask: net.CIDRMask(24, 32)}
	must(t, errors.Join(nl.LinkSetUp(link), nl.AddrAdd(link, &netlink.Addr{IPNet: over})))
	retunnel(t, nl, &netlink.Vxlan{SrcAddr: over.IP, VtepDevIndex: link.Attrs().Index})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced + "express: forced\n" + strings.SplitAfter(prioritised, "metrics: off\n")[1]})
	const why = "left alone: vpn0 has no Ethernet headers, and overlane's programs read no packets without"
	said := func(st control.Status) string {
		for _, name := range []string{"pipeline", "express", "priority"} {
			if m := st.Mechanism(name); m.State != control.Standby || m.Reason != "no NIC is served: "+bed.Tunnel+": "+why {
				return fmt.Sprintf("%+v", m)
			}
		}
		return ""
	}
	rig.Until(t, "what is missing is said", func() (bool, string) {
		wrong := said(d.Status())
		return wrong == "", wrong + "\n" + d.Log()
	})
	saysManual(t, d, bed.Tunnel, why)
	if out := d.Verb("doctor").Out; !strings.Contains(strings.Join(strings.Fields(out), " "), why) {
		t.Errorf("doctor has no such words:\n%s", out)
	}
	wire, err := nl.LinkByName(b.Receiver().Wire)
	must(t, err)
	retunnel(t, nl, &netlink.Vxlan{SrcAddr: b.Receiver().IP.AsSlice(), Group: b.Sender().IP.AsSlice(), VtepDevIndex: wire.Attrs().Index, TTL: 64})
	l := rig.StartLoad(t, b, 4)
	rig.Until(t, "they act", func() (bool, string) {
		st := d.Status()
		return st.Mechanism("express").State == control.Active && st.Mechanism("priority").State == control.Active &&
			!strings.Contains(fmt.Sprint(st.Mechanisms), "no NIC is served"), fmt.Sprintf("%+v\n%s", st.Mechanisms, d.Log())
	})
	ends(t, d)
	l.Stop()
}

// With no pod that can be steered, and the pods' stage alone to move, nothing is steered: the pipeline is not active, and
// says so, and not that its programs do not see what they would see.
func TestWithoutAPodThePipelineSaysWhy(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tt := range []struct {
		name, why string
		make      func(t *testing.T, h *bed.Host)
	}{
		{"the only pod is shaped", "the only pod is left alone: eth0", func(t *testing.T, h *bed.Host) {
			device(t, h.NS, h.Pods[0].HostEnd, func(l netlink.Link) error {
				shaped := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
					Rate: 1e9, Limit: 1e6, Buffer: 1e6}
				return netlink.QdiscAdd(shaped)
			})
		}},
		{"the only container is a macvlan of the bridge", "pod", func(t *testing.T, h *bed.Host) {
			pod := h.Pods[0]
			rig.Unplug(t, h, pod)
			nl, inside := rig.In(t, h.NS), rig.In(t, pod.NS)
			defer nl.Close()
			defer inside.Close()
			bridge, err := nl.LinkByName(bed.Bridge)
			must(t, err)
			mv := &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE, LinkAttrs: netlink.LinkAttrs{Name: bed.PodDev, MTU: bed.OverlayMTU,
				ParentIndex: bridge.Attrs().Index, HardwareAddr: pod.MAC[:], Namespace: netlink.NsFd(pod.NS.FD())}}
			must(t, nl.LinkAdd(mv))
			eth, err := inside.LinkByName(bed.PodDev)
			must(t, err)
			addr, err := netlink.ParseAddr(pod.IP4.String() + "/16")
			must(t, err)
			must(t, errors.Join(inside.LinkSetUp(eth), inside.AddrAdd(eth, addr)))
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{})
			tt.make(t, b.Receiver())
			check(t, b)
			config := strings.Replace(prioritised, "pipeline: off", "pipeline: forced\naggregate: off", 1)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
			l := rig.StartLoad(t, b, 4)
			rig.Until(t, "the pipeline says why it does nothing", func() (bool, string) {
				st := d.Status()
				m := st.Mechanism("pipeline")
				if strings.Contains(m.Reason, "encrypted") || m.State == control.Active && st.Counters.SteeredPackets == 0 && st.Counters.BulkPackets > 10_000 {
					t.Fatalf("%+v\n%s", m, d.Log())
				}
				return m.State != control.Active && strings.Contains(m.Reason, tt.why), fmt.Sprintf("%+v\n%s", m, d.Log())
			})
			ends(t, d)
			l.Stop()
		})
	}
}
