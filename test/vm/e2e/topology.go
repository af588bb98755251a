// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end test that runs under other kernels: an
// overlay of two hosts with a pod each, plain and with the daemon acting.
package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// Names of devices, the same in every namespace.
const (
	wireDev   = "wire"
	tunnelDev = "tun0"
	bridgeDev = "br0"
	vethDev   = "pod0"
	podDev    = "eth0"
)

// host is one end of the overlay.
type host struct {
	ns, pod   *netns.Handle
	wire, in4 netip.Addr // on the wire; of the pod
	in6       netip.Addr
	mac       net.HardwareAddr // of the pod
}

// overlay is two hosts, which a wire joins.
type overlay struct {
	hosts [2]host
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

// build makes an overlay; close takes it away, also when build fails.
func (o *overlay) build(kind string) error {
	for i := range o.hosts {
		h := &o.hosts[i]
		n := byte(i + 1)
		h.wire = netip.AddrFrom4([4]byte{192, 0, 2, n})
		h.in4 = netip.AddrFrom4([4]byte{10, 244, 0, n})
		h.in6 = netip.MustParseAddr(fmt.Sprintf("fd00:244::%d", n))
		h.mac = net.HardwareAddr{2, 0, 0, 0, 1, n}
		for _, ns := range []**netns.Handle{&h.ns, &h.pod} {
			var err error
			if *ns, err = netns.New(); err != nil {
				return err
			}
		}
	}
	if err := o.buildWire(); err != nil {
		return fmt.Errorf("build wire: %w", err)
	}
	for i := range o.hosts {
		here, there := &o.hosts[i], &o.hosts[1-i]
		if err := here.join(kind, there); err != nil {
			return fmt.Errorf("build host %d: %w", i, err)
		}
		if err := here.buildPod(there); err != nil {
			return fmt.Errorf("build pod %d: %w", i, err)
		}
	}
	return nil
}

func (o *overlay) close() error {
	var errs []error
	for _, h := range o.hosts {
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
	err := in(a.ns, func(nl *netlink.Handle) error {
		v := netlink.NewVeth(netlink.LinkAttrs{Name: wireDev, MTU: 1600})
		v.PeerName, v.PeerNamespace = wireDev, netlink.NsFd(b.ns.FD())
		return nl.LinkAdd(v)
	})
	for _, h := range o.hosts {
		if err == nil {
			err = in(h.ns, func(nl *netlink.Handle) error { return up(nl, wireDev, netip.PrefixFrom(h.wire, 24)) })
		}
	}
	if err != nil {
		return err
	}
	// A real wire never carries unfinished checksums; veth does, and what XDP
	// redirects from it would lose the note that they are unfinished.
	return a.ns.Do(func() error { return finishChecksums(wireDev) })
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

// join builds tunnel and bridge.
func (h *host) join(kind string, far *host) error {
	return in(h.ns, func(nl *netlink.Handle) error {
		wire, err := nl.LinkByName(wireDev)
		if err != nil {
			return err
		}
		snooping := false
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeDev, MTU: 1500}, MulticastSnooping: &snooping}
		if err := nl.LinkAdd(br); err != nil {
			return fmt.Errorf("create bridge: %w", err)
		}
		a := netlink.LinkAttrs{Name: tunnelDev, MTU: 1500, MasterIndex: br.Index}
		if err := nl.LinkAdd(kinds[kind](a, wire.Attrs().Index, far.wire, h.wire)); err != nil {
			return fmt.Errorf("create %s: %w", kind, err)
		}
		v := netlink.NewVeth(netlink.LinkAttrs{Name: vethDev, MTU: 1500, MasterIndex: br.Index})
		v.PeerName, v.PeerNamespace, v.PeerHardwareAddr = podDev, netlink.NsFd(h.pod.FD()), h.mac
		if err := nl.LinkAdd(v); err != nil {
			return fmt.Errorf("create veth: %w", err)
		}
		return errors.Join(up(nl, bridgeDev), up(nl, tunnelDev), up(nl, vethDev))
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
