// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

// emptied is how long a device that is to go may take to send on what its qdisc holds:
// a resequencer lets go of all within its limit.
const emptied = 1200 * time.Millisecond

// getDevice tells whether there is a device of that name, and which.
func (s *settingPlace) getDevice() (string, error) {
	return netns.Read(s.handle, func() (string, error) { return deviceValue(s.Attr) })
}

func deviceValue(name string) (string, error) {
	link, err := netlink.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return plan.NoDevice, nil
	}
	if err != nil {
		return "", fmt.Errorf("look for device %s: %w", name, err)
	}
	peer, err := peerName(link)
	if err != nil {
		return "", fmt.Errorf("look at device %s: %w", name, err)
	}
	if peer == "" {
		return link.Type(), nil // another program's
	}
	return plan.OwnVeth(link.Attrs().Index, peer), nil
}

// peerName is the other end of a veth, if it has one in the same namespace.
func peerName(link netlink.Link) (string, error) {
	if _, ok := link.(*netlink.Veth); !ok {
		return "", nil
	}
	peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if peer.Attrs().ParentIndex != link.Attrs().Index {
		return "", nil // that index is of another namespace
	}
	return peer.Attrs().Name, nil
}

// putDevice makes a device or, for plan.NoDevice, deletes it.
func (s *settingPlace) putDevice(value string) error {
	return s.handle.Do(func() error {
		if value == plan.NoDevice {
			return deleteDevice(s.Attr)
		}
		ifindex, peer, err := plan.ParseOwnVeth(value)
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = s.Attr, ifindex
		link := &netlink.Veth{LinkAttrs: attrs, PeerName: peer}
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("make devices %s and %s: %w", s.Attr, peer, err)
		}
		for _, name := range []string{s.Attr, peer} {
			if err := raise(name); err != nil {
				return errors.Join(err, netlink.LinkDel(link))
			}
		}
		return nil
	})
}

// raise sets a device up on which the kernel itself shall send nothing.
func raise(name string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep IPv6 off device %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err == nil {
		// Packets of any pod have to fit.
		err = netlink.LinkSetMTU(link, plan.OwnVethMTU)
	}
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("set device %s up: %w", name, err)
	}
	return nil
}

func deleteDevice(name string) error {
	link, err := netlink.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for device %s: %w", name, err)
	}
	for begun := time.Now(); time.Since(begun) < emptied; time.Sleep(5 * time.Millisecond) {
		n, err := queued(link)
		if err != nil || n == 0 {
			break // what is lost with it, if anything, it counts itself
		}
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("delete device %s: %w", name, err)
	}
	return nil
}

// queued is how many packets a device's qdiscs hold.
func queued(link netlink.Link) (n uint32, err error) {
	list, err := netlink.QdiscList(link)
	for _, q := range list {
		if st := q.Attrs().Statistics; st != nil && st.Queue != nil {
			n += st.Queue.Qlen
		}
	}
	return n, err
}
