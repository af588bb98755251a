// SPDX-License-Identifier: Apache-2.0

// Package table holds every kind of frame once, with what is to become of it.
// The parser on the host and each program in the kernel run through it.
package table

import (
	"slices"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/packet"
)

// Tunnels are those that the table is run against.
var Tunnels = []oracle.Tunnel{
	{Kind: oracle.VXLAN, VNI: 42, Port: packet.VXLANPort},
	{Kind: oracle.Geneve, VNI: 42, Port: packet.GenevePort},
	{Kind: oracle.VXLAN, VNI: oracle.AnyVNI, Port: 8472},
	{Kind: oracle.Geneve, VNI: 7, Port: packet.VXLANPort},
	{Kind: oracle.Unknown, VNI: 42, Port: 7777},
}

// Case is a frame and what is to become of it: OK is steered, the rest takes the
// stock path.
type Case struct {
	Name   string
	Before []byte // a frame that passed before, if one has to
	Frame  []byte
	Want   oracle.Reason
}

type layers = []packet.Layer

// The parts of ordinary frames.
var (
	eth    = packet.Ethernet{}
	ip4    = packet.IPv4{}
	ip6    = packet.IPv6{}
	toVX   = packet.UDP{Src: 50000, Dst: packet.VXLANPort}
	toGnv  = packet.UDP{Src: 50000, Dst: packet.GenevePort}
	vx     = packet.VXLAN{VNI: 42}
	gnv    = packet.Geneve{VNI: 42}
	udp    = packet.UDP{Src: 1111, Dst: 2222}
	tcp    = packet.TCP{Src: 1111, Dst: 2222}
	data   = packet.Bytes(64)
	outer4 = layers{eth, ip4, toVX, vx}
	outer6 = layers{eth, ip6, toVX, vx}
	inner4 = layers{eth, ip4, udp, data}
	inner6 = layers{eth, ip6, udp, data}
)

func frame(parts ...[]packet.Layer) []byte {
	return packet.Build(slices.Concat(parts...)...)
}

// fragment4 and fragment6 are the inner packets of a fragmented datagram.
func fragment4(id uint16, offset int, more bool) layers {
	p := packet.IPv4{Proto: 17, ID: id, Offset: offset, More: more}
	if offset > 0 {
		return layers{eth, p, data}
	}
	return layers{eth, p, udp, data}
}

func fragment6(id uint32, offset int, more bool) layers {
	p := packet.Fragment{Next: 17, ID: id, Offset: offset, More: more}
	if offset > 0 {
		return layers{eth, ip6, p, data}
	}
	return layers{eth, ip6, p, udp, data}
}

// Cases is every kind of frame once.
func Cases() []Case {
	return slices.Concat(goodPackets(), outerPackets(), tunnelPackets(), innerPackets(), lyingPackets())
}

