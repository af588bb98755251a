// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/parser/packet"
)

// Where things are in a frame of the lab's tunnel, and in its inner frame.
const (
	EthLen   = 14
	IPAt     = EthLen
	OuterUDP = IPAt + 20
	TunnelAt = OuterUDP + 8 + 8
	markType = 0x88b6 // of frames that tell that what was sent before has come
)

// Crate makes frames for the first pod, as the wire carries them.
type Crate struct {
	Bed    *bed.Bed
	Tunnel [6]byte // the tunnel's own address
	marks  uint32
}

// NewCrate makes one for a bed.
func NewCrate(tb testing.TB, b *bed.Bed) *Crate {
	tb.Helper()
	c := &Crate{Bed: b}
	nl := In(tb, b.Receiver().Overlay)
	defer nl.Close()
	l, err := nl.LinkByName(bed.Tunnel)
	if err != nil {
		tb.Fatal(err)
	}
	copy(c.Tunnel[:], l.Attrs().HardwareAddr)
	return c
}

// Inner is a frame for the pod, with other layers behind its Ethernet header.
func (c *Crate) Inner(layers ...packet.Layer) []byte {
	from, to := c.Bed.Sender().Pods[0], c.Bed.Receiver().Pods[0]
	f := packet.Build(append([]packet.Layer{packet.Ethernet{}}, layers...)...)
	copy(f, to.MAC[:])
	copy(f[6:], from.MAC[:])
	return f
}

// IP is an IPv4 header from pod to pod.
func (c *Crate) IP(p packet.IPv4) packet.IPv4 {
	p.Src, p.Dst = c.Bed.Sender().Pods[0].IP4, c.Bed.Receiver().Pods[0].IP4
	return p
}

// Plain is a datagram for the pod.
func (c *Crate) Plain(p packet.IPv4) []byte {
	return c.Inner(c.IP(p), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(40))
}

// Outer is a frame of the tunnel.
func (c *Crate) Outer(p packet.IPv4, inner []byte) []byte {
	return c.Wire(c.OuterIP(p), packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI}, packet.Raw(inner))
}

// OuterIP is an IPv4 header from host to host.
func (c *Crate) OuterIP(p packet.IPv4) packet.IPv4 {
	p.Src, p.Dst = c.Bed.Sender().IP, c.Bed.Receiver().IP
	return p
}

// Wire is a frame from NIC to NIC.
func (c *Crate) Wire(layers ...packet.Layer) []byte {
	from, to := c.Bed.Sender(), c.Bed.Receiver()
	f := packet.Build(append([]packet.Layer{packet.Ethernet{}}, layers...)...)
	copy(f, to.WireMAC[:])
	copy(f[6:], from.WireMAC[:])
	return f
}

// Mark makes a frame that tells that what was sent before has come: as the pod gets it, and as the
// wire carries it. No two are alike.
func (c *Crate) Mark() (inner, outer []byte) {
	c.marks++
	inner = c.Inner(packet.Raw(binary.BigEndian.AppendUint32(make([]byte, 46), c.marks)))
	binary.BigEndian.PutUint16(inner[12:], markType)
	return inner, c.Outer(packet.IPv4{}, inner)
}

// Edited is a frame with other bytes at some place.
func Edited(f []byte, at int, b ...byte) []byte {
	f = slices.Clone(f)
	copy(f[at:], b)
	return f
}

// ECN gives the IPv4 header at some place its ECN bits.
func ECN(f []byte, at int, bits byte) []byte {
	f = Edited(f, at+1, f[at+1]&^3|bits)
	f[at+10], f[at+11] = 0, 0
	binary.BigEndian.PutUint16(f[at+10:], ^Ones(f[at:at+20]))
	return f
}

// Ones is the ones' complement sum of 16 bit words.
func Ones(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// SumUDP gives the datagram behind the IPv4 header at some place its checksum.
func SumUDP(f []byte, at int) []byte {
	f = slices.Clone(f)
	udp := f[at+20:]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	udp[6], udp[7] = 0, 0
	pseudo := append(slices.Clone(f[at+12:at+20]), 0, f[at+9], udp[4], udp[5])
	sum := ^Ones(append(pseudo, udp[:n]...))
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return f
}

// Fragments cuts the payload of an IPv4 packet in two.
func Fragments(p packet.IPv4, proto byte, payload []byte, build func(packet.IPv4, packet.Raw) []byte) [][]byte {
	cut := len(payload) / 2 / 8 * 8
	p.Proto, p.ID = proto, 77
	first, second := p, p
	first.More, second.Offset = true, cut
	return [][]byte{build(first, payload[:cut]), build(second, payload[cut:])}
}
