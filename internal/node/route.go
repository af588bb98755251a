// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// addrs lists the addresses of the namespace by device.
func (c *conn) addrs() (map[int][]netip.Addr, error) {
	var all map[int][]netip.Addr
	err := c.Dump(unix.RTM_GETADDR, make([]byte, unix.SizeofIfAddrmsg),
		func() { all = map[int][]netip.Addr{} },
		func(b []byte) {
			if len(b) < unix.SizeofIfAddrmsg {
				return
			}
			attrs := nlsock.ListOf(b, unix.SizeofIfAddrmsg)
			a := nlsock.Addr(attrs.Get(unix.IFA_LOCAL))
			if !a.IsValid() { // of a point-to-point device this is the far end
				a = nlsock.Addr(attrs.Get(unix.IFA_ADDRESS))
			}
			if a.IsValid() {
				index := int(nlsock.U32(b[4:]))
				all[index] = append(all[index], a)
			}
		})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return all, nil
}

// via is how the main routing tables of a namespace use a device.
type via struct {
	any     bool // some unicast route
	host    bool // a route to one address: how routed CNIs tell their pods
	gateway bool // by a router on that device, or the default route
}

// and is how both use it.
func (v via) and(o via) via { return via{v.any || o.any, v.host || o.host, v.gateway || o.gateway} }

// routes sums up the unicast routes of both main tables by output device.
// Link-local ones, which every device has, do not count.
func (c *conn) routes() (map[int]via, error) {
	all := map[int]via{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		req := make([]byte, unix.SizeofRtMsg)
		req[0], req[4] = family, unix.RT_TABLE_MAIN
		one := map[int]via{}
		err := c.Dump(unix.RTM_GETROUTE, req, func() { clear(one) }, func(b []byte) { parseRoute(b, one) })
		// A table that was never used does not exist.
		if err != nil && err != unix.ENOENT && err != unix.EAFNOSUPPORT && err != unix.EOPNOTSUPP {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for index, v := range one {
			all[index] = all[index].and(v)
		}
	}
	return all, nil
}

func parseRoute(b []byte, into map[int]via) {
	if len(b) < unix.SizeofRtMsg || b[4] != unix.RT_TABLE_MAIN || b[7] != unix.RTN_UNICAST {
		return
	}
	family, bits := b[0], int(b[1])
	v := via{any: true}
	v.host = bits == 32 && family == unix.AF_INET || bits == 128 && family == unix.AF_INET6
	v.gateway = bits == 0
	var oifs []int
	for t, val := range nlsock.Attrs(b[unix.SizeofRtMsg:]) {
		switch t {
		case unix.RTA_DST:
			if a := nlsock.Addr(val); a.IsLinkLocalUnicast() || a.IsMulticast() {
				return
			}
		case unix.RTA_OIF:
			oifs = append(oifs, int(nlsock.U32(val)))
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			v.gateway = true
		case unix.RTA_MULTIPATH:
			v.gateway = true
			oifs = append(oifs, hops(val)...)
		}
	}
	for _, i := range oifs {
		into[i] = into[i].and(v)
	}
}

// hops lists the devices of a multipath route.
func hops(b []byte) []int {
	var oifs []int
	for len(b) >= unix.SizeofRtNexthop {
		l := int(binary.NativeEndian.Uint16(b))
		if l < unix.SizeofRtNexthop || l > len(b) {
			break
		}
		oifs = append(oifs, int(nlsock.U32(b[4:])))
		b = b[min((l+3)&^3, len(b)):]
	}
	return oifs
}

// routesTo returns the devices by which the kernel may send to a: those of all next hops of the route that it takes.
func (c *conn) routesTo(a netip.Addr) ([]int, error) {
	req := make([]byte, unix.SizeofRtMsg)
	req[0] = unix.AF_INET
	if a.Is6() {
		req[0] = unix.AF_INET6
	}
	req[1] = byte(a.BitLen())
	// The route, not the next hop that it comes to now.
	binary.NativeEndian.PutUint32(req[8:], unix.RTM_F_FIB_MATCH)
	req = nlsock.Attr(req, unix.RTA_DST, a.AsSlice())
	b, err := c.Ask(unix.RTM_GETROUTE, req)
	switch err {
	case nil:
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, unix.EAFNOSUPPORT:
		return nil, nil // no route, or one that says no
	default:
		return nil, fmt.Errorf("look up route to %s: %w", a, err)
	}
	if len(b) < unix.SizeofRtMsg || b[7] == unix.RTN_LOCAL {
		return nil, nil
	}
	route := nlsock.ListOf(b, unix.SizeofRtMsg)
	if oif := route.U32(unix.RTA_OIF); oif != 0 {
		return []int{int(oif)}, nil
	}
	list := hops(route.Get(unix.RTA_MULTIPATH))
	if id := route.U32(rtaNexthop); id != 0 && len(list) == 0 {
		return c.nexthop(id, true)
	}
	return list, nil
}

// rtaNexthop is RTA_NH_ID: with net.ipv4.nexthop_compat_mode=0 a route names its nexthop object, and no device.
const rtaNexthop = 30

// nexthop lists the devices of a nexthop object, which may be a group of others.
func (c *conn) nexthop(id uint32, group bool) (list []int, err error) {
	b, err := c.Ask(unix.RTM_GETNEXTHOP, nlsock.Attr32(make([]byte, unix.SizeofNhmsg), unix.NHA_ID, id))
	switch {
	case err == unix.ENOENT: // gone since
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up nexthop %d: %w", id, err)
	}
	attrs := nlsock.ListOf(b, unix.SizeofNhmsg)
	if oif := attrs.U32(unix.NHA_OIF); oif != 0 {
		return []int{int(oif)}, nil
	}
	for members := attrs.Get(unix.NHA_GROUP); group && len(members) >= unix.SizeofNexthopGrp; members = members[unix.SizeofNexthopGrp:] {
		of, err := c.nexthop(nlsock.U32(members), false) // a group has no groups
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

// maxRemotes bounds the routes looked up for one tunnel. Large clusters have
// thousands of remotes, nearly all behind the same NIC.
const maxRemotes = 64

// remotes lists distinct destinations in a VXLAN device's forwarding table.
func (c *conn) remotes(index int) ([]netip.Addr, error) {
	req := make([]byte, unix.SizeofNdMsg)
	req[0] = unix.AF_BRIDGE
	copy(req[4:], nlsock.IfInfo(index)[4:8])
	var list []netip.Addr
	var seen map[netip.Addr]bool
	err := c.Dump(unix.RTM_GETNEIGH, req,
		func() { list, seen = nil, map[netip.Addr]bool{} },
		func(b []byte) {
			if len(b) < unix.SizeofNdMsg || int(nlsock.U32(b[4:])) != index || len(list) == maxRemotes {
				return
			}
			if a := nlsock.Addr(nlsock.ListOf(b, unix.SizeofNdMsg).Get(unix.NDA_DST)); a.IsValid() && !seen[a] {
				seen[a] = true
				list = append(list, a)
			}
		})
	if err != nil {
		return nil, fmt.Errorf("list forwarding entries: %w", err)
	}
	return list, nil
}