// goodPackets are those that are understood.
func goodPackets() []Case {
	var cases []Case
	for _, outer := range []struct {
		name   string
		layers layers
	}{
		{"vxlan over IPv4", outer4},
		{"vxlan over IPv6", outer6},
		{"geneve over IPv4", layers{eth, ip4, toGnv, gnv}},
		{"geneve over IPv6", layers{eth, ip6, toGnv, gnv}},
		{"geneve with 4 bytes of options", layers{eth, ip4, toGnv, packet.Geneve{VNI: 42, Options: 4}}},
		{"geneve with 252 bytes of options", layers{eth, ip6, toGnv, packet.Geneve{VNI: 42, Options: 252}}},
		{"vxlan of any VNI", layers{eth, ip4, packet.UDP{Dst: 8472}, packet.VXLAN{VNI: 4711}}},
		{"geneve on a port of vxlan", layers{eth, ip4, toVX, packet.Geneve{VNI: 7}}},
	} {
		for _, inner := range []struct {
			name   string
			layers layers
		}{
			{"IPv4 UDP", inner4},
			{"IPv6 UDP", inner6},
			{"IPv4 TCP", layers{eth, ip4, tcp, data}},
			{"IPv6 TCP", layers{eth, ip6, tcp, data}},
			{"tagged IPv4 UDP", layers{eth, packet.VLAN{ID: 5}, ip4, udp, data}},
			{"tagged IPv6 UDP", layers{eth, packet.VLAN{ID: 5}, ip6, udp, data}},
			{"IPv4 UDP with options", layers{eth, packet.IPv4{Options: 40}, udp, data}},
			{"ICMP", layers{eth, ip4, packet.ICMP{}}},
			{"an unknown protocol", layers{eth, packet.IPv4{Proto: 99}, data}},
			{"nothing behind IPv6", layers{eth, ip6}},
			{"SCTP", layers{eth, packet.IPv4{Proto: 132}, data}},
			{"a first fragment", fragment4(1, 0, true)},
			{"a first fragment of IPv6", fragment6(1, 0, true)},
			{"an atomic fragment", fragment6(1, 0, false)},
		} {
			cases = append(cases, Case{
				Name:  outer.name + ", " + inner.name,
				Frame: frame(outer.layers, inner.layers),
				Want:  oracle.OK,
			})
		}
	}
	return append(cases,
		Case{"a later fragment after its first", frame(outer4, fragment4(7, 0, true)), frame(outer4, fragment4(7, 1480, true)), oracle.OK},
		Case{"the last fragment after its first", frame(outer4, fragment4(8, 0, true)), frame(outer4, fragment4(8, 1480, false)), oracle.OK},
		Case{"a later fragment of IPv6 after its first", frame(outer6, fragment6(9, 0, true)), frame(outer6, fragment6(9, 1448, false)), oracle.OK},
		Case{"a fragment from 32 KB on after its first", frame(outer4, fragment4(10, 0, true)), frame(outer4, fragment4(10, 32768, true)), oracle.OK},
		Case{"padding behind the datagram", nil, append(frame(outer4, inner4), make([]byte, 18)...), oracle.OK},
		Case{"padding behind the inner packet", nil, frame(outer4, layers{eth, packet.IPv4{LenDelta: -10}, packet.UDP{Src: 1, Dst: 2, LenDelta: -10}, data}), oracle.OK},
		Case{"don't fragment, outside and inside", nil, frame(layers{eth, packet.IPv4{Dont: true}, toVX, vx, eth, packet.IPv4{Dont: true}, udp, data}), oracle.OK},
		Case{"the shortest: TCP ports that just fit", nil, frame(outer4, layers{eth, packet.IPv4{Proto: 6}, packet.Bytes(4)}), oracle.OK},
		Case{"a large frame", nil, frame(outer4, layers{eth, ip4, udp, packet.Bytes(3400)}), oracle.OK},
		Case{"a tunnel in the tunnel", nil, frame(outer4, outer4, inner4), oracle.OK},
	)
}

