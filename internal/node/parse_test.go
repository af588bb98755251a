// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

func TestXDPOfSeveralModes(t *testing.T) {
	for _, tt := range []struct {
		attrs []byte
		want  uint32
	}{
		{nil, 0},
		{nlsock.Attr32(nil, unix.IFLA_XDP_PROG_ID, 5), 5},
		{slices.Concat(nlsock.Attr32(nil, unix.IFLA_XDP_SKB_PROG_ID, 6), nlsock.Attr32(nil, unix.IFLA_XDP_DRV_PROG_ID, 7)), 7},
		{nlsock.Attr32(nil, unix.IFLA_XDP_SKB_PROG_ID, 6), 6},
	} {
		if got := linkOf(nlsock.ParseLink(nlsock.Attr(nlsock.IfInfo(3), unix.IFLA_XDP, tt.attrs))).XDP.First(); got != tt.want {
			t.Errorf("%v: program %d, want %d", tt.attrs, got, tt.want)
		}
	}
}

func TestRoutesAreSummedUpByDevice(t *testing.T) {
	route := func(family, bits, typ byte, attrs ...[]byte) []byte {
		b := make([]byte, unix.SizeofRtMsg)
		b[0], b[1], b[4], b[7] = family, bits, unix.RT_TABLE_MAIN, typ
		return append(b, slices.Concat(attrs...)...)
	}
	oif := func(i uint32) []byte { return nlsock.Attr32(nil, unix.RTA_OIF, i) }
	hop := func(i uint32) []byte {
		b := make([]byte, unix.SizeofRtNexthop)
		binary.NativeEndian.PutUint16(b, unix.SizeofRtNexthop)
		binary.NativeEndian.PutUint32(b[4:], i)
		return b
	}
	got := map[int]via{}
	for _, b := range [][]byte{
		route(unix.AF_INET, 24, unix.RTN_UNICAST, oif(1)),
		route(unix.AF_INET, 32, unix.RTN_UNICAST, oif(2)),
		route(unix.AF_INET6, 128, unix.RTN_UNICAST, oif(3)),
		route(unix.AF_INET6, 32, unix.RTN_UNICAST, oif(4)),
		route(unix.AF_INET, 0, unix.RTN_UNICAST, oif(5)),
		route(unix.AF_INET, 16, unix.RTN_UNICAST, nlsock.Attr(nil, unix.RTA_MULTIPATH, slices.Concat(hop(6), hop(7)))),
		route(unix.AF_INET6, 64, unix.RTN_UNICAST, nlsock.Attr(nil, unix.RTA_DST, netip.MustParseAddr("fe80::").AsSlice()), oif(8)),
		route(unix.AF_INET, 16, unix.RTN_BLACKHOLE, oif(9)),
		route(unix.AF_INET, 32, unix.RTN_UNICAST, oif(1)),
		{1, 2, 3},
	} {
		parseRoute(b, got)
	}
	want := map[int]via{
		1: {any: true, host: true}, 2: {any: true, host: true}, 3: {any: true, host: true}, 4: {any: true},
		5: {any: true, gateway: true}, 6: {any: true, gateway: true}, 7: {any: true, gateway: true},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(via{})); d != "" {
		t.Fatal(d)
	}
}

func TestLowerFindsTheNIC(t *testing.T) {
	links := map[int]*link{
		1: {Link: nlsock.Link{Index: 1, Name: "eth0", LowerNSID: -1, Master: 4}},
		2: {Link: nlsock.Link{Index: 2, Name: "eth1", LowerNSID: -1}},
		3: {Link: nlsock.Link{Index: 3, Name: "eth1.5", Kind: "vlan", Lower: 2, LowerNSID: -1}},
		4: {Link: nlsock.Link{Index: 4, Name: "br-ex", Kind: "bridge", LowerNSID: -1}},
		5: {Link: nlsock.Link{Index: 5, Name: "tap0", Kind: "tun", Master: 4, LowerNSID: -1}},
		6: {Link: nlsock.Link{Index: 6, Name: "mv", Kind: "macvlan", Lower: 2, LowerNSID: 0}}, // parent is outside of this namespace
		7: {Link: nlsock.Link{Index: 7, Name: "bond0", Kind: "bond", LowerNSID: -1, Master: 4}},
		8: {Link: nlsock.Link{Index: 8, Name: "br-empty", Kind: "bridge", LowerNSID: -1}},
		9: {Link: nlsock.Link{Index: 9, Name: "loop", Kind: "vlan", Lower: 9, LowerNSID: -1}},
	}
	for index, want := range map[int][]int{1: {1}, 2: {2}, 3: {2}, 4: {1, 7}, 6: {6}, 7: {7}, 8: nil, 9: nil, 99: nil} {
		if d := cmp.Diff(want, lower(links, index)); d != "" {
			t.Errorf("%d: %s", index, d)
		}
	}
}

