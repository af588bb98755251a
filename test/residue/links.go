// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

type device struct {
	index int
	name  string
	kind  string
}

// kept are the flags that a program sets; the others follow the carrier.
const kept = unix.IFF_UP | unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_NOARP | unix.IFF_MULTICAST | unix.IFF_DYNAMIC

// Attributes that x/sys/unix does not name, from linux/if_link.h.
const (
	extFilterSkipStats = 8
	xdpAttached        = 2
	xdpProgID          = 4
	linkInfoKind       = 1
)

// linkNumbers are plain numbers of a device that tuning may change.
var linkNumbers = []struct {
	what string
	typ  uint16
}{
	{"mtu", unix.IFLA_MTU},
	{"txqlen", unix.IFLA_TXQLEN},
	{"master", unix.IFLA_MASTER},
	{"gso_max_size", unix.IFLA_GSO_MAX_SIZE},
	{"gso_max_segs", unix.IFLA_GSO_MAX_SEGS},
	{"gro_max_size", unix.IFLA_GRO_MAX_SIZE},
	{"gso_ipv4_max_size", unix.IFLA_GSO_IPV4_MAX_SIZE},
	{"gro_ipv4_max_size", unix.IFLA_GRO_IPV4_MAX_SIZE},
}

func readLinks(s *Snapshot, ns uint64, rule counts) ([]device, error) {
	request := append(make([]byte, unix.SizeofIfInfomsg), attr(unix.IFLA_EXT_MASK, []byte{extFilterSkipStats, 0, 0, 0})...)
	links, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETLINK, request)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var devices []device
	for _, link := range links {
		if len(link) < unix.SizeofIfInfomsg {
			continue
		}
		a := attrs(link[unix.SizeofIfInfomsg:])
		d := device{
			index: int(int32(ne.Uint32(link[4:]))),
			name:  text(a[unix.IFLA_IFNAME]),
			kind:  text(attrs(a[unix.IFLA_LINKINFO])[linkInfoKind]),
		}
		devices = append(devices, d)
		at := func(what string) key { return key{ns, d.name, what} }
		s.add(at(whatDevice), rule, "%s, index %d", orNone(d.kind), d.index)
		s.add(at("flags"), rule, "%#x", ne.Uint32(link[8:])&kept)
		for _, n := range linkNumbers {
			s.add(at(n.what), rule, "%d", number(a[n.typ]))
		}
		xdp := attrs(a[unix.IFLA_XDP])
		mode := "none"
		if m := number(xdp[xdpAttached]); m != 0 {
			mode = fmt.Sprintf("mode %d, program %d", m, number(xdp[xdpProgID]))
		}
		s.add(at("XDP"), rule, "%s", mode)
	}
	return devices, nil
}

// Traffic control, from linux/pkt_sched.h and pkt_cls.h.
const (
	tcmsgSize   = 20
	tcaKind     = 1
	tcaOptions  = 2
	tcaBPFID    = 11
	clsactBlock = 0xfffffff1
	minIngress  = 0xfffffff2
	minEgress   = 0xfffffff3
)

func readQdiscs(s *Snapshot, ns uint64, rule counts, devices []device) error {
	answers, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETQDISC, make([]byte, tcmsgSize))
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	qdiscs := map[int][]string{}
	filtered := map[int]bool{}
	for _, q := range answers {
		if len(q) < tcmsgSize {
			continue
		}
		index, handle, parent := int(int32(ne.Uint32(q[4:]))), ne.Uint32(q[8:]), ne.Uint32(q[12:])
		a := attrs(q[tcmsgSize:])
		filtered[index] = filtered[index] || parent == clsactBlock
		qdiscs[index] = append(qdiscs[index], fmt.Sprintf("%s %x: parent %x%s", text(a[tcaKind]), handle>>16, parent, fingerprint(a[tcaOptions])))
	}
	for _, d := range devices {
		slices.Sort(qdiscs[d.index])
		s.add(key{ns, d.name, "qdiscs"}, rule, "%s", orNone(strings.Join(qdiscs[d.index], "; ")))
		filters := []string{}
		if filtered[d.index] {
			if filters, err = readFilters(d.index); err != nil {
				return fmt.Errorf("list filters of %s: %w", d.name, err)
			}
		}
		s.add(key{ns, d.name, "filters"}, rule, "%s", orNone(strings.Join(filters, "; ")))
	}
	return nil
}

// readFilters lists the filters of a device with a clsact or ingress qdisc.
func readFilters(index int) ([]string, error) {
	var filters []string
	for _, parent := range []uint32{minIngress, minEgress} {
		request := make([]byte, tcmsgSize)
		ne.PutUint32(request[4:], uint32(index))
		ne.PutUint32(request[12:], parent)
		answers, err := dump(unix.NETLINK_ROUTE, unix.RTM_GETTFILTER, request)
		if err != nil && err != unix.EINVAL { // EINVAL: an ingress qdisc has no egress side
			return nil, err
		}
		for _, f := range answers {
			if len(f) < tcmsgSize {
				continue
			}
			a := attrs(f[tcmsgSize:])
			filters = append(filters, fmt.Sprintf("%s parent %x handle %x pref %d program %d", text(a[tcaKind]), parent,
				ne.Uint32(f[8:]), ne.Uint32(f[16:])>>16, number(attrs(a[tcaOptions])[tcaBPFID])))
		}
	}
	slices.Sort(filters)
	return filters, nil
}

// fingerprint tells two sets of options apart without naming what they are.
func fingerprint(options []byte) string {
	if len(options) == 0 {
		return ""
	}
	h := fnv.New32a()
	h.Write(options)
	return fmt.Sprintf(" options #%08x", h.Sum32())
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
