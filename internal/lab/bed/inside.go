// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/overlane/overlane/internal/netns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside is a namespace with a netlink connection and the first error: a
// topology is a long list of requests, each of which would fail the same way.
type inside struct {
	*netlink.Handle
	ns  *netns.Handle
	err error
}

func (i *inside) try(what string, err error) {
	if i.err == nil && err != nil {
		i.err = fmt.Errorf("%s: %w", what, err)
	}
}

func within(ns *netns.Handle, fn func(*inside)) error {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()))
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	i := &inside{Handle: nl, ns: ns}
	fn(i)
	return i.err
}

func (i *inside) link(name string) netlink.Link {
	if i.err != nil {
		return &netlink.Dummy{}
	}
	l, err := i.LinkByName(name)
	if err != nil {
		i.try("find device "+name, err)
		return &netlink.Dummy{}
	}
	return l
}

func (i *inside) up(names ...string) {
	for _, n := range names {
		if l := i.link(n); i.err == nil {
			i.try("set up "+n, i.LinkSetUp(l))
		}
	}
}

func (i *inside) addr(dev string, p netip.Prefix) {
	if l := i.link(dev); i.err == nil {
		a := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		i.try(fmt.Sprintf("add address %s to %s", p, dev), i.AddrAdd(l, a))
	}
}

// neigh makes a neighbour permanent: nothing in the lab waits for ARP.
func (i *inside) neigh(dev string, ip netip.Addr, m MAC) {
	if l := i.link(dev); i.err == nil {
		i.try(fmt.Sprintf("add neighbour %s to %s", ip, dev), i.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: m[:]}))
	}
}

func (i *inside) route(dev string, dst netip.Prefix, via netip.Addr) {
	if l := i.link(dev); i.err == nil {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst)}
		if via.IsValid() {
			r.Gw = via.AsSlice()
			r.Flags = int(netlink.FLAG_ONLINK)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		i.try(fmt.Sprintf("add route to %s", dst), i.RouteReplace(r))
	}
}

// fdb tells the bridge behind which of its ports an address is.
func (i *inside) fdb(port string, m MAC) {
	if l := i.link(port); i.err == nil {
		i.try("add forwarding entry to "+port, i.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER,
			State: netlink.NUD_NOARP, HardwareAddr: m[:]}))
	}
}

// flowControl makes the sending stack wait when the wire's ring is full, as a
// network card with pause frames would (from 6.16; before, veth drops). With
// the ring's 256 frames and nothing in front of it, one TCP segment in six is
// sent twice. Frames that XDP redirects do not wait.
func (i *inside) flowControl(dev string, queues int) {
	kind := "pfifo"
	if queues > 1 {
		kind = "mq"
	}
	i.try("set queueing of "+dev, i.QdiscReplace(i.rootQdisc(dev, kind)))
}

// cutting is flowControl whose queues hold finished frames: a token bucket cuts what is larger than
// it when that comes in (tbf_segment). At its rate it is never empty.
func (i *inside) cutting(dev string, queues int) {
	const (
		frames = 2*WireMTU - 1 // bytes, fewer than two frames have
		rate   = 1e15          // bytes a second: less than a nanosecond for that
		limit  = 1 << 30       // bytes that may wait
	)
	l := i.link(dev)
	for q := range queues {
		parent := uint32(netlink.HANDLE_ROOT)
		if queues > 1 {
			parent = netlink.MakeHandle(1, uint16(q+1)) // of mq
		}
		req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(l.Attrs().Index), Handle: netlink.MakeHandle(uint16(q+2), 0), Parent: parent})
		req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf")))
		options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		parms := nl.TcTbfQopt{Limit: limit}
		options.AddRtAttr(nl.TCA_TBF_PARMS, parms.Serialize())
		options.AddRtAttr(nl.TCA_TBF_RATE64, nl.Uint64Attr(rate))
		options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(frames))
		req.AddData(options)
		if i.err == nil {
			i.try("have "+dev+" cut what it sends (sch_tbf)", i.ns.Do(func() error {
				_, err := req.Execute(unix.NETLINK_ROUTE, 0)
				return err
			}))
		}
	}
}

func (i *inside) rootQdisc(dev, kind string) *netlink.GenericQdisc {
	q := &netlink.GenericQdisc{QdiscType: kind,
		QdiscAttrs: netlink.QdiscAttrs{Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}}
	if l := i.link(dev); i.err == nil {
		q.LinkIndex = l.Attrs().Index
	}
	return q
}

func (i *inside) sysctl(path, value string) {
	if i.err == nil {
		i.try("set "+path, i.ns.Do(func() error { return writeFile(os.OpenFile, "/proc/sys/"+path, value) }))
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
