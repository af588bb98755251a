// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
)

const (
	// MaxFlows is how many flows one checker can follow.
	MaxFlows = 256

	BasePort = 10000
	// Port is where checked datagrams go.
	Port = 9000

	ethLen, ipv4Len, ipv6Len, udpLen, vxlanLen = 14, 20, 40, 8, 8
	templateMax                                = 144
)

// Flow is one stream of checked datagrams.
type Flow struct {
	ID int // 0 to MaxFlows-1, unique for one checker
	bed.Link
	SrcPort, DstPort uint16
	// Outer is the tunnel's path; nil: the flow runs on the wire itself.
	Outer *bed.Link
	// VNI is the overlay's; 0: the one that a bed builds.
	VNI uint32
	// OuterPort is the tunnel's source port, by which RSS and RPS tell flows.
	OuterPort uint16
}

// NewFlow describes flow id from pod n to pod n, or between the hosts
// themselves. salt varies what hashes see, so that the luck of one hash does
// not decide a series.
func NewFlow(b *bed.Bed, id, n int, overlay, v6 bool, salt int) Flow {
	f := Flow{ID: id, SrcPort: uint16(BasePort + id), DstPort: Port}
	if !overlay {
		f.SrcPort += uint16(salt % 1000 * 16)
		f.Link = b.WireLink()
		return f
	}
	wire := b.WireLink()
	f.Link, f.Outer = b.PodLink(n, v6), &wire
	f.OuterPort = 49152 + uint16((id*257+salt*31)%16384)
	return f
}

// udpChecksum is that of what has a sum. 0 would say that there is none.
func udpChecksum(sum uint64) uint16 { return cmp.Or(^datagram.Fold(sum), 0xffff) }

// frame is the first, or only, frame of a datagram with sequence number 0.
type frame struct {
	bytes   []byte
	hdrLen  int    // up to and with the UDP header
	ipOff   int    // of the inner IPv4 header
	ipSum   uint32 // over that header without id, fragment offset and checksum
	frags   int    // frames of one datagram
	perFrag int    // bytes of inner IP payload in each
}

// buildFrame lays out what a flow of datagrams of size bytes puts on the wire.
// Datagrams above the overlay's MTU go as inner fragments of equal size, so
// size may grow by a few bytes: it returns what is sent.
func buildFrame(f *Flow, size int) (*frame, int, error) {
	if size < datagram.MinSize {
		return nil, 0, fmt.Errorf("datagrams of %d bytes: %d is the smallest that can be checked", size, datagram.MinSize)
	}
	ipLen, mtu := ipv4Len, bed.WireMTU
	if f.Src.Is6() {
		ipLen = ipv6Len
	}
	if f.Outer != nil {
		mtu = bed.OverlayMTU
	}
	fr := &frame{frags: 1, perFrag: udpLen + size}
	if room := mtu - ipLen; fr.perFrag > room {
		if f.Src.Is6() {
			return nil, 0, fmt.Errorf("datagrams of %d bytes need fragments, which the lab sends over IPv4 only", size)
		}
		fr.frags = (fr.perFrag + room - 1) / room
		fr.perFrag = (fr.perFrag/fr.frags + 7) / 8 * 8
		for fr.perFrag*fr.frags > 65535-ipv4Len {
			fr.perFrag -= 8
		}
		size = fr.perFrag*fr.frags - udpLen
	}
	var b []byte
	if o := f.Outer; o != nil {
		inner := ethLen + ipLen + fr.perFrag
		b = appendEth(b, o)
		b = appendIP(b, o.Src, o.Dst, udpLen+vxlanLen+inner)
		// No outer checksum: a network card would have verified it for free.
		b = appendUDP(b, f.OuterPort, bed.TunnelPort, udpLen+vxlanLen+inner)
		b = append(b, 0x08, 0, 0, 0)
		b = binary.BigEndian.AppendUint32(b, cmp.Or(f.VNI, bed.VNI)<<8)
	}
	b = appendEth(b, &f.Link)
	fr.ipOff = len(b)
	b = appendIP(b, f.Src, f.Dst, fr.perFrag)
	udp := len(b)
	b = appendUDP(b, f.SrcPort, f.DstPort, udpLen+size)
	fr.hdrLen = len(b)
	if fr.hdrLen > templateMax {
		return nil, 0, fmt.Errorf("headers of %d bytes", fr.hdrLen)
	}
	b = append(b, make([]byte, fr.perFrag-udpLen)...)
	datagram.Put(b[fr.hdrLen:fr.hdrLen+min(size, datagram.StampedSize)], uint16(f.ID), 0, 0)
	// The rest of the datagram is zero, in whatever fragment it travels.
	sum := uint64(0x11) + uint64(udpLen+size) + sumBytes(f.Src.AsSlice()) + sumBytes(f.Dst.AsSlice()) + sumBytes(b[udp:])
	binary.BigEndian.PutUint16(b[udp+6:], udpChecksum(sum))
	if !f.Src.Is6() {
		h := b[fr.ipOff : fr.ipOff+ipv4Len]
		for i := 0; i < ipv4Len; i += 2 {
			if i != 4 && i != 6 && i != 10 {
				// In memory order, as the generator adds.
				fr.ipSum += uint32(binary.NativeEndian.Uint16(h[i:]))
			}
		}
	}
	fr.bytes = b
	return fr, size, nil
}

func appendEth(b []byte, l *bed.Link) []byte {
	b = append(b, l.DstMAC[:]...)
	b = append(b, l.SrcMAC[:]...)
	if l.Src.Is6() {
		return append(b, 0x86, 0xdd)
	}
	return append(b, 0x08, 0x00)
}

func appendIP(b []byte, src, dst netip.Addr, payload int) []byte {
	const hops, udp = 64, 17
	if src.Is6() {
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(payload))
		b = append(b, udp, hops)
		b = append(b, src.AsSlice()...)
		return append(b, dst.AsSlice()...)
	}
	at := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ipv4Len+payload))
	b = append(b, 0, 0, 0, 0, hops, udp, 0, 0)
	b = append(b, src.AsSlice()...)
	b = append(b, dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[at+10:], ^datagram.Fold(sumBytes(b[at:])))
	return b
}

func appendUDP(b []byte, src, dst uint16, length int) []byte {
	b = binary.BigEndian.AppendUint16(b, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	return append(b, 0, 0)
}

func sumBytes(p []byte) (sum uint64) {
	for i := 0; i+1 < len(p); i += 2 {
		sum += uint64(binary.BigEndian.Uint16(p[i:]))
	}
	if len(p)%2 == 1 {
		sum += uint64(p[len(p)-1]) << 8
	}
	return sum
}