func TestWhoReceivesForAnUnderlay(t *testing.T) {
	links := map[int]*link{
		1: {Link: nlsock.Link{Index: 1, Name: "eth0", Master: 3}},
		2: {Link: nlsock.Link{Index: 2, Name: "eth1", Master: 3}},
		3: {Link: nlsock.Link{Index: 3, Name: "bond0", Kind: "bond", Master: 5}},
		4: {Link: nlsock.Link{Index: 4, Name: "eth2", Master: 5}},
		5: {Link: nlsock.Link{Index: 5, Name: "team0", Kind: "team"}},
		6: {Link: nlsock.Link{Index: 6, Name: "vf", Master: 7}},
		7: {Link: nlsock.Link{Index: 7, Name: "hyperv"}},
		8: {Link: nlsock.Link{Index: 8, Name: "bond1", Kind: "bond"}},
		9: {Link: nlsock.Link{Index: 9, Name: "loop", Kind: "bond", Master: 9}},
	}
	for index, want := range map[int][]int{1: {1}, 3: {1, 2}, 5: {1, 2, 4}, 7: {6, 7}, 8: {8}, 9: {9}, 99: nil} {
		var got []int
		for _, l := range receivers(links, index) {
			got = append(got, l.Index)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%d: %s", index, d)
		}
	}
}

func TestVLANsAreSeenFromWhateverNamespace(t *testing.T) {
	home := &space{known: &known{}, links: map[int]*link{
		1: {Link: nlsock.Link{Index: 1, Name: "eth0", LowerNSID: -1, Master: 3}}, 2: {Link: nlsock.Link{Index: 2, Name: "eth1", LowerNSID: -1, Master: 3}},
		3: {Link: nlsock.Link{Index: 3, Name: "bond0", Kind: "bond", LowerNSID: -1}}, 4: {Link: nlsock.Link{Index: 4, Name: "eth2", LowerNSID: -1, Master: 5}},
		5: {Link: nlsock.Link{Index: 5, Name: "br0", Kind: "bridge", LowerNSID: -1}}, 6: {Link: nlsock.Link{Index: 6, Name: "eth3", LowerNSID: -1}},
	}}
	eth := func(indexes ...int) Underlay {
		u := Underlay{Dev: Dev{Ifindex: indexes[0]}}
		for _, i := range indexes[max(len(indexes)-2, 0):] {
			u.Receivers = append(u.Receivers, Receiver{Dev: Dev{Ifindex: i}})
		}
		return u
	}
	vlan := func(nsid, on int) map[int]*link {
		return map[int]*link{7: {Link: nlsock.Link{Index: 7, Kind: "vlan", Lower: on, LowerNSID: nsid}}, 8: {Link: nlsock.Link{Index: 8, Kind: "macvlan", Lower: 6, LowerNSID: nsid}}}
	}
	const homeID = 3
	for name, tt := range map[string]struct {
		links map[int]*link
		nic   Underlay
		want  bool
	}{
		"elsewhere, on the NIC":          {vlan(homeID, 6), eth(6), true},
		"elsewhere, on another's":        {vlan(4, 6), eth(6), false},
		"elsewhere, on another NIC":      {vlan(homeID, 4), eth(6), false},
		"elsewhere, on the bond":         {vlan(homeID, 3), eth(3, 1, 2), true},
		"elsewhere, on a port of it":     {vlan(homeID, 2), eth(3, 1, 2), true},
		"elsewhere, on the NIC's bridge": {vlan(homeID, 5), eth(4), true},
	} {
		p := &pass{home: home, order: []*space{home, {known: &known{vlans: vlansOn(tt.links, homeID)}}}}
		if got := p.carriesVLANs(tt.nic); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	home.links[9] = &link{Link: nlsock.Link{Index: 9, Kind: "vlan", Lower: 6, LowerNSID: -1}}
	home.vlans = vlansOn(home.links, -1)
	if p := (&pass{home: home, order: []*space{home}}); !p.carriesVLANs(eth(6)) || p.carriesVLANs(eth(4)) {
		t.Error("at home")
	}
	for name, tt := range map[string]struct {
		master nlsock.Link
		want   bool
	}{
		"a bridge that filters by VLAN": {nlsock.Link{Kind: "bridge", Data: nlsock.Attr(nil, unix.IFLA_BR_VLAN_FILTERING, []byte{1})}, true},
		"a bridge that does not":        {nlsock.Link{Kind: "bridge", Data: nlsock.Attr(nil, unix.IFLA_BR_VLAN_FILTERING, []byte{0})}, false},
		"Open vSwitch":                  {nlsock.Link{Kind: "openvswitch"}, true},
	} {
		tt.master.Index, tt.master.LowerNSID = 5, -1
		home.links[5] = linkOf(&tt.master)
		home.vlans = vlansOn(home.links, -1)
		if got := (&pass{home: home, order: []*space{home}}).carriesVLANs(eth(4)); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The kernel does not lie, but a wrong length must not take the daemon down.
func FuzzMessages(f *testing.F) {
	f.Add(nlsock.Attr32(nlsock.IfInfo(3), unix.IFLA_XDP, 1))
	f.Add(slices.Concat(nlsock.IfInfo(3), nlsock.Attr(nil, unix.IFLA_LINKINFO, nlsock.Attr(nil, unix.IFLA_INFO_KIND, []byte("vxlan\x00")))))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for m := range nlsock.Messages(b) {
			(&Scanner{}).handle(1, m)
		}
		if l := nlsock.ParseLink(b); l != nil {
			linkOf(l)
		}
		parseRoute(b, map[int]via{})
		parseNSID(b)
		hops(b)
	})
}