// outerPackets differ from a good one in what is around the tunnel.
func outerPackets() []Case {
	good := slices.Concat(layers{vx}, inner4)
	carry := func(l ...packet.Layer) []byte { return frame(l, good) }
	return []Case{
		{"not IP", nil, frame(layers{eth, packet.ARP{}, packet.Bytes(20)}), oracle.NotOverlay},
		{"TCP", nil, frame(layers{eth, ip4, tcp, data}), oracle.NotOverlay},
		{"TCP over IPv6", nil, frame(layers{eth, ip6, tcp, data}), oracle.NotOverlay},
		{"ICMP, as long as the outer headers", nil, frame(layers{eth, ip4, packet.ICMP{}}), oracle.NotOverlay},
		{"UDP to another port", nil, carry(eth, ip4, packet.UDP{Src: packet.VXLANPort, Dst: 4790}), oracle.NotOverlay},
		{"UDP to port 0", nil, carry(eth, ip4, packet.UDP{Src: packet.VXLANPort}), oracle.NotOverlay},
		{"UDP over IPv6 to another port", nil, carry(eth, ip6, packet.UDP{Dst: 53}), oracle.NotOverlay},
		{"an outer tag", nil, carry(eth, packet.VLAN{ID: 9}, ip4, toVX), oracle.OuterVLAN},
		{"two outer tags", nil, carry(packet.Ethernet{Type: 0x88a8}, packet.VLAN{ID: 9}, packet.VLAN{ID: 8}, ip4, toVX), oracle.OuterVLAN},
		{"outer options", nil, carry(eth, packet.IPv4{Options: 4}, toVX), oracle.OuterOptions},
		{"outer options, 40 bytes", nil, carry(eth, packet.IPv4{Options: 40}, toVX), oracle.OuterOptions},
		{"an outer first fragment", nil, carry(eth, packet.IPv4{More: true}, toVX), oracle.OuterFragment},
		{"an outer later fragment", nil, carry(eth, packet.IPv4{Offset: 1480}, toVX), oracle.OuterFragment},
		{"an outer fragment of IPv6", nil, carry(eth, ip6, packet.Fragment{More: true}, toVX), oracle.OuterFragment},
		{"an outer atomic fragment", nil, carry(eth, ip6, packet.Fragment{}, toVX), oracle.OuterFragment},
		{"outer hop-by-hop options", nil, carry(eth, ip6, packet.Extension{Kind: packet.HopByHop}, toVX), oracle.OuterExtension},
		{"an outer routing header", nil, carry(eth, ip6, packet.Extension{Kind: 43}, toVX), oracle.OuterExtension},
		{"outer destination options", nil, carry(eth, ip6, packet.Extension{Kind: 60}, toVX), oracle.OuterExtension},
		{"outer ESP", nil, carry(eth, packet.IPv4{Proto: 50}, packet.Bytes(8), toVX), oracle.NotOverlay},
		{"outer version 5", nil, carry(eth, packet.IPv4{VersionHL: 0x55}, toVX), oracle.BadLength},
		{"an outer header of 16 bytes", nil, carry(eth, packet.IPv4{VersionHL: 0x44}, toVX), oracle.BadLength},
		{"outer IPv6 with version 4", nil, carry(eth, packet.IPv6{Version: 4}, toVX), oracle.BadLength},
	}
}

// tunnelPackets differ from a good one in the tunnel's header.
func tunnelPackets() []Case {
	vxlan := func(h packet.VXLAN) []byte { return frame(layers{eth, ip4, toVX, h}, inner4) }
	geneve := func(h packet.Geneve) []byte { return frame(layers{eth, ip4, toGnv, h}, inner4) }
	return []Case{
		{"a VNI that no tunnel has", nil, vxlan(packet.VXLAN{VNI: 43}), oracle.NotOverlay},
		{"VNI 0", nil, vxlan(packet.VXLAN{}), oracle.NotOverlay},
		{"the VNI of another port", nil, geneve(packet.Geneve{VNI: 7}), oracle.NotOverlay},
		{"a geneve VNI that no tunnel has", nil, geneve(packet.Geneve{VNI: 1<<24 - 1}), oracle.NotOverlay},
		{"vxlan without VNI flag", nil, vxlan(packet.VXLAN{VNI: 42, Flags: 0x08}), oracle.BadTunnelHeader},
		{"vxlan with group policy", nil, vxlan(packet.VXLAN{VNI: 42, Flags: 0x80, Policy: 3}), oracle.BadTunnelHeader},
		{"vxlan GPE", nil, vxlan(packet.VXLAN{VNI: 42, Flags: 0x04}), oracle.BadTunnelHeader},
		{"vxlan with remote checksum offload", nil, vxlan(packet.VXLAN{VNI: 42, Flags: 0x20}), oracle.BadTunnelHeader},
		{"vxlan with the first reserved byte set", nil, vxlan(packet.VXLAN{VNI: 42, Reserved1: 1}), oracle.BadTunnelHeader},
		{"vxlan with reserved bytes set", nil, vxlan(packet.VXLAN{VNI: 42, Policy: 1}), oracle.BadTunnelHeader},
		{"vxlan with the last reserved byte set", nil, vxlan(packet.VXLAN{VNI: 42, Reserved2: 1}), oracle.BadTunnelHeader},
		{"geneve version 1", nil, geneve(packet.Geneve{VNI: 42, Version: 1}), oracle.BadTunnelHeader},
		{"geneve control packet", nil, geneve(packet.Geneve{VNI: 42, OAM: true}), oracle.BadTunnelHeader},
		{"geneve with a critical option", nil, geneve(packet.Geneve{VNI: 42, Options: 8, Critical: true}), oracle.BadTunnelHeader},
		{"a tunnel of an unknown kind", nil, frame(layers{eth, ip4, packet.UDP{Dst: 7777}, gnv}, inner4), oracle.BadTunnelHeader},
		{"geneve without Ethernet", nil, geneve(packet.Geneve{VNI: 42, Proto: 0x0800}), oracle.BadTunnelHeader},
	}
}

