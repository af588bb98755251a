// SPDX-License-Identifier: Apache-2.0

// Package oracle says what the kernel side should make of a frame. It is
// written from the description of the formats, slowly and with plain slices,
// and shares nothing with bpf/parse.h, which it judges.
package oracle

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Reason is why a frame takes the stock path, or OK; the words are those of
// status and metrics.
type Reason string

// The reasons, in the order of enum ol_reason.
const (
	OK                Reason = "ok"
	NotOverlay        Reason = "not-overlay"
	Short             Reason = "short"
	OuterVLAN         Reason = "outer-vlan"
	OuterOptions      Reason = "outer-options"
	OuterFragment     Reason = "outer-fragment"
	OuterExtension    Reason = "outer-extension"
	BadLength         Reason = "bad-length"
	BadTunnelHeader   Reason = "bad-tunnel-header"
	InnerNotIP        Reason = "inner-not-ip"
	InnerExtension    Reason = "inner-extension"
	InnerMulticast    Reason = "inner-multicast"
	FragmentUntracked Reason = "fragment-untracked"
	Headless          Reason = "headers-not-in-first-buffer" // of XDP's view of a frame, which no View is
	Unfinished        Reason = "checksum-left-to-receiver"   // known of the frame's skb, which no View has
)

// Reasons lists them in the order of enum ol_reason.
var Reasons = []Reason{
	OK, NotOverlay, Short, OuterVLAN, OuterOptions, OuterFragment, OuterExtension, BadLength,
	BadTunnelHeader, InnerNotIP, InnerExtension, InnerMulticast, FragmentUntracked, Headless, Unfinished,
}

// Kind is an encapsulation.
type Kind int

// The encapsulations.
const (
	VXLAN Kind = iota + 1
	Geneve
	Unknown // to the kernel side, too
)

// AnyVNI as a tunnel's VNI: it takes every VNI of its port.
const AnyVNI = -1

// Tunnel is a tunnel that is steered.
type Tunnel struct {
	Kind Kind
	Port uint16
	VNI  int
}

// Fragment tells fragmented datagrams from whole ones.
type Fragment int

// The kinds of fragments.
const (
	Whole Fragment = iota
	First
	Later
)

// Flow is what an inner packet belongs to. Ports are those on the wire for TCP,
// UDP and SCTP, else zero; ID is the datagram's, for fragments. Of all but later
// fragments, L4 is where the transport header is, and Room what it and the rest take.
type Flow struct {
	Src, Dst     netip.Addr
	Proto        uint8
	SPort, DPort uint16
	VNI          uint32
	Fragment     Fragment
	ID           uint32
	L4, Room     int
}

// View is a frame as a hook sees it: the bytes it can reach, and the length of
// the whole frame. Whole is 0 where lengths cannot be judged (a super-packet).
type View struct {
	Data  []byte
	Whole int
}

// at returns n bytes from off on, if they can be reached.
func (v View) at(off, n int) ([]byte, bool) {
	if off < 0 || off+n > len(v.Data) {
		return nil, false
	}
	return v.Data[off : off+n], true
}

// Classify says what should become of a frame.
func Classify(v View, tunnels []Tunnel) (Flow, Reason) {
	udp, end, r := outer(v)
	if r != OK {
		return Flow{}, r
	}
	port := binary.BigEndian.Uint16(v.Data[udp+2:])
	known := false
	for _, t := range tunnels {
		known = known || t.Port == port
	}
	if !known {
		return Flow{}, NotOverlay
	}
	th, ok := v.at(udp+8, 8)
	if !ok {
		return Flow{}, Short
	}
	vni := int(th[4])<<16 | int(th[5])<<8 | int(th[6])
	tunnel := find(tunnels, port, vni)
	if tunnel == nil {
		return Flow{}, NotOverlay
	}

	options := 0
	switch tunnel.Kind {
	case VXLAN:
		// Nothing but the VNI flag, nothing in the reserved fields.
		if th[0] != 0x08 || th[1]|th[2]|th[3]|th[7] != 0 {
			return Flow{}, BadTunnelHeader
		}
	case Geneve:
		version, oam, critical := th[0]>>6, th[1]&0x80 != 0, th[1]&0x40 != 0
		if version != 0 || oam || critical || binary.BigEndian.Uint16(th[2:]) != 0x6558 {
			return Flow{}, BadTunnelHeader
		}
		options = int(th[0]&0x3f) * 4
	default:
		return Flow{}, BadTunnelHeader
	}
	inner := udp + 8 + 8 + options
	udpEnd := udp + int(binary.BigEndian.Uint16(v.Data[udp+4:]))
	if v.Whole > 0 && (end > v.Whole || udpEnd > end || udpEnd < inner+14) {
		return Flow{}, BadLength
	}
	return ethernet(v, inner, uint32(vni))
}

