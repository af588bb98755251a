// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/overlane/overlane/internal/netns"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside is a namespace with a netlink connection and the first error: a
// topology is a long list of requests, each of which would fail the same way.
type inside struct {
	*netlink.Handle
	ns  *netns.Handle
	err error
}

func (i *inside) try(what string, err error) {
	if i.err == nil && err != nil {
		i.err = fmt.Errorf("%s: %w", what, err)
	}
}

func within(ns *netns.Handle, fn func(*inside)) error {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	i := &inside{Handle: nl, ns: ns}
	fn(i)
	return i.err
}

func (i *inside) link(name string) netlink.Link {
	if i.err != nil {
		return &netlink.Dummy{}
	}
	l, err := i.LinkByName(name)
	if err != nil {
		i.try("find device "+name, err)
		return &netlink.Dummy{}
	}
	return l
}

func (i *inside) up(names ...string) {
	for _, n := range names {
		if l := i.link(n); i.err == nil {
			i.try("set up "+n, i.LinkSetUp(l))
		}
	}
}

func (i *inside) addr(dev string, p netip.Prefix) {
	if l := i.link(dev); i.err == nil {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		i.try(fmt.Sprintf("add address %s to %s", p, dev), i.AddrAdd(l, a))
	}
}

// neigh makes a neighbour permanent: nothing in the lab waits for ARP.
func (i *inside) neigh(dev string, ip netip.Addr, m MAC) {
	if l := i.link(dev); i.err == nil {
		i.try(fmt.Sprintf("add neighbour %s to %s", ip, dev), i.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: m[:]}))
	}
}

func (i *inside) route(dev string, dst netip.Prefix, via netip.Addr) {
	if l := i.link(dev); i.err == nil {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst)}
		if via.IsValid() {
			r.Gw = via.AsSlice()
			r.Flags = int(netlink.FLAG_ONLINK)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		i.try(fmt.Sprintf("add route to %s", dst), i.RouteReplace(r))
	}
}

// fdb tells the bridge behind which of its ports an address is.
func (i *inside) fdb(port string, m MAC) {
	if l := i.link(port); i.err == nil {
		i.try("add forwarding entry to "+port, i.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER,
			State: netlink.NUD_NOARP, HardwareAddr: m[:]}))
	}
}

// flowControl makes the sending stack wait when the wire's ring is full, as a
// network card with pause frames would (from 6.16; before, veth drops). With
// the ring's 256 frames and nothing in front of it, one TCP segment in six is
// sent twice. Frames that XDP redirects do not wait.
func (i *inside) flowControl(dev string, queues int) {
	kind := "pfifo"
	if queues > 1 {
		kind = "mq"
	}
	if l := i.link(dev); i.err == nil {
		i.try("set queueing of "+dev, i.QdiscReplace(&netlink.GenericQdisc{QdiscType: kind,
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}}))
	}
}

func (i *inside) sysctl(path, value string) {
	if i.err == nil {
		i.try("set "+path, i.ns.Do(func() error { return writeFile("/proc/sys/"+path, value) }))
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

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
		if err := b.buildOverlay(s); err != nil {
			return fmt.Errorf("overlay of %s: %w", b.Hosts[s].Name, err)
		}
		for n := range b.Pods {
			if err := b.buildPod(s, n); err != nil {
				return fmt.Errorf("pod %s: %w", b.Hosts[s].Pods[n].Name, err)
			}
		}
	}
	return b.Reset()
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
			for m := range b.Pods {
				far := podIP4(s.peer(), m)
				if ip.Is6() {
					far = podIP6(s.peer(), m)
				}
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
