// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
)

// In opens a netlink connection in a namespace, which it keeps alive until it
// is closed.
func In(tb testing.TB, ns *netns.Handle) *netlink.Handle {
	tb.Helper()
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
	if err != nil {
		tb.Fatal(err)
	}
	return nl
}

// Plug joins a pod to its host's bridge by a new veth.
func Plug(tb testing.TB, host *bed.Host, p bed.Pod) {
	tb.Helper()
	out, inside := In(tb, host.Overlay), In(tb, p.NS)
	defer out.Close()
	defer inside.Close()
	if err := plug(out, inside, p); err != nil {
		tb.Fatalf("plug pod %s in: %v", p.HostEnd, err)
	}
}

func plug(out, inside *netlink.Handle, p bed.Pod) error {
	v := netlink.NewVeth(netlink.LinkAttrs{Name: p.HostEnd, MTU: bed.OverlayMTU})
	v.PeerName, v.PeerHardwareAddr, v.PeerNamespace = bed.PodDev, p.MAC[:], netlink.NsFd(p.NS.FD())
	if err := out.LinkAdd(v); err != nil {
		return err
	}
	bridge, err := out.LinkByName(bed.Bridge)
	if err != nil {
		return err
	}
	if err := errors.Join(out.LinkSetMaster(v, bridge), out.LinkSetUp(v)); err != nil {
		return err
	}
	eth, err := inside.LinkByName(bed.PodDev)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(p.IP4.String() + "/16")
	if err != nil {
		return err
	}
	return errors.Join(inside.LinkSetUp(eth), inside.AddrAdd(eth, addr))
}

// Unplug takes a pod's veth away.
func Unplug(tb testing.TB, host *bed.Host, p bed.Pod) {
	tb.Helper()
	nl := In(tb, host.Overlay)
	defer nl.Close()
	l, err := nl.LinkByName(p.HostEnd)
	if err == nil {
		err = nl.LinkDel(l)
	}
	if err != nil {
		tb.Fatalf("take pod %s away: %v", p.HostEnd, err)
	}
}

// Container makes a pod with a namespace of its own, to be plugged in. With the
// namespace goes its veth. n tells those of a bed apart, from 0 to 999.
func Container(tb testing.TB, b *bed.Bed, n int) (p bed.Pod, remove func()) {
	tb.Helper()
	ns, err := netns.New()
	if err != nil {
		tb.Fatal(err)
	}
	path := fmt.Sprintf("/run/netns/ol%s-x%d", b.Name, n)
	if err := ns.Name(path); err != nil {
		tb.Fatal(errors.Join(err, ns.Close()))
	}
	p = b.Receiver().Pods[0]
	p.NS, p.HostEnd = ns, fmt.Sprintf("vc%d", n)
	// No bed has pods with such addresses.
	p.MAC[4], p.MAC[5] = byte(0x80+n>>8), byte(n)
	p.IP4 = netip.AddrFrom4([4]byte{10, 42, byte(100 + n/250), byte(1 + n%250)})
	gone := false
	remove = func() {
		tb.Helper()
		if gone {
			return
		}
		gone = true
		if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path), ns.Close()); err != nil {
			tb.Errorf("remove the namespace of pod %s: %v", p.HostEnd, err)
		}
	}
	tb.Cleanup(remove)
	return p, remove
}

// Contain mounts a pod's /sys read-only before any other program has its sysfs, as a container runtime does
// it: so is the superblock then. It returns the container's own view.
func Contain(tb testing.TB, p bed.Pod) *os.Root {
	tb.Helper()
	var view *os.Root
	dir := folder(tb)
	err := p.NS.Do(func() error { // on a thread that ends with its mount namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("sysfs", dir, "sysfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""))
		if err == nil {
			view, err = os.OpenRoot(dir)
		}
		return err
	})
	if err != nil {
		tb.Fatalf("mount the sysfs of pod %s: %v", p.HostEnd, err)
	}
	tb.Cleanup(func() { view.Close() })
	if root, err := p.NS.Sysfs(); err != nil {
		tb.Fatal(err)
	} else if readOnly, err := netns.SysfsReadOnly(root); !readOnly || errors.Join(err, root.Close()) != nil {
		tb.Fatalf("the sysfs of pod %s is not read-only: %v", p.HostEnd, err)
	}
	return view
}
