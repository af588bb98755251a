// SPDX-License-Identifier: Apache-2.0

package nlsock

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// Link is a device as rtnetlink tells it. Data and PortData last until the next question.
type Link struct {
	Index, MTU int
	Type       uint16 // ARPHRD_ETHER: its frames have Ethernet headers
	Flags      uint32
	Name       string
	Kind       string // IFLA_INFO_KIND; empty for hardware
	Data       []byte // of the kind: IFLA_INFO_DATA
	MAC        net.HardwareAddr
	Promisc    bool
	Qdisc      string
	RxQueues   int // allocated, not necessarily in use
	XDP        XDP
	// Lower is IFLA_LINK: veth's other end, VLAN's parent. Its namespace has the id LowerNSID; -1: the same.
	Lower, LowerNSID int
	// Master is the device that this one is a port of, MasterKind and PortData (IFLA_INFO_SLAVE_DATA) what it is there.
	Master     int
	MasterKind string
	PortData   []byte
}

// XDP are the ids of the programs on a device, by mode; One is that of the only mode in use.
type XDP struct{ One, Driver, Generic, Hardware uint32 }

// All are these, some twice: the driver's before others.
func (x XDP) All() []uint32 {
	return slices.DeleteFunc([]uint32{x.One, x.Driver, x.Generic, x.Hardware}, func(id uint32) bool { return id == 0 })
}

// First is the first of them, 0 if there is none.
func (x XDP) First() uint32 { return cmp.Or(x.One, x.Driver, x.Generic, x.Hardware) }

const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS

// IfInfo begins a request about a device; 0: about all.
func IfInfo(index int) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	return b
}

// Links has each device of the namespace told. restart is called first, and when the dump begins anew.
func (c *Conn) Links(restart func(), each func(*Link)) error {
	err := c.Dump(unix.RTM_GETLINK, Attr32(IfInfo(0), unix.IFLA_EXT_MASK, skipStats), restart, func(b []byte) {
		if l := ParseLink(b); l != nil {
			each(l)
		}
	})
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	return nil
}

// LinkIn reads one device of the namespace that has the id nsid here, without entering or opening that namespace.
func (c *Conn) LinkIn(nsid, index int) (*Link, error) {
	req := Attr32(IfInfo(index), unix.IFLA_TARGET_NETNSID, uint32(nsid))
	req = Attr32(req, unix.IFLA_EXT_MASK, skipStats)
	b, err := c.Ask(unix.RTM_GETLINK, req)
	l := ParseLink(b)
	if err == nil && l == nil {
		err = unix.ENODEV
	}
	return l, err
}

// ParseLink returns nil for what is no device description.
func ParseLink(b []byte) *Link {
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC {
		return nil
	}
	l := &Link{Type: binary.NativeEndian.Uint16(b[2:]), Index: int(int32(U32(b[4:]))), Flags: U32(b[8:]), LowerNSID: -1}
	for t, v := range Attrs(b[unix.SizeofIfInfomsg:]) {
		switch t {
		case unix.IFLA_IFNAME:
			l.Name = Str(v)
		case unix.IFLA_MTU:
			l.MTU = int(U32(v))
		case unix.IFLA_ADDRESS:
			l.MAC = bytes.Clone(v)
		case unix.IFLA_PROMISCUITY:
			l.Promisc = U32(v) > 0
		case unix.IFLA_MASTER:
			l.Master = int(U32(v))
		case unix.IFLA_LINK:
			l.Lower = int(U32(v))
		case unix.IFLA_LINK_NETNSID:
			l.LowerNSID = int(int32(U32(v)))
		case unix.IFLA_QDISC:
			l.Qdisc = Str(v)
		case unix.IFLA_NUM_RX_QUEUES:
			l.RxQueues = int(U32(v))
		case unix.IFLA_XDP:
			x := List(v)
			l.XDP = XDP{
				One: x.U32(unix.IFLA_XDP_PROG_ID), Driver: x.U32(unix.IFLA_XDP_DRV_PROG_ID),
				Generic: x.U32(unix.IFLA_XDP_SKB_PROG_ID), Hardware: x.U32(unix.IFLA_XDP_HW_PROG_ID),
			}
		case unix.IFLA_LINKINFO:
			info := List(v)
			l.Kind, l.Data = info.Str(unix.IFLA_INFO_KIND), info.Get(unix.IFLA_INFO_DATA)
			l.MasterKind, l.PortData = info.Str(unix.IFLA_INFO_SLAVE_KIND), info.Get(unix.IFLA_INFO_SLAVE_DATA)
		}
	}
	return l
}
