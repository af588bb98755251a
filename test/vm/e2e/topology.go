// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end test that runs under other kernels: an
// overlay of two hosts with a pod each, plain and with the daemon acting.
package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/daemon"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/wire"
)

// Names of devices, the same in every namespace.
const (
	wireDev   = "wire"
	tunnelDev = "tun0"
	bridgeDev = "br0"
	vethDev   = "pod0"
	podDev    = "eth0"
)

// host is one end of the overlay. net is where its tunnel is: ns, or a namespace of its own.
type host struct {
	ns, pod   *netns.Handle
	net       *netns.Handle
	wire, in4 netip.Addr // on the wire; of the pod
	in6       netip.Addr
	mac       net.HardwareAddr // of the pod
}

// overlay is two hosts, which a wire joins.
type overlay struct {
	hosts [2]host
	// between is where the wire runs through, if bare frames are to come out of it.
	between *netns.Handle
	relay   *wire.Relay
	// opts are those of the daemon that was started last.
	opts daemon.Options
}

// kinds are the tunnels, by the name that the kernel gives the driver.
var kinds = map[string]func(link netlink.LinkAttrs, wire int, to netip.Addr, local netip.Addr) netlink.Link{
	"vxlan": func(a netlink.LinkAttrs, wire int, to, local netip.Addr) netlink.Link {
		return &netlink.Vxlan{LinkAttrs: a, VxlanId: 42, Port: 4789, VtepDevIndex: wire,
			Group: to.AsSlice(), SrcAddr: local.AsSlice(), TTL: 64}
	},
	"geneve": func(a netlink.LinkAttrs, _ int, to, _ netip.Addr) netlink.Link {
		return &netlink.Geneve{LinkAttrs: a, ID: 42, Dport: 6081, Remote: to.AsSlice(), Ttl: 64}
	},
}

// A topology is how a pod is joined to the tunnel.
type topology string

const (
	bridged topology = "bridged" // both are ports of a bridge
	routed  topology = "routed"  // by routes
	apart   topology = "apart"   // bridged, in a namespace that is not the host's
)

// build makes an overlay; close takes it away, also when build fails.
func (o *overlay) build(kind string) error { return o.buildAs(kind, bridged) }

func (o *overlay) buildAs(kind string, top topology) error {
	for i := range o.hosts {
		h := &o.hosts[i]
		n := byte(i + 1)
		h.wire = netip.AddrFrom4([4]byte{192, 0, 2, n})
		h.in4 = netip.AddrFrom4([4]byte{10, 244, 0, n})
		h.in6 = netip.MustParseAddr(fmt.Sprintf("fd00:244::%d", n))
		h.mac = net.HardwareAddr{2, 0, 0, 0, 1, n}
		var err error
		if h.ns, err = silent(); err != nil {
			return err
		}
		if h.pod, err = netns.New(); err != nil {
			return err
		}
		h.net = h.ns
		if top == apart {
			if h.net, err = silent(); err != nil {
				return err
			}
		}
	}
	if err := o.buildWire(); err != nil {
		return fmt.Errorf("build wire: %w", err)
	}
	for i := range o.hosts {
		here, there := &o.hosts[i], &o.hosts[1-i]
		if err := here.join(kind, top, there); err != nil {
			return fmt.Errorf("build host %d: %w", i, err)
		}
		if err := here.buildPod(there); err != nil {
			return fmt.Errorf("build pod %d: %w", i, err)
		}
	}
	for i := range o.hosts {
		if top != routed {
			break
		}
		if err := o.hosts[i].route(&o.hosts[1-i]); err != nil {
			return fmt.Errorf("build routes of host %d: %w", i, err)
		}
	}
	return nil
}

func (o *overlay) close() error {
	var errs []error
	if o.relay != nil {
		errs = append(errs, o.relay.Close())
	}
	if o.between != nil {
		errs = append(errs, o.between.Close())
	}
	for _, h := range o.hosts {
		if h.net != nil && h.net != h.ns {
			errs = append(errs, h.net.Close())
		}
		for _, ns := range []*netns.Handle{h.pod, h.ns} {
			if ns != nil {
				errs = append(errs, ns.Close())
			}
		}
	}
	return errors.Join(errs...)
}

func (o *overlay) buildWire() error {
	a, b := &o.hosts[0], &o.hosts[1]
	err := o.strain(a, b)
	for _, h := range o.hosts {
		if err == nil {
			err = in(h.ns, func(nl *netlink.Handle) error {
				return errors.Join(up(nl, wireDev, netip.PrefixFrom(h.wire, 24)), queueAt(nl, wireDev))
			})
		}
	}
	if err != nil {
		return err
	}
	// A real wire never carries unfinished checksums; veth does, and what XDP
	// redirects from it would lose the note that they are unfinished.
	return a.ns.Do(func() error { return finishChecksums(wireDev) })
}

