// SPDX-License-Identifier: Apache-2.0

// Package packet builds frames for tests: a list of layers, outermost first,
// each of which fills in what it can know (lengths, types, protocols) unless it
// is told to lie.
package packet

import (
	"encoding/binary"
	"net/netip"
)

// Layer is one header, or a payload.
type Layer interface {
	// wrap puts the header in front of what it carries; next is the layer
	// behind it, or nil.
	wrap(payload []byte, next Layer) []byte
}

// Build makes a frame of layers, outermost first.
func Build(layers ...Layer) []byte {
	var frame []byte
	var next Layer
	for i := len(layers) - 1; i >= 0; i-- {
		frame = layers[i].wrap(frame, next)
		next = layers[i]
	}
	return frame
}

// Raw is a payload.
type Raw []byte

func (r Raw) wrap(payload []byte, _ Layer) []byte {
	return append(append([]byte{}, r...), payload...)
}

// Bytes is a payload of n bytes.
func Bytes(n int) Raw {
	r := make(Raw, n)
	for i := range r {
		r[i] = byte(i)
	}
	return r
}

// Ethernet is an Ethernet header.
type Ethernet struct {
	Multicast bool
	Type      uint16 // 0: of the next layer
}

func (e Ethernet) wrap(payload []byte, next Layer) []byte {
	h := []byte{0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0, 0}
	if e.Multicast {
		h[0] |= 1
	}
	binary.BigEndian.PutUint16(h[12:], etherType(e.Type, next))
	return append(h, payload...)
}

// VLAN is a tag behind an Ethernet header.
type VLAN struct {
	ID   uint16
	Type uint16 // 0: of the next layer
}

func (v VLAN) wrap(payload []byte, next Layer) []byte {
	h := binary.BigEndian.AppendUint16(nil, v.ID)
	h = binary.BigEndian.AppendUint16(h, etherType(v.Type, next))
	return append(h, payload...)
}

func etherType(told uint16, next Layer) uint16 {
	if told != 0 {
		return told
	}
	switch next.(type) {
	case IPv4:
		return 0x0800
	case IPv6:
		return 0x86dd
	case VLAN:
		return 0x8100
	case ARP:
		return 0x0806
	}
	return 0x88b5 // local experimental
}

// ARP is an ARP request's body.
type ARP struct{}

func (ARP) wrap(payload []byte, _ Layer) []byte {
	return append([]byte{0, 1, 8, 0, 6, 4, 0, 1, 27: 0}, payload...)
}

// IPv4 is an IPv4 header.
type IPv4 struct {
	Src, Dst  netip.Addr // zero: 192.0.2.1 and .2
	Proto     uint8      // 0: of the next layer
	ID        uint16
	More      bool
	Offset    int // bytes, a multiple of 8
	Dont      bool
	Options   int   // bytes, a multiple of 4
	LenDelta  int   // added to the true total length
	VersionHL uint8 // 0: the true one
}

func (p IPv4) wrap(payload []byte, next Layer) []byte {
	h := make([]byte, 20+p.Options)
	h[0] = 0x40 | byte(len(h)/4)
	if p.VersionHL != 0 {
		h[0] = p.VersionHL
	}
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(payload)+p.LenDelta))
	binary.BigEndian.PutUint16(h[4:], p.ID)
	frag := uint16(p.Offset / 8)
	if p.More {
		frag |= 0x2000
	}
	if p.Dont {
		frag |= 0x4000
	}
	binary.BigEndian.PutUint16(h[6:], frag)
	h[8] = 64
	h[9] = protocol(p.Proto, next)
	src, dst := orAddr(p.Src, "192.0.2.1").As4(), orAddr(p.Dst, "192.0.2.2").As4()
	copy(h[12:], src[:])
	copy(h[16:], dst[:])
	for i := 20; i < len(h); i++ {
		h[i] = 1 // no operation
	}
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, payload...)
}

// IPv6 is an IPv6 header.
type IPv6 struct {
	Src, Dst netip.Addr // zero: 2001:db8::1 and ::2
	Next     uint8      // 0: of the next layer
	LenDelta int        // added to the true payload length
	Version  uint8      // 0: 6
}

func (p IPv6) wrap(payload []byte, next Layer) []byte {
	h := make([]byte, 40)
	h[0] = 0x60
	if p.Version != 0 {
		h[0] = p.Version << 4
	}
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)+p.LenDelta))
	h[6] = protocol(p.Next, next)
	h[7] = 64
	src, dst := orAddr(p.Src, "2001:db8::1").As16(), orAddr(p.Dst, "2001:db8::2").As16()
	copy(h[8:], src[:])
	copy(h[24:], dst[:])
	return append(h, payload...)
}

