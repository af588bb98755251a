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

func TestUnderlayOfATunnel(t *testing.T) {
	tests := []struct {
		name, script string
		config       []string
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
			if unknown := len(tt.config) > 1 || tt.want == nil; unknown != (len(snap.Skipped) > 0) {
				t.Fatalf("skipped: %v", snap.Skipped)
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
