// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/shell"
)

// xdpFlags are what a device's driver does with XDP, as the kernel's netdev
// netlink family tells (enum netdev_xdp_act).
type xdpFlags uint64

const (
	xdpBasic    xdpFlags = 1 << 0 // ABORTED, DROP, PASS, TX
	xdpRedirect xdpFlags = 1 << 1
	xdpRxSG     xdpFlags = 1 << 5 // packets of several buffers
)

func (f xdpFlags) String() string {
	var list []string
	for i, name := range []string{"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"} {
		if f&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return strings.Join(list, ",")
}

// The netdev family, from linux/netdev.h.
const (
	netdevCmdDevGet       = 1
	netdevADevIfindex     = 1
	netdevADevXDPFeatures = 3
)

// readXDP reads a device's XDP abilities. It fails with fs.ErrNotExist for a kernel
// older than 6.3, which does not tell.
func readXDP(h *netns.Handle, ifindex int) (xdpFlags, error) {
	flags, err := netns.Read(h, func() (xdpFlags, error) {
		family, err := netlink.GenlFamilyGet("netdev")
		if err != nil {
			return 0, err
		}
		answers, err := napi.Ask(family.ID, netdevCmdDevGet, 0, netdevADevIfindex, uint32(ifindex))
		if err != nil {
			return 0, err
		}
		for _, attrs := range answers {
			if v := attrs[netdevADevXDPFeatures].Value; len(v) >= 8 {
				return xdpFlags(binary.NativeEndian.Uint64(v)), nil
			}
		}
		return 0, errors.New("the answer has no XDP features")
	})
	if err != nil {
		return 0, fmt.Errorf("read XDP features of device %d: %w", ifindex, err)
	}
	return flags, nil
}

// sgMTU is the MTU above which a packet does not fit into one page beside XDP's
// headroom, in the drivers that take the most.
const sgMTU = 3498

// NIC tells whether a device's driver runs XDP and can hand packets to other
// cores. It is asked anew each time: drivers change the answer with their
// settings.
func (p Prober) NIC(h *netns.Handle, name string, ifindex, mtu int) Feature {
	f := Feature{ID: NativeXDP, Device: name}
	other := shell.Command("ethtool -i %s  # use a NIC whose driver has it", name)
	switch flags, err := readXDP(h, ifindex); {
	case errors.Is(err, unix.ENOENT):
		f.Reason, f.Remedy = "the kernel does not tell what drivers can do", newerKernel(p.env, minRelease)
		f.MinKernel = minRelease
	case err != nil:
		a := failed(err, "", shell.Line{})
		f.State, f.Reason, f.Remedy = a.state, a.reason, a.remedy
	case flags&xdpBasic == 0:
		f.State, f.Reason, f.Remedy = Unsupported, "its driver has no native XDP with the present settings", other
	case flags&xdpRedirect == 0:
		f.State, f.Reason, f.Remedy = Unsupported, "its driver has native XDP without redirect", other
	case flags&xdpRxSG == 0 && mtu > sgMTU:
		f.State = Unknown // the limit is the driver's own
		f.Reason = fmt.Sprintf("its driver has native XDP only for packets of one buffer, which an MTU of %d may exceed", mtu)
		f.Remedy = shell.Command("ip link set dev %s mtu %s  # warning: this node then loses larger frames, of all traffic; lower the MTU of its peers and overlays first", name, sgMTU)
	default:
		f.State, f.Reason = Supported, "its driver has native XDP: "+flags.String()
	}
	return f
}
