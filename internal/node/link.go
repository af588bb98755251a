// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"

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
	xdpProg   uint32        // of programs in several modes the driver's
	allocated int           // RX queues allocated, not necessarily in use
	tunnel    *encap.Tunnel // nil: none that is understood
}

// links lists the devices of the namespace.
func (c *conn) links() (all map[int]*link, err error) {
	err = c.Links(func() { all = map[int]*link{} }, func(l *nlsock.Link) { all[l.Index] = linkOf(l) })
	return all, err
}

// linkIn reads one device of the namespace that has the id nsid here, without
// entering or opening that namespace.
func (c *conn) linkIn(nsid, index int) (*link, error) {
	l, err := c.LinkIn(nsid, index)
	if err != nil {
		return nil, fmt.Errorf("read device %d: %w", index, err)
	}
	return linkOf(l), nil
}

func linkOf(l *nlsock.Link) *link {
	o := &link{
		index: l.Index, name: l.Name, kind: l.Kind, flags: l.Flags, mtu: l.MTU, mac: l.MAC, master: l.Master,
		lower: l.Lower, nsid: l.LowerNSID, qdisc: l.Qdisc, allocated: l.RxQueues,
	}
	if ids := l.XDP.All(); len(ids) > 0 {
		o.xdpProg = ids[0]
	}
	if t, ok := encap.Parse(l.Kind, l.Data); ok {
		o.tunnel = &t
	}
	return o
}
