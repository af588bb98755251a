// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/packet"
	"github.com/overlane/overlane/test/parser/table"
)

// A frame that is cut off somewhere in its headers, with lengths that still
// promise all of it, or that tell the truth of the rest.
func TestACutFrameIsNeverSteered(t *testing.T) {
	frames := map[string][]packet.Layer{
		"vxlan over IPv4, IPv4 TCP":   {packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Ethernet{}, packet.IPv4{}, packet.Raw{0, 1, 0, 2}},
		"vxlan over IPv6, IPv6 SCTP":  {packet.Ethernet{}, packet.IPv6{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Ethernet{}, packet.IPv6{Next: 132}, packet.Raw{0, 1, 0, 2}},
		"geneve with options, tagged": {packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.GenevePort}, packet.Geneve{VNI: 42, Options: 252}, packet.Ethernet{}, packet.VLAN{}, packet.IPv4{Options: 40}, packet.Raw{0, 1, 0, 2}},
		"a first fragment of IPv6":    {packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Ethernet{}, packet.IPv6{}, packet.Fragment{Next: 6, More: true}, packet.Raw{0, 1, 0, 2}},
	}
	for name, layers := range frames {
		for i, l := range layers {
			if p, ok := l.(packet.IPv4); ok && i > 3 {
				p.Proto = 6
				layers[i] = p
			}
		}
		frames[name] = layers
	}
	onEachHook(t, func(t *testing.T, b *bench) {
		short := 0
		for name, layers := range frames {
			whole := packet.Build(layers...)
			for n := range len(whole) {
				for lying, frame := range [][]byte{packet.Truthful(whole[:n]), whole[:n]} {
					if !b.takes(frame) {
						continue
					}
					_, r := oracle.Classify(oracle.View{Data: frame, Whole: n}, table.Tunnels)
					if r == oracle.OK {
						t.Fatalf("%s: the oracle would steer %d bytes of %d", name, n, len(whole))
					}
					if r == oracle.Short {
						short++
					}
					was := b.look(t)
					b.run(t, frame, 1)
					if diff := cmp.Diff(b.next(was, 0, r, 1), b.look(t)); diff != "" {
						t.Errorf("%s, %d bytes of %d, lying %d: should end as %s (-want +got):\n%s", name, n, len(whole), lying, r, diff)
					}
				}
			}
			if _, r := oracle.Classify(oracle.View{Data: whole, Whole: len(whole)}, table.Tunnels); r != oracle.OK {
				t.Errorf("%s: the whole frame should be steered, not %s", name, r)
			}
		}
		if short == 0 {
			t.Error("no frame was too short for a header")
		}
	})
}