// innerPackets differ from a good one in what the tunnel carries.
func innerPackets() []Case {
	in := func(l ...packet.Layer) []byte { return frame(outer4, l) }
	return []Case{
		{"ARP inside", nil, in(eth, packet.ARP{}), oracle.InnerNotIP},
		{"an unknown type inside", nil, in(eth, data), oracle.InnerNotIP},
		{"two inner tags", nil, in(eth, packet.VLAN{ID: 1}, packet.VLAN{ID: 2}, ip4, udp, data), oracle.InnerNotIP},
		{"multicast inside", nil, in(packet.Ethernet{Multicast: true}, ip4, udp, data), oracle.InnerMulticast},
		{"broadcast ARP inside", nil, in(packet.Ethernet{Multicast: true}, packet.ARP{}), oracle.InnerMulticast},
		{"inner hop-by-hop options", nil, in(eth, ip6, packet.Extension{Kind: packet.HopByHop}, udp, data), oracle.OK},
		{"an inner routing header", nil, in(eth, ip6, packet.Extension{Kind: 43}, udp, data), oracle.OK},
		{"inner destination options", nil, in(eth, ip6, packet.Extension{Kind: 60}, udp, data), oracle.OK},
		{"three inner extension headers", nil, in(eth, ip6, packet.Extension{Kind: packet.HopByHop}, packet.Extension{Kind: 60}, packet.Extension{Kind: 43}, udp, data), oracle.OK},
		{"four inner extension headers", nil, in(eth, ip6, packet.Extension{Kind: packet.HopByHop}, packet.Extension{Kind: 60}, packet.Extension{Kind: 43}, packet.Extension{Kind: 60}, udp, data), oracle.InnerExtension},
		{"an inner extension header in front of a fragment's", nil, in(eth, ip6, packet.Extension{Kind: 60}, packet.Fragment{More: true}, udp, data), oracle.OK},
		{"an inner extension header that is cut short", nil, in(eth, packet.IPv6{Next: 60}, packet.Raw{17, 0, 0, 0}), oracle.Short},
		{"an inner extension header that lies about its length", nil, in(eth, packet.IPv6{Next: 60}, packet.Raw{17, 3, 0, 0, 0, 0, 0, 0}), oracle.BadLength},
		{"a long inner extension header", nil, in(eth, packet.IPv6{Next: 60}, packet.Raw{17, 4, 0, 0, 0, 0, 0, 0}, data), oracle.InnerExtension},
		{"inner authentication header", nil, in(eth, packet.IPv6{Next: 51}, data), oracle.InnerExtension},
		{"inner mobility header", nil, in(eth, packet.IPv6{Next: 135}, data), oracle.InnerExtension},
		{"options behind an inner fragment header", nil, in(eth, ip6, packet.Fragment{More: true}, packet.Extension{Kind: 60}, udp, data), oracle.InnerExtension},
		{"two inner fragment headers", nil, in(eth, ip6, packet.Fragment{}, packet.Fragment{}, udp, data), oracle.InnerExtension},
		{"a later fragment without its first", nil, frame(outer4, fragment4(100, 1480, true)), oracle.FragmentUntracked},
		{"a later fragment of IPv6 without its first", nil, frame(outer4, fragment6(100, 1480, true)), oracle.FragmentUntracked},
		{"a later fragment of another datagram", frame(outer4, fragment4(101, 0, true)), frame(outer4, fragment4(102, 1480, true)), oracle.FragmentUntracked},
	}
}