// strain lays the wire from host to host, or through a namespace between them.
func (o *overlay) strain(a, b *host) error {
	lay := func(from *host, name string, to *netns.Handle) error {
		return in(from.ns, func(nl *netlink.Handle) error {
			v := netlink.NewVeth(netlink.LinkAttrs{Name: wireDev, MTU: 1600})
			v.PeerName, v.PeerNamespace = name, netlink.NsFd(to.FD())
			return nl.LinkAdd(v)
		})
	}
	if o.between == nil {
		return lay(a, wireDev, b.ns)
	}
	var ends [2]int
	for i, h := range []*host{a, b} {
		name := fmt.Sprintf("end%d", i)
		if err := lay(h, name, o.between); err != nil {
			return err
		}
		// What is redirected to a veth's other end needs NAPI there.
		if err := h.ns.Do(func() error { return ethtool.SetFeature(wireDev, "rx-gro", true) }); err != nil {
			return err
		}
		err := in(o.between, func(nl *netlink.Handle) error {
			l, err := nl.LinkByName(name)
			if err != nil {
				return err
			}
			ends[i] = l.Attrs().Index
			return up(nl, name)
		})
		if err != nil {
			return err
		}
	}
	var err error
	o.relay, err = wire.StartRelay(o.between, ends[0], ends[1])
	return err
}

// queueAt has packets wait at a device, as at a NIC's: since Linux 6.16 one of a pair of veths
// waits for room in the ring of the other where it has a queue, and drops packets where it has
// none.
func queueAt(nl *netlink.Handle, dev string) error {
	l, err := nl.LinkByName(dev)
	if err != nil {
		return err
	}
	q := &netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}}
	if err := nl.QdiscReplace(q); err != nil {
		return fmt.Errorf("give %s a queue: %w", dev, err)
	}
	return nil
}

// finishChecksums is `ethtool -K DEV tx off`, in the calling thread's namespace.
func finishChecksums(dev string) error {
	return switchOff(dev, unix.ETHTOOL_GTXCSUM, unix.ETHTOOL_STXCSUM)
}

// segmentEarly is `ethtool -K DEV tso off gso off`: what is sent are packets as on the wire.
func segmentEarly(dev string) error {
	return errors.Join(switchOff(dev, unix.ETHTOOL_GTSO, unix.ETHTOOL_STSO), switchOff(dev, unix.ETHTOOL_GGSO, unix.ETHTOOL_SGSO))
}

// switchOff switches an offload off that these requests read and write. There is no ethtool
// where this runs, and the daemon's own code is no witness.
func switchOff(dev string, get, set uint32) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	ask := func(value *[2]uint32) error { // struct ethtool_value: command, data
		ifr := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte // the rest of struct ifreq
		}{data: unsafe.Pointer(value)}
		copy(ifr.name[:unix.IFNAMSIZ-1], dev)
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
		runtime.KeepAlive(value)
		if errno != 0 {
			return fmt.Errorf("ethtool request %#x about %s: %w", value[0], dev, errno)
		}
		return nil
	}
	off, is := [2]uint32{set, 0}, [2]uint32{get, 1}
	if err := errors.Join(ask(&off), ask(&is)); err != nil {
		return err
	}
	if is[1] != 0 {
		return fmt.Errorf("offload %#x of %s is still on", get, dev)
	}
	return nil
}

// join builds tunnel and pod, and a bridge that joins them.
func (h *host) join(kind string, top topology, far *host) error {
	err := in(h.ns, func(nl *netlink.Handle) error {
		wire, err := nl.LinkByName(wireDev)
		if err != nil {
			return err
		}
		a := netlink.LinkAttrs{Name: tunnelDev, MTU: 1500}
		if err := nl.LinkAdd(kinds[kind](a, wire.Attrs().Index, far.wire, h.wire)); err != nil {
			return fmt.Errorf("create %s: %w", kind, err)
		}
		tunnel, err := nl.LinkByName(tunnelDev)
		if err == nil && h.net != h.ns {
			err = nl.LinkSetNsFd(tunnel, h.net.FD())
		}
		return err
	})
	if err != nil {
		return err
	}
	return in(h.net, func(nl *netlink.Handle) error {
		v := netlink.NewVeth(netlink.LinkAttrs{Name: vethDev, MTU: 1500})
		v.PeerName, v.PeerNamespace, v.PeerHardwareAddr = podDev, netlink.NsFd(h.pod.FD()), h.mac
		if err := nl.LinkAdd(v); err != nil {
			return fmt.Errorf("create veth: %w", err)
		}
		if top != routed {
			snooping := false
			br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeDev, MTU: 1500}, MulticastSnooping: &snooping}
			if err := nl.LinkAdd(br); err != nil {
				return fmt.Errorf("create bridge: %w", err)
			}
			for _, dev := range []string{tunnelDev, vethDev} {
				l, err := nl.LinkByName(dev)
				if err == nil {
					err = nl.LinkSetMaster(l, br)
				}
				if err != nil {
					return fmt.Errorf("make %s a port: %w", dev, err)
				}
			}
			if err := up(nl, bridgeDev); err != nil {
				return err
			}
		}
		return errors.Join(up(nl, tunnelDev), up(nl, vethDev))
	})
}

