// SPDX-License-Identifier: Apache-2.0

package bed

import "net/netip"

// Link is what an Ethernet and IP header say of one hop or one end-to-end path.
type Link struct {
	SrcMAC, DstMAC MAC
	Src, Dst       netip.Addr
}

// WireLink is the path between the two hosts, without the overlay.
func (b *Bed) WireLink() Link {
	a, r := b.Sender(), b.Receiver()
	return Link{a.WireMAC, r.WireMAC, a.IP, r.IP}
}

// PodLink is the path from pod n of the sender to pod n of the receiver, as
// the inner headers on the wire show it.
func (b *Bed) PodLink(n int, v6 bool) Link {
	from, to := &b.Sender().Pods[n], &b.Receiver().Pods[n]
	l := Link{from.MAC, to.MAC, from.IP4, to.IP4}
	if v6 {
		l.Src, l.Dst = from.IP6, to.IP6
	}
	if b.Topology == Routed {
		l.SrcMAC, l.DstMAC = tunnelMAC(A), tunnelMAC(B)
	}
	return l
}