// Extension is an IPv6 extension header of 8 bytes: hop-by-hop (HopByHop),
// routing (43), destination options (60).
type Extension struct {
	Kind uint8
	Next uint8 // 0: of the next layer
}

// HopByHop is the protocol number of IPv6 hop-by-hop options, which is 0.
const HopByHop = 0xff

func (e Extension) wrap(payload []byte, next Layer) []byte {
	h := []byte{protocol(e.Next, next), 0, 1, 4, 0, 0, 0, 0} // PadN
	return append(h, payload...)
}

// Fragment is an IPv6 fragment header.
type Fragment struct {
	Next   uint8 // 0: of the next layer
	Offset int   // bytes, a multiple of 8
	More   bool
	ID     uint32
}

func (f Fragment) wrap(payload []byte, next Layer) []byte {
	h := []byte{protocol(f.Next, next), 0}
	off := uint16(f.Offset)
	if f.More {
		off |= 1
	}
	h = binary.BigEndian.AppendUint16(h, off)
	h = binary.BigEndian.AppendUint32(h, f.ID)
	return append(h, payload...)
}

func protocol(told uint8, next Layer) uint8 {
	switch {
	case told == HopByHop:
		return 0
	case told != 0:
		return told
	}
	switch n := next.(type) {
	case TCP:
		return 6
	case UDP:
		return 17
	case ICMP:
		return 1
	case Fragment:
		return 44
	case Extension:
		if n.Kind == HopByHop {
			return 0
		}
		return n.Kind
	}
	return 59 // nothing follows
}

// UDP is a UDP header without checksum.
type UDP struct {
	Src, Dst uint16
	LenDelta int // added to the true length
}

func (u UDP) wrap(payload []byte, _ Layer) []byte {
	h := binary.BigEndian.AppendUint16(nil, u.Src)
	h = binary.BigEndian.AppendUint16(h, u.Dst)
	h = binary.BigEndian.AppendUint16(h, uint16(8+len(payload)+u.LenDelta))
	h = append(h, 0, 0)
	return append(h, payload...)
}

// TCP is a TCP header without options or checksum.
type TCP struct {
	Src, Dst uint16
	Seq      uint32
}

func (t TCP) wrap(payload []byte, _ Layer) []byte {
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, t.Src)
	binary.BigEndian.PutUint16(h[2:], t.Dst)
	binary.BigEndian.PutUint32(h[4:], t.Seq)
	h[12] = 5 << 4
	h[13] = 0x10
	return append(h, payload...)
}

// ICMP is an echo request's header.
type ICMP struct{}

func (ICMP) wrap(payload []byte, _ Layer) []byte {
	return append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, payload...)
}

// VXLANPort and GenevePort are the usual ones.
const (
	VXLANPort  = 4789
	GenevePort = 6081
)

// VXLAN is a VXLAN header.
type VXLAN struct {
	VNI       uint32
	Flags     uint8 // XORed into the usual 0x08
	Policy    uint16
	Reserved1 uint8
	Reserved2 uint8
}

func (v VXLAN) wrap(payload []byte, _ Layer) []byte {
	h := []byte{0x08 ^ v.Flags, v.Reserved1, byte(v.Policy >> 8), byte(v.Policy)}
	h = binary.BigEndian.AppendUint32(h, v.VNI<<8|uint32(v.Reserved2))
	return append(h, payload...)
}

// Geneve is a Geneve header.
type Geneve struct {
	VNI      uint32
	Version  uint8
	Options  int // bytes, a multiple of 4
	OAM      bool
	Critical bool
	Proto    uint16 // 0: Ethernet
}

func (g Geneve) wrap(payload []byte, _ Layer) []byte {
	h := make([]byte, 8+g.Options)
	h[0] = g.Version<<6 | byte(g.Options/4)
	if g.OAM {
		h[1] |= 0x80
	}
	if g.Critical {
		h[1] |= 0x40
	}
	proto := g.Proto
	if proto == 0 {
		proto = 0x6558
	}
	binary.BigEndian.PutUint16(h[2:], proto)
	binary.BigEndian.PutUint32(h[4:], g.VNI<<8)
	for off := 8; off < len(h); off += 4 {
		binary.BigEndian.PutUint16(h[off:], 0x0102) // options without data
	}
	return append(h, payload...)
}

func orAddr(a netip.Addr, otherwise string) netip.Addr {
	if a.IsValid() {
		return a
	}
	return netip.MustParseAddr(otherwise)
}

func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
