// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/nlsock"
)

// conn asks rtnetlink about one namespace.
type conn struct{ *nlsock.Conn }

// link is a device as rtnetlink tells it.
type link struct {
	index     int
	name      string
	kind      string // IFLA_INFO_KIND; empty for hardware
	flags     uint32
	mtu       int
	mac       net.HardwareAddr
	master    int
	lower     int // IFLA_LINK: veth's other end, VLAN's parent
	nsid      int // of the namespace that lower lives in; -1: the same
	qdisc     string
	xdpProg   uint32
	allocated int           // RX queues allocated, not necessarily in use
	tunnel    *encap.Tunnel // nil: none that is understood
}

const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS

func ifinfomsg(index int) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	return b
}

// links lists the devices of the namespace.
func (c *conn) links() (map[int]*link, error) {
	var all map[int]*link
	err := c.Do(unix.RTM_GETLINK, unix.NLM_F_DUMP, nlsock.Attr32(ifinfomsg(0), unix.IFLA_EXT_MASK, skipStats),
		func() { all = map[int]*link{} },
		func(b []byte) error {
			if l := parseLink(b); l != nil {
				all[l.index] = l
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return all, nil
}

// linkIn reads one device of the namespace that has the id nsid here, without
// entering or opening that namespace.
func (c *conn) linkIn(nsid, index int) (*link, error) {
	req := nlsock.Attr32(ifinfomsg(index), unix.IFLA_TARGET_NETNSID, uint32(nsid))
	req = nlsock.Attr32(req, unix.IFLA_EXT_MASK, skipStats)
	var l *link
	err := c.Do(unix.RTM_GETLINK, 0, req, func() {}, func(b []byte) error {
		l = parseLink(b)
		return nil
	})
	if err == nil && l == nil {
		err = unix.ENODEV
	}
	if err != nil {
		return nil, fmt.Errorf("read device %d: %w", index, err)
	}
	return l, nil
}

// parseLink returns nil for what is no device description.
func parseLink(b []byte) *link {
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC {
		return nil
	}
	l := &link{index: int(int32(nlsock.U32(b[4:]))), flags: nlsock.U32(b[8:]), nsid: -1}
	var data []byte // of the kind
	for t, v := range nlsock.Attrs(b[unix.SizeofIfInfomsg:]) {
		switch t {
		case unix.IFLA_IFNAME:
			l.name = nlsock.Str(v)
		case unix.IFLA_MTU:
			l.mtu = int(nlsock.U32(v))
		case unix.IFLA_ADDRESS:
			l.mac = bytes.Clone(v)
		case unix.IFLA_MASTER:
			l.master = int(nlsock.U32(v))
		case unix.IFLA_LINK:
			l.lower = int(nlsock.U32(v))
		case unix.IFLA_LINK_NETNSID:
			l.nsid = int(int32(nlsock.U32(v)))
		case unix.IFLA_QDISC:
			l.qdisc = nlsock.Str(v)
		case unix.IFLA_NUM_RX_QUEUES:
			l.allocated = int(nlsock.U32(v))
		case unix.IFLA_XDP:
			l.xdpProg = parseXDP(v)
		case unix.IFLA_LINKINFO:
			for t, v := range nlsock.Attrs(v) {
				switch t {
				case unix.IFLA_INFO_KIND:
					l.kind = nlsock.Str(v)
				case unix.IFLA_INFO_DATA:
					data = v
				}
			}
		}
	}
	if t, ok := encap.Parse(l.kind, data); ok {
		l.tunnel = &t
	}
	return l
}

// parseXDP returns the id of the attached program. With programs in several
// modes at once the driver's comes first.
func parseXDP(b []byte) uint32 {
	var one, drv, other uint32
	for t, v := range nlsock.Attrs(b) {
		switch t {
		case unix.IFLA_XDP_PROG_ID:
			one = nlsock.U32(v)
		case unix.IFLA_XDP_DRV_PROG_ID:
			drv = nlsock.U32(v)
		case unix.IFLA_XDP_SKB_PROG_ID, unix.IFLA_XDP_HW_PROG_ID:
			other = nlsock.U32(v)
		}
	}
	switch {
	case one != 0:
		return one
	case drv != 0:
		return drv
	}
	return other
}
