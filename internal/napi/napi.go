// SPDX-License-Identifier: Apache-2.0

// Package napi asks the kernel's netdev family for the threads that poll devices, and for whatever else it tells.
package napi

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From include/uapi/linux/netdev.h.
const (
	netdevCmdNAPIGet   = 11
	netdevNAPIIfindex  = 1
	netdevNAPIID       = 2
	netdevNAPIPID      = 4
	netdevGenlVersion1 = 1
)

type napi struct{ ifindex, id, pid uint32 }

// genlHeader is struct genlmsghdr. nl.Genlmsg would do, but leaves the reserved
// half to chance, and the kernel insists on zero.
type genlHeader struct{ cmd, version byte }

func (genlHeader) Len() int            { return nl.SizeofGenlmsg }
func (h genlHeader) Serialize() []byte { return []byte{h.cmd, h.version, 0, 0} }

// Ask asks the netdev family, by its number, about what has such an attribute in the calling thread's namespace. It
// returns the attributes of each answer.
func Ask(family uint16, cmd byte, flags, attr int, value uint32) (answers []map[uint16]syscall.NetlinkRouteAttr, err error) {
	req := nl.NewNetlinkRequest(int(family), flags)
	req.AddData(genlHeader{cmd, netdevGenlVersion1})
	req.AddData(nl.NewRtAttr(attr, nl.Uint32Attr(value)))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttrAsMap(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		answers = append(answers, attrs)
	}
	return answers, nil
}

// getNAPI asks for NAPI instances.
func getNAPI(family uint16, flags int, attr int, value uint32) (found []napi, err error) {
	answers, err := Ask(family, netdevCmdNAPIGet, flags, attr, value)
	for _, attrs := range answers {
		get := func(attr uint16) uint32 {
			if a, ok := attrs[attr]; ok && len(a.Value) >= 4 {
				return nl.NativeEndian().Uint32(a.Value)
			}
			return 0
		}
		found = append(found, napi{get(netdevNAPIIfindex), get(netdevNAPIID), get(netdevNAPIPID)})
	}
	return found, err
}

// Threads returns the threads that poll a device of the calling thread's network
// namespace, by queue; none if it is polled in softirq. Names would not do: a device
// may have the name of another namespace's. queues bounds how many there may be.
func Threads(ifindex, queues int) ([]int, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return nil, fmt.Errorf("list NAPI threads: %w", err)
	}
	first, err := getNAPI(family.ID, unix.NLM_F_DUMP, netdevNAPIIfindex, uint32(ifindex))
	if err != nil || len(first) == 0 {
		return nil, err
	}
	// The dump of some kernels loses instances of one device (seen in 6.18).
	// Their numbers lie close together and ascend with the queues: ask for
	// each by number.
	var tids []int
	near, reach := first[0].id, uint32(4*queues)
	for id := near - min(near-1, reach); id < near+reach && len(tids) < queues; id++ {
		one, err := getNAPI(family.ID, 0, netdevNAPIID, id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list NAPI threads: %w", err)
		}
		for _, n := range one {
			if n.ifindex == uint32(ifindex) && n.pid != 0 {
				tids = append(tids, int(n.pid))
			}
		}
	}
	return tids, nil
}