// route joins tunnel and pod by routes: to a pod what is for it, to the far host the rest.
func (h *host) route(far *host) error {
	var err error
	for _, dev := range []string{tunnelDev, vethDev} {
		// Without an address of its own and without groups a device has nothing to announce.
		const none = "1"
		err = errors.Join(err,
			in(h.net, func(nl *netlink.Handle) error {
				l, err := nl.LinkByName(dev)
				if err == nil {
					err = nl.LinkSetMulticastOff(l)
				}
				return err
			}),
			sysctl(h.net, "ipv6/conf/"+dev+"/addr_gen_mode", none),
			sysctl(h.net, "ipv6/conf/"+dev+"/disable_ipv6", "0"))
	}
	err = errors.Join(err, sysctl(h.net, "ipv4/ip_forward", "1"), sysctl(h.net, "ipv6/conf/all/forwarding", "1"))
	if err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	mac := func(h *host, dev string) (addr net.HardwareAddr, err error) {
		err = in(h.net, func(nl *netlink.Handle) error {
			l, err := nl.LinkByName(dev)
			if err == nil {
				addr = l.Attrs().HardwareAddr
			}
			return err
		})
		return addr, err
	}
	farTunnel, err := mac(far, tunnelDev)
	if err != nil {
		return err
	}
	gate, err := mac(h, vethDev)
	if err != nil {
		return err
	}
	// to sends an address out by a device, to a neighbour that the kernel need not look for.
	to := func(nl *netlink.Handle, dev string, ip netip.Addr, mac net.HardwareAddr) error {
		l, err := nl.LinkByName(dev)
		if err != nil {
			return err
		}
		at := l.Attrs().Index
		dst := &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
		return errors.Join(
			nl.RouteReplace(&netlink.Route{LinkIndex: at, Dst: dst, Scope: netlink.SCOPE_LINK}),
			nl.NeighSet(&netlink.Neigh{LinkIndex: at, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: mac}))
	}
	err = in(h.net, func(nl *netlink.Handle) error {
		return errors.Join(
			to(nl, vethDev, h.in4, h.mac), to(nl, vethDev, h.in6, h.mac),
			to(nl, tunnelDev, far.in4, farTunnel), to(nl, tunnelDev, far.in6, farTunnel))
	})
	if err != nil {
		return err
	}
	return in(h.pod, func(nl *netlink.Handle) error {
		return errors.Join(to(nl, podDev, far.in4, gate), to(nl, podDev, far.in6, gate))
	})
}

func (h *host) buildPod(far *host) error {
	return in(h.pod, func(nl *netlink.Handle) error {
		if err := up(nl, podDev, netip.PrefixFrom(h.in4, 24), netip.PrefixFrom(h.in6, 64)); err != nil {
			return err
		}
		l, err := nl.LinkByName(podDev)
		if err != nil {
			return err
		}
		// Nothing waits for neighbours to be found.
		for _, ip := range []netip.Addr{far.in4, far.in6} {
			n := &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: far.mac}
			if err := nl.NeighSet(n); err != nil {
				return fmt.Errorf("add neighbour %s: %w", ip, err)
			}
		}
		return nil
	})
}

// silent is a new namespace whose devices send nothing of their own: from another core that would
// empty the wire's queue there, and a flow would overtake itself.
func silent() (*netns.Handle, error) {
	ns, err := netns.New()
	if err != nil {
		return nil, err
	}
	if err := sysctl(ns, "ipv6/conf/default/disable_ipv6", "1"); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	return ns, nil
}

func sysctl(ns *netns.Handle, name, value string) error {
	return ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

func up(nl *netlink.Handle, dev string, addrs ...netip.Prefix) error {
	l, err := nl.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("find %s: %w", dev, err)
	}
	for _, p := range addrs {
		a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := nl.AddrAdd(l, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, dev, err)
		}
	}
	if err := nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("set up %s: %w", dev, err)
	}
	return nil
}

func in(ns *netns.Handle, fn func(*netlink.Handle) error) error {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer nl.Close()
	return fn(nl)
}