func find(tunnels []Tunnel, port uint16, vni int) *Tunnel {
	for _, want := range []int{vni, AnyVNI} {
		for i, t := range tunnels {
			if t.Port == port && t.VNI == want {
				return &tunnels[i]
			}
		}
	}
	return nil
}

// outer finds the UDP header of an unfragmented datagram without options, and
// where the IP packet says it ends.
func outer(v View) (udp, end int, _ Reason) {
	const ip = 14
	// Less than an Ethernet and an IPv4 header tells nothing.
	if len(v.Data) < ip+20 {
		return 0, 0, Short
	}
	h := v.Data[ip:]
	switch binary.BigEndian.Uint16(v.Data[12:]) {
	case 0x8100, 0x88a8:
		return 0, 0, OuterVLAN
	case 0x0800:
		if h[9] != 17 {
			return 0, 0, NotOverlay
		}
		version, words := h[0]>>4, h[0]&15
		if version != 4 || words < 5 {
			return 0, 0, BadLength
		}
		if words > 5 {
			return 0, 0, OuterOptions
		}
		fragment := binary.BigEndian.Uint16(h[6:])
		if more, offset := fragment&0x2000, fragment&0x1fff; more != 0 || offset != 0 {
			return 0, 0, OuterFragment
		}
		udp = ip + 20
		end = ip + int(binary.BigEndian.Uint16(h[2:]))
	case 0x86dd:
		if len(v.Data) < ip+40 {
			return 0, 0, Short
		}
		switch h[6] {
		case 17:
		case 44:
			return 0, 0, OuterFragment
		case 0, 43, 60:
			return 0, 0, OuterExtension
		default:
			return 0, 0, NotOverlay
		}
		if h[0]>>4 != 6 {
			return 0, 0, BadLength
		}
		udp = ip + 40
		end = udp + int(binary.BigEndian.Uint16(h[4:]))
	default:
		return 0, 0, NotOverlay
	}
	if _, ok := v.at(udp, 8); !ok {
		return 0, 0, Short
	}
	return udp, end, OK
}

func ethernet(v View, off int, vni uint32) (Flow, Reason) {
	h, ok := v.at(off, 14)
	if !ok {
		return Flow{}, Short
	}
	if h[0]&1 == 1 {
		return Flow{}, InnerMulticast
	}
	typ := binary.BigEndian.Uint16(h[12:])
	off += 14
	if typ == 0x8100 || typ == 0x88a8 {
		tag, ok := v.at(off, 4)
		if !ok {
			return Flow{}, Short
		}
		typ = binary.BigEndian.Uint16(tag[2:])
		off += 4
	}
	var f Flow
	var r Reason
	switch typ {
	case 0x0800:
		f, r = ipv4(v, off)
	case 0x86dd:
		f, r = ipv6(v, off)
	default:
		return Flow{}, InnerNotIP
	}
	f.VNI = vni
	return f, r
}

func ipv4(v View, off int) (Flow, Reason) {
	h, ok := v.at(off, 20)
	if !ok {
		return Flow{}, Short
	}
	header, length := int(h[0]&15)*4, int(binary.BigEndian.Uint16(h[2:]))
	if h[0]>>4 != 4 || header < 20 {
		return Flow{}, BadLength
	}
	if v.Whole > 0 && (length < header || off+length > v.Whole) {
		return Flow{}, BadLength
	}
	// The head of a super-packet has a length, or none if that is beyond 64 KB.
	if v.Whole == 0 && length != 0 && length < header {
		return Flow{}, BadLength
	}
	f := Flow{
		Src:   netip.AddrFrom4([4]byte(h[12:16])),
		Dst:   netip.AddrFrom4([4]byte(h[16:20])),
		Proto: h[9],
		ID:    uint32(binary.BigEndian.Uint16(h[4:])),
	}
	fragment := binary.BigEndian.Uint16(h[6:])
	switch {
	case fragment&0x1fff != 0:
		f.Fragment = Later
		return f, OK
	case fragment&0x2000 != 0:
		f.Fragment = First
	}
	return ports(v, off+header, length-header, length != 0, f)
}

