// SPDX-License-Identifier: Apache-2.0

package encap

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

func TestTunnelAttributes(t *testing.T) {
	a4, a6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	build := func(parts ...[]byte) []byte { return slices.Concat(parts...) }
	tests := []struct {
		name string
		kind string
		data []byte
		want Tunnel
	}{
		{"vxlan", "vxlan", build(
			nlsock.Attr32(nil, unix.IFLA_VXLAN_ID, 7), nlsock.Attr(nil, unix.IFLA_VXLAN_PORT, be16(8472)),
			nlsock.Attr(nil, unix.IFLA_VXLAN_LOCAL, a4.AsSlice()), nlsock.Attr32(nil, unix.IFLA_VXLAN_LINK, 3),
			nlsock.Attr(nil, unix.IFLA_VXLAN_COLLECT_METADATA, []byte{0}),
		), Tunnel{Kind: VXLAN, Peers: true, VNI: 7, Port: 8472, Local: a4, Link: 3}},
		{"vxlan over IPv6, collect metadata", "vxlan", build(
			nlsock.Attr(nil, unix.IFLA_VXLAN_LOCAL6, a6.AsSlice()), nlsock.Attr(nil, unix.IFLA_VXLAN_GROUP6, a6.AsSlice()),
			nlsock.Attr(nil, unix.IFLA_VXLAN_COLLECT_METADATA, []byte{1}),
		), Tunnel{Kind: VXLAN, Peers: true, Local: a6, Remote: a6, AnyVNI: true}},
		{"an unspecified address is none", "vxlan", nlsock.Attr(nil, unix.IFLA_VXLAN_LOCAL, make([]byte, 4)), Tunnel{Kind: VXLAN, Peers: true}},
		{"geneve", "geneve", build(
			nlsock.Attr32(nil, unix.IFLA_GENEVE_ID, 9), nlsock.Attr(nil, unix.IFLA_GENEVE_PORT, be16(6081)), nlsock.Attr(nil, unix.IFLA_GENEVE_REMOTE, a4.AsSlice()),
		), Tunnel{Kind: Geneve, VNI: 9, Port: 6081, Remote: a4, OnlyRemote: true}},
		{"geneve, collect metadata: a flag without a value", "geneve", build(
			nlsock.Attr(nil, unix.IFLA_GENEVE_COLLECT_METADATA, nil), nlsock.Attr(nil, unix.IFLA_GENEVE_REMOTE6, a6.AsSlice()),
		), Tunnel{Kind: Geneve, AnyVNI: true, Remote: a6}},
		{"values that are too short", "geneve", build(
			nlsock.Attr(nil, unix.IFLA_GENEVE_ID, []byte{1}), nlsock.Attr(nil, unix.IFLA_GENEVE_PORT, []byte{1}), nlsock.Attr(nil, unix.IFLA_GENEVE_REMOTE, []byte{1}),
		), Tunnel{Kind: Geneve}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Parse(tt.kind, tt.data)
			if !ok || got != tt.want {
				t.Fatalf("got %+v, %v, want %+v", got, ok, tt.want)
			}
		})
	}
	if _, ok := Parse("gretap", nil); ok {
		t.Fatal("gretap was taken for a tunnel of ours")
	}
}

// The kernel does not lie, but a wrong length must not take the daemon down.
func FuzzParse(f *testing.F) {
	f.Add(nlsock.Attr32(nil, unix.IFLA_VXLAN_ID, 7))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for name := range table {
			Parse(name, b)
		}
	})
}
