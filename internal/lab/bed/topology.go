// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (b *Bed) build() error {
	for _, h := range b.names {
		if err := within(h, func(i *inside) {
			// Router solicitations and multicast reports are noise in counters.
			i.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
			i.sysctl("net/ipv4/conf/all/rp_filter", "0")
			i.sysctl("net/ipv4/conf/default/rp_filter", "0")
			i.up("lo")
		}); err != nil {
			return err
		}
	}
	if err := b.buildWire(); err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	for _, s := range []Side{A, B} {
		if b.Topology == Bare {
			break
		}
		if err := b.buildOverlay(s); err != nil {
			return fmt.Errorf("overlay of %s: %w", b.Hosts[s].Name, err)
		}
		for n := range b.Pods {
			if err := b.buildPod(s, n); err != nil {
				return fmt.Errorf("pod %s: %w", b.Hosts[s].Pods[n].Name, err)
			}
		}
	}
	if err := b.settle(); err != nil {
		return err
	}
	return b.Reset()
}

// settle waits for what the kernel does by itself: a worker notices a carrier, and
// before that the device at this end drops what it is given to send, and a bridge
// port what it gets. The same holds for an IPv6 address and its local route.
func (b *Bed) settle() error {
	for _, h := range b.Hosts {
		want := map[string]string{"class/net/" + h.Wire + "/operstate": "up"}
		if err := waitFor(h.NS, want); err != nil {
			return err
		}
		want = map[string]string{}
		if b.Topology != Routed && b.Topology != Bare {
			want["class/net/"+Tunnel+"/brport/state"] = forwarding
		}
		for _, p := range h.Pods {
			want["class/net/"+p.HostEnd+"/operstate"] = "up"
			if b.Topology != Routed {
				want["class/net/"+p.HostEnd+"/brport/state"] = forwarding
			}
		}
		if err := waitFor(h.Overlay, want); err != nil {
			return err
		}
		want = map[string]string{"class/net/" + PodDev + "/operstate": "up"}
		for _, p := range h.Pods {
			err := waitFor(p.NS, want)
			if err == nil && b.IPv6 {
				err = waitForLocal(p.NS, p.IP6)
			}
			if err != nil {
				return fmt.Errorf("pod %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// forwarding is BR_STATE_FORWARDING.
const forwarding = "3"

// waitFor polls files of a namespace's sysfs until they have the wanted values.
func waitFor(ns *netns.Handle, want map[string]string) error {
	root, err := ns.Sysfs()
	if err != nil {
		return err
	}
	defer root.Close()
	return await(func() error {
		for name, value := range want {
			data, err := root.ReadFile(name)
			if got := strings.TrimSpace(string(data)); err != nil || got != value {
				return fmt.Errorf("%s is %q, not %q (%v)", name, got, value, err)
			}
		}
		return nil
	})
}

// waitForLocal waits until a namespace receives what is sent to an IPv6 address: the
// kernel adds the local route in a worker, some time after the address.
func waitForLocal(ns *netns.Handle, ip netip.Addr) error {
	return await(func() error {
		return within(ns, func(i *inside) {
			routes, err := i.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{
				Table: unix.RT_TABLE_LOCAL, Dst: ipNet(netip.PrefixFrom(ip, ip.BitLen())),
			}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
			i.try("list local routes", err)
			if i.err == nil && len(routes) == 0 {
				i.err = fmt.Errorf("no local route for %s", ip)
			}
		})
	})
}

// await tries until there is no error, or a minute has passed: patience also of emulated machines.
func await(try func() error) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		if err := try(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (b *Bed) buildWire() error {
	// Both ends are born where they belong: no device ever shows up outside.
	err := within(b.Hosts[A].NS, func(i *inside) {
		ma, mb := wireMAC(A), wireMAC(B)
		v := netlink.NewVeth(netlink.LinkAttrs{Name: wireDev(A), MTU: WireMTU, HardwareAddr: ma[:], TxQLen: 1000,
			NumTxQueues: b.Queues, NumRxQueues: b.Queues})
		v.PeerName, v.PeerHardwareAddr, v.PeerNamespace = wireDev(B), mb[:], netlink.NsFd(b.Hosts[B].NS.FD())
		v.PeerNumTxQueues, v.PeerNumRxQueues = uint32(b.Queues), uint32(b.Queues)
		i.try("create wire", i.LinkAdd(v))
	})
	if err != nil {
		return err
	}
	for _, s := range []Side{A, B} {
		if err := wireFeatures(b.Hosts[s].NS, wireDev(s)); err != nil {
			return err
		}
	}
	for _, s := range []Side{A, B} {
		if err := within(b.Hosts[s].NS, func(i *inside) {
			i.up(wireDev(s))
			i.flowControl(wireDev(s), b.Queues)
			i.addr(wireDev(s), netip.PrefixFrom(wireIP(s), 24))
			i.neigh(wireDev(s), wireIP(s.peer()), wireMAC(s.peer()))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bed) buildOverlay(s Side) error {
	h := &b.Hosts[s]
	err := within(h.NS, func(i *inside) {
		m := tunnelMAC(s)
		vx := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: Tunnel, MTU: OverlayMTU, HardwareAddr: m[:]},
			VxlanId: VNI, Port: TunnelPort, SrcAddr: wireIP(s).AsSlice(), Group: wireIP(s.peer()).AsSlice(), TTL: 64}
		if l := i.link(h.Wire); i.err == nil {
			vx.VtepDevIndex = l.Attrs().Index
			i.try("create tunnel", i.LinkAdd(vx))
		}
		if h.Overlay != h.NS && i.err == nil {
			i.try("move tunnel", i.LinkSetNsFd(i.link(Tunnel), h.Overlay.FD()))
		}
	})
	if err != nil {
		return err
	}
	return within(h.Overlay, func(i *inside) {
		if b.Topology == Routed {
			b.route(i, s)
			return
		}
		// Snooping sends a report of its own, which no count expects.
		snooping := false
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Bridge, MTU: OverlayMTU}, MulticastSnooping: &snooping}
		i.try("create bridge", i.LinkAdd(br))
		if l := i.link(Tunnel); i.err == nil {
			i.try("join tunnel to bridge", i.LinkSetMaster(l, br))
		}
		i.up(Bridge, Tunnel)
		for n := range b.Pods {
			i.fdb(Tunnel, podMAC(s.peer(), n))
		}
	})
}

// route makes the host a router between tunnel and pods.
func (b *Bed) route(i *inside, s Side) {
	i.sysctl("net/ipv4/ip_forward", "1")
	if b.IPv6 {
		i.sysctl("net/ipv6/conf/"+Tunnel+"/disable_ipv6", "0")
		i.sysctl("net/ipv6/conf/all/forwarding", "1")
	}
	i.up(Tunnel)
	far := s.peer()
	nets := []netip.Prefix{subnet4(s), subnet4(far)}
	if b.IPv6 {
		nets = append(nets, subnet6(s), subnet6(far))
	}
	for k := 0; k < len(nets); k += 2 {
		near, remote := nets[k].Addr(), nets[k+1]
		i.addr(Tunnel, netip.PrefixFrom(near, near.BitLen()))
		i.neigh(Tunnel, remote.Addr(), tunnelMAC(far))
		i.route(Tunnel, remote, remote.Addr())
	}
}

// What a pod in a routed bed sends everything to.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

func (b *Bed) buildPod(s Side, n int) error {
	h := &b.Hosts[s]
	p := &h.Pods[n]
	err := within(h.Overlay, func(i *inside) {
		hm := hostEndMAC(s, n)
		v := netlink.NewVeth(netlink.LinkAttrs{Name: p.HostEnd, MTU: OverlayMTU, HardwareAddr: hm[:]})
		v.PeerName, v.PeerHardwareAddr, v.PeerNamespace = PodDev, p.MAC[:], netlink.NsFd(p.NS.FD())
		i.try("create veth", i.LinkAdd(v))
		if b.Topology == Routed && b.IPv6 {
			i.sysctl("net/ipv6/conf/"+p.HostEnd+"/disable_ipv6", "0")
		}
		i.up(p.HostEnd)
		if b.Topology != Routed {
			br := i.link(Bridge)
			if l := i.link(p.HostEnd); i.err == nil {
				i.try("join veth to bridge", i.LinkSetMaster(l, br))
			}
			i.fdb(p.HostEnd, p.MAC)
			return
		}
		for _, ip := range b.podIPs(s, n) {
			i.route(p.HostEnd, netip.PrefixFrom(ip, ip.BitLen()), netip.Addr{})
			i.neigh(p.HostEnd, ip, p.MAC)
		}
	})
	if err != nil {
		return err
	}
	return within(p.NS, func(i *inside) {
		if b.IPv6 {
			i.sysctl("net/ipv6/conf/"+PodDev+"/disable_ipv6", "0")
		}
		i.up(PodDev)
		if b.Topology == Routed {
			for _, ip := range b.podIPs(s, n) {
				gw, all := gateway4, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
				if ip.Is6() {
					gw, all = gateway6, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
				}
				i.addr(PodDev, netip.PrefixFrom(ip, ip.BitLen()))
				i.neigh(PodDev, gw, hostEndMAC(s, n))
				i.route(PodDev, all, gw)
			}
			return
		}
		for _, ip := range b.podIPs(s, n) {
			bits := 16
			if ip.Is6() {
				bits = 48
			}
			i.addr(PodDev, netip.PrefixFrom(ip, bits))
		}
		for m := range b.Pods {
			for _, far := range b.podIPs(s.peer(), m) {
				i.neigh(PodDev, far, podMAC(s.peer(), m))
			}
		}
	})
}

func (b *Bed) podIPs(s Side, n int) []netip.Addr {
	ips := []netip.Addr{podIP4(s, n)}
	if b.IPv6 {
		ips = append(ips, podIP6(s, n))
	}
	return ips
}