func ipv6(v View, off int) (Flow, Reason) {
	h, ok := v.at(off, 40)
	if !ok {
		return Flow{}, Short
	}
	length := int(binary.BigEndian.Uint16(h[4:]))
	if h[0]>>4 != 6 || v.Whole > 0 && off+40+length > v.Whole {
		return Flow{}, BadLength
	}
	f := Flow{
		Src:   netip.AddrFrom16([16]byte(h[8:24])),
		Dst:   netip.AddrFrom16([16]byte(h[24:40])),
		Proto: h[6],
	}
	known := v.Whole > 0 || length != 0
	off += 40
	// Options for each hop, options for the destination, routing, as a sender may have each once.
	for range 3 {
		if f.Proto != 0 && f.Proto != 43 && f.Proto != 60 {
			break
		}
		h, ok := v.at(off, 8)
		if !ok {
			return Flow{}, Short
		}
		if h[1] > 3 { // a sender's options are shorter
			return Flow{}, InnerExtension
		}
		size := 8 * (1 + int(h[1]))
		if known && length < size {
			return Flow{}, BadLength
		}
		f.Proto = h[0]
		off, length = off+size, length-size
	}
	if f.Proto == 44 {
		h, ok := v.at(off, 8)
		if !ok {
			return Flow{}, Short
		}
		if known && length < 8 {
			return Flow{}, BadLength
		}
		f.Proto = h[0]
		f.ID = binary.BigEndian.Uint32(h[4:])
		offset := binary.BigEndian.Uint16(h[2:])
		switch {
		case offset>>3 != 0:
			f.Fragment = Later
			return f, OK
		case offset&1 != 0:
			f.Fragment = First
		}
		off, length = off+8, length-8
	}
	switch f.Proto {
	case 0, 43, 44, 51, 60, 135:
		return Flow{}, InnerExtension
	}
	return ports(v, off, length, known, f)
}

// ports reads the ports of a transport header of which room bytes are there, if
// that is known.
func ports(v View, off, room int, known bool, f Flow) (Flow, Reason) {
	f.L4, f.Room = off, room
	switch f.Proto {
	case 6, 17, 132:
	default:
		return f, OK
	}
	h, ok := v.at(off, 4)
	if !ok {
		return Flow{}, Short
	}
	if known && room < 4 {
		return Flow{}, BadLength
	}
	f.SPort = binary.BigEndian.Uint16(h)
	f.DPort = binary.BigEndian.Uint16(h[2:])
	return f, OK
}

// Hash is the flow's hash: SipHash-1-3, without its length byte, over the words
// of the flow as a little-endian machine reads them.
func (f Flow) Hash(k0, k1 uint64) uint64 {
	var ports [4]byte
	binary.BigEndian.PutUint16(ports[:], f.SPort)
	binary.BigEndian.PutUint16(ports[2:], f.DPort)
	return sip(k0, k1, f.words(uint64(binary.LittleEndian.Uint32(ports[:]))))
}

// DatagramHash names the datagram that a fragment belongs to.
func (f Flow) DatagramHash(k0, k1 uint64) uint64 {
	id := f.ID
	if f.Src.Is6() {
		id = bits.ReverseBytes32(id)
	}
	return sip(^k0, k1, f.words(uint64(id))) | 1
}

// words are addresses, then high, VNI and protocol in one.
func (f Flow) words(high uint64) []uint64 {
	var b []byte
	b = append(b, f.Src.AsSlice()...)
	b = append(b, f.Dst.AsSlice()...)
	var words []uint64
	for ; len(b) > 0; b = b[8:] {
		words = append(words, uint64(binary.LittleEndian.Uint32(b))<<32|uint64(binary.LittleEndian.Uint32(b[4:])))
	}
	return append(words, high<<32|uint64(f.VNI^uint32(f.Proto)<<24))
}

func sip(k0, k1 uint64, words []uint64) uint64 {
	v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	round := func() {
		v[0] += v[1]
		v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
		v[0] = bits.RotateLeft64(v[0], 32)
		v[2] += v[3]
		v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
		v[0] += v[3]
		v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
		v[2] += v[1]
		v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
		v[2] = bits.RotateLeft64(v[2], 32)
	}
	for _, w := range words {
		v[3] ^= w
		round()
		v[0] ^= w
	}
	v[2] ^= 0xff
	for range 3 {
		round()
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}
