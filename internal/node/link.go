// SPDX-License-Identifier: Apache-2.0

package node

import (
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/nlsock"
)

// conn asks rtnetlink about one namespace.
type conn struct{ *nlsock.Conn }

// link is a device as rtnetlink tells it, and what that means here. Of Data and PortData it keeps nothing.
type link struct {
	nlsock.Link
	tunnel *encap.Tunnel // nil: none that is understood
	vlans  bool          // a switch that keeps VLANs apart: a bridge that filters by them, or Open vSwitch
	vnet   bool          // a tap device with Receiver.VNetHeader
}

const tunVNetHeader = 5 // IFLA_TUN_VNET_HDR

// links lists the devices of the namespace.
func (c *conn) links() (all map[int]*link, err error) {
	err = c.Links(func() { all = map[int]*link{} }, func(l *nlsock.Link) { all[l.Index] = linkOf(l) })
	return all, err
}

func linkOf(l *nlsock.Link) *link {
	o := &link{Link: *l, vlans: l.Kind == "openvswitch" || l.Kind == "bridge" && nlsock.List(l.Data).Flag(unix.IFLA_BR_VLAN_FILTERING)}
	o.vnet = l.Kind == "tun" && nlsock.List(l.Data).Flag(tunVNetHeader)
	o.Data, o.PortData = nil, nil
	if t, ok := encap.Parse(l.Kind, l.Data); ok {
		o.tunnel = &t
	}
	return o
}
