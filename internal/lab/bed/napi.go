// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"

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

// getNAPI asks for NAPI instances of the calling thread's namespace.
func getNAPI(family uint16, flags int, attr int, value uint32) ([]napi, error) {
	req := nl.NewNetlinkRequest(int(family), flags)
	req.AddData(genlHeader{netdevCmdNAPIGet, netdevGenlVersion1})
	req.AddData(nl.NewRtAttr(attr, nl.Uint32Attr(value)))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	var found []napi
	for _, m := range msgs {
		attrs, err := nl.ParseRouteAttrAsMap(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		get := func(attr uint16) uint32 {
			if a, ok := attrs[attr]; ok && len(a.Value) >= 4 {
				return nl.NativeEndian().Uint32(a.Value)
			}
			return 0
		}
		found = append(found, napi{get(netdevNAPIIfindex), get(netdevNAPIID), get(netdevNAPIPID)})
	}
	return found, nil
}

// NAPIThreads returns the threads that poll the receiving end of the wire, by
// queue; none in softirq mode. Thread names would not do: several labs have a
// device of the same name.
func (b *Bed) NAPIThreads() ([]int, error) {
	rx := b.Receiver()
	var ifindex uint32
	if err := within(rx.NS, func(i *inside) { ifindex = uint32(i.link(rx.Wire).Attrs().Index) }); err != nil {
		return nil, err
	}
	var tids []int
	err := rx.NS.Do(func() error {
		family, err := netlink.GenlFamilyGet("netdev")
		if err != nil {
			return err
		}
		first, err := getNAPI(family.ID, unix.NLM_F_DUMP, netdevNAPIIfindex, ifindex)
		if err != nil || len(first) == 0 {
			return err
		}
		// The dump of some kernels loses instances of one device (seen in 6.18).
		// Their numbers lie close together and ascend with the queues: ask for
		// each by number.
		near := first[0].id
		for id := near - min(near-1, 4*MaxQueues); id < near+4*MaxQueues && len(tids) < b.Queues; id++ {
			one, err := getNAPI(family.ID, 0, netdevNAPIID, id)
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			if err != nil {
				return err
			}
			for _, n := range one {
				if n.ifindex == ifindex && n.pid != 0 {
					tids = append(tids, int(n.pid))
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list NAPI threads of %s: %w", rx.Wire, err)
	}
	return tids, nil
}
