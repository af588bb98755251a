// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// noHeaders is a tunnel whose packets come by a device like those of WireGuard.
const noHeaders = `tuntap add wg0 mode tun
	addr add 10.6.0.1/24 dev wg0
	link set wg0 up
	link add vx0 type vxlan id 1 dstport 4789 local 10.6.0.1`

// uplinks are a second NIC beside pA, and a tunnel's endpoint on lo, as with EVPN on the host.
const uplinks = `link add w2 type veth peer name w2x
	link set w2x up
	addr add 10.2.0.1/24 dev w2
	link set w2 up
	addr add 10.3.3.3/32 dev lo
`

// uplinks6 is the same for IPv6.
const uplinks6 = uplinks + `addr add fd01::1/64 dev pA nodad
	addr add fd02::1/64 dev w2 nodad
	addr add fd03::3/128 dev lo
`

const nexthops = uplinks + `nexthop add id 1 via 10.1.0.2 dev pA
	nexthop add id 2 via 10.2.0.2 dev w2
	nexthop add id 3 group 1/2
	route add 10.3.3.0/24 nhid 3
	link add vx0 type vxlan id 1 dstport 4789 local 10.3.3.3 remote 10.3.3.4`

func TestUnderlayOfATunnel(t *testing.T) {
	tests := []struct {
		name, script string
		config       []string
		bare         bool // routes name nexthop objects, and no device
		want         []string
	}{
		{name: "outer address", script: "link add vx0 type vxlan id 1 dstport 4789 local 10.1.0.1", want: []string{"pA"}},
		{name: "bound to a device", script: "link add vx0 type vxlan id 1 dstport 4789 dev pA", want: []string{"pA"}},
		{name: "remote only", script: "link add vx0 type vxlan id 1 dstport 4789 remote 10.1.0.2", want: []string{"pA"}},
		{
			name: "forwarding table only",
			script: `link add vx0 type vxlan id 1 dstport 4789 nolearning
				route add 10.7.0.0/16 via 10.1.0.2`,
			want: []string{"pA"},
		},
		{
			name: "outer address on lo, as with BGP to the host",
			script: `addr add 10.3.3.3/32 dev lo
				link add vx0 type vxlan id 1 dstport 4789 local 10.3.3.3 remote 10.1.0.2`,
			want: []string{"pA"},
		},
		{
			name: "equal-cost routes to the remote",
			script: uplinks + `route add 10.3.3.0/24 nexthop via 10.1.0.2 nexthop via 10.2.0.2
				link add vx0 type vxlan id 1 dstport 4789 local 10.3.3.3 remote 10.3.3.4`,
			want: []string{"pA", "w2"},
		},
		{
			name: "equal-cost routes, IPv6",
			script: uplinks6 + `route add fd03::/64 nexthop via fd01::2 nexthop via fd02::2
				link add vx0 type vxlan id 1 dstport 4789 local fd03::3 remote fd03::4`,
			want: []string{"pA", "w2"},
		},
		{
			name: "equal-cost default routes, collect metadata",
			script: uplinks + `route add default nexthop via 10.1.0.2 nexthop via 10.2.0.2
				link add vx0 type vxlan external dstport 4789`,
			want: []string{"pA", "w2"},
		},
		{name: "a group of nexthop objects", script: nexthops, want: []string{"pA", "w2"}},
		{name: "such a group, which the route names only", script: nexthops, bare: true, want: []string{"pA", "w2"}},
		{
			name: "a nexthop object, which the route names only", bare: true,
			script: uplinks6 + `nexthop add id 1 via fd02::2 dev w2
				route add fd03::/64 nhid 1
				link add vx0 type vxlan id 1 dstport 4789 local fd03::3 remote fd03::4`,
			want: []string{"w2"},
		},
		{
			name: "one of two configured", script: nexthops, config: []string{"w2"},
			want: []string{"w2"},
		},
		{
			name: "collect metadata: the default route",
			script: `route add default via 10.1.0.2
				link add vx0 type vxlan external dstport 4789`,
			want: []string{"pA"},
		},
		{
			name: "on a macvlan, which as a VLAN has a NIC under it",
			script: `link add link pA name mv0 type macvlan
				addr add 10.5.0.1/24 dev mv0
				link set mv0 up
				link add vx0 type vxlan id 1 dstport 4789 local 10.5.0.1`,
			want: []string{"pA"},
		},
		{
			name: "configured", config: []string{"pA", "nosuch"},
			script: "link add vx0 type vxlan id 1 dstport 4789 local 10.1.0.1", want: []string{"pA"},
		},
		{name: "a device without Ethernet headers", script: noHeaders},
		{name: "such a device, configured", config: []string{"wg0"}, script: noHeaders},
		{name: "none", script: "link add vx0 type vxlan id 1 dstport 4789 local 10.99.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.hosts()
			a.sysctl(t, "ipv6/conf/all/disable_ipv6", "0")
			if tt.bare {
				a.sysctl(t, "ipv4/nexthop_compat_mode", "0")
			}
			a.ip(t, tt.script)
			if tt.name == "forwarding table only" {
				inNS(t, a, "bridge", "fdb", "append", "00:00:00:00:00:00", "dev", "vx0", "dst", "10.7.1.1")
			}
			snap := scan(t, w.scanner(a, func(o *Options) { o.Underlays = tt.config }))
			if len(snap.Tunnels) != 1 {
				t.Fatalf("%+v", snap)
			}
			got := devNames(snap.Tunnels[0].Underlays, func(d Dev) Dev { return d })
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Fatalf("%s\nskipped: %v", d, snap.Skipped)
			}
			if d := cmp.Diff(got, underlayNames(snap)); d != "" {
				t.Fatal(d)
			}
			if left := len(tt.config) > 0 || tt.want == nil; left != (len(snap.Skipped) > 0) {
				t.Fatalf("skipped: %v", snap.Skipped)
			}
			if tt.name == "one of two configured" && (snap.Skipped[0].Dev.Name != "pA" || snap.Skipped[0].Reason != notConfigured) {
				t.Errorf("skipped: %v", snap.Skipped)
			}
			left := slices.ContainsFunc(snap.Skipped, func(s Skip) bool {
				return s.Dev.Name == "vx0" && s.Reason == "left alone: wg0 has no Ethernet headers, and overlane's programs read no packets without"
			})
			if left != (tt.script == noHeaders) {
				t.Errorf("skipped: %v", snap.Skipped)
			}
		})
	}
}