// lyingPackets have a length that cannot be true.
func lyingPackets() []Case {
	in := func(l ...packet.Layer) []byte { return frame(outer4, l) }
	out := func(l ...packet.Layer) []byte { return frame(l, layers{vx}, inner4) }
	return []Case{
		{"outer IPv4 longer than the frame", nil, out(eth, packet.IPv4{LenDelta: 1}, toVX), oracle.BadLength},
		{"outer IPv4 shorter than its UDP", nil, out(eth, packet.IPv4{LenDelta: -1}, toVX), oracle.BadLength},
		{"outer IPv4 without room for UDP", nil, out(eth, packet.IPv4{LenDelta: -8 - 8 - 14 - 20 - 8 - 64 - 1}, toVX), oracle.BadLength},
		{"outer IPv6 longer than the frame", nil, out(eth, packet.IPv6{LenDelta: 1}, toVX), oracle.BadLength},
		{"outer IPv6 shorter than its UDP", nil, out(eth, packet.IPv6{LenDelta: -1}, toVX), oracle.BadLength},
		{"outer UDP longer than its packet", nil, out(eth, ip4, packet.UDP{Dst: packet.VXLANPort, LenDelta: 1}), oracle.BadLength},
		{"outer UDP into the frame's padding", nil, append(out(eth, ip4, packet.UDP{Dst: packet.VXLANPort, LenDelta: 4}), 0, 0, 0, 0), oracle.BadLength},
		{"outer UDP without room for the tunnel", nil, out(eth, ip4, packet.UDP{Dst: packet.VXLANPort, LenDelta: -20 - 8 - 64 - 1}), oracle.BadLength},
		{"outer UDP shorter than the inner packet", nil, out(eth, ip4, packet.UDP{Dst: packet.VXLANPort, LenDelta: -1}), oracle.OK},
		{"geneve options longer than UDP", nil, frame(layers{eth, ip4, toGnv, packet.Raw{63, 0, 0x65, 0x58, 0, 0, 42, 0}}, inner4), oracle.BadLength},
		{"inner IPv4 longer than the frame", nil, in(eth, packet.IPv4{LenDelta: 1}, udp, data), oracle.BadLength},
		{"inner IPv4 into the frame's padding", nil, append(in(eth, packet.IPv4{LenDelta: 2}, udp, data), 0, 0), oracle.OK},
		{"inner IPv4 shorter than its header", nil, in(eth, packet.IPv4{LenDelta: -8 - 64 - 1}, udp, data), oracle.BadLength},
		{"inner IPv4 with length 0", nil, in(eth, packet.IPv4{LenDelta: -20 - 8 - 64}, udp, data), oracle.BadLength},
		{"inner IPv4 without room for ports", nil, in(eth, packet.IPv4{LenDelta: -64 - 8 + 3}, udp, data), oracle.BadLength},
		{"inner header of 16 bytes", nil, in(eth, packet.IPv4{VersionHL: 0x44}, udp, data), oracle.BadLength},
		{"inner IPv4 with version 6", nil, in(eth, packet.IPv4{VersionHL: 0x65}, udp, data), oracle.BadLength},
		{"inner options beyond the packet", nil, in(eth, packet.IPv4{VersionHL: 0x4f}, udp, packet.Bytes(20)), oracle.BadLength},
		{"inner IPv6 longer than the frame", nil, in(eth, packet.IPv6{LenDelta: 1}, udp, data), oracle.BadLength},
		{"inner IPv6 without room for ports", nil, in(eth, packet.IPv6{LenDelta: -64 - 8 + 3}, udp, data), oracle.BadLength},
		{"inner IPv6 without room for its fragment header", nil, in(eth, packet.IPv6{LenDelta: -64 - 8 - 1}, packet.Fragment{}, udp, data), oracle.BadLength},
		{"inner IPv6 with version 4", nil, in(eth, packet.IPv6{Version: 4}, udp, data), oracle.BadLength},
	}
}
