// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/parser/packet"
	"github.com/overlane/overlane/test/parser/table"
)

// kind is an odd frame, or some that belong together, of a group in the table.
type kind struct {
	group, name string
	frames      [][]byte
	// moves: the bridge takes the pod for being elsewhere afterwards.
	moves bool
}

// maker makes kinds.
type maker struct {
	*rig.Crate
	list []kind
	// port is the inner source port of the kind that is made: each is a flow of its own, so that none
	// takes another off its express path.
	port uint16
}

func (m *maker) add(group, name string, frames ...[]byte) {
	m.list = append(m.list, kind{group: group, name: name, frames: frames})
	m.port++
}

// In a frame of plain.
const (
	innerAt   = rig.TunnelAt
	innerIPAt = innerAt + rig.EthLen
	innerUDP  = innerIPAt + 20
	dataPort  = 9
	firstPort = 1000 // of the kinds
	mutePort  = 3000 // of the mutants
)

// udp is a datagram's header.
func (m *maker) udp() packet.UDP { return packet.UDP{Src: m.port, Dst: dataPort} }

// inner is an inner frame with a datagram.
func (m *maker) inner(p packet.IPv4) []byte { return m.Inner(m.IP(p), m.udp(), packet.Bytes(40)) }

// plain is a datagram with a number, as the tunnel sends it.
func (m *maker) plain(number byte) []byte {
	return m.Outer(packet.IPv4{}, m.Inner(m.IP(packet.IPv4{}), m.udp(), packet.Raw{number}, packet.Bytes(40)))
}

// sum makes the IPv4 header at some place right again.
func sum(f []byte, at int) []byte { return rig.ECN(f, at, f[at+1]&3) }

// put gives a frame other bytes, and an IPv4 header at some place its checksum.
func put(f []byte, at, header int, b ...byte) []byte { return sum(rig.Edited(f, at, b...), header) }

// kinds are all that are built by hand.
func kinds(c *rig.Crate) []kind {
	m := &maker{Crate: c, port: firstPort}
	for _, add := range []func(){m.runs, m.ecn, m.addresses, m.tags, m.outerIP, m.outerUDP, m.tunnel, m.innerIP, m.innerUDP, m.lengths, m.innerIPv6, m.senders} {
		add()
	}
	return m.list
}

// runs are several frames of a flow, in order, with something odd among them.
func (m *maker) runs() {
	run := func(n int, odd map[int]func([]byte) []byte) (list [][]byte) {
		for i := range n {
			f := m.plain(byte(i))
			if turn := odd[i]; turn != nil {
				f = turn(f)
			}
			list = append(list, f)
		}
		return list
	}
	m.add("run", "plain", run(16, nil)...)
	for name, turn := range sorted(map[string]func([]byte) []byte{
		"outer CE":              func(f []byte) []byte { return rig.ECN(f, rig.IPAt, 3) },
		"inner ECT, outer CE":   func(f []byte) []byte { return rig.ECN(rig.ECN(f, innerIPAt, 2), rig.IPAt, 3) },
		"inner header checksum": func(f []byte) []byte { return rig.Edited(f, innerIPAt+10, f[innerIPAt+10]^1) },
		"outer header checksum": func(f []byte) []byte { return rig.Edited(f, rig.IPAt+10, f[rig.IPAt+10]^1) },
		"a byte more":           func(f []byte) []byte { return append(f, 0) },
		"a byte less":           func(f []byte) []byte { return f[:len(f)-1] },
		"inner checksum":        func(f []byte) []byte { return rig.Edited(f, innerUDP+6, 1, 2) },
		"another TTL":           func(f []byte) []byte { return put(f, innerIPAt+8, innerIPAt, 1) },
		"a reserved bit":        func(f []byte) []byte { return rig.Edited(f, rig.OuterUDP+8, 0x18) },
		"an outer checksum":     func(f []byte) []byte { return rig.SumUDP(f, rig.IPAt) },
		"both checksums":        func(f []byte) []byte { return rig.SumUDP(rig.SumUDP(f, innerIPAt), rig.IPAt) },
	}) {
		m.add("run", name, run(8, map[int]func([]byte) []byte{4: turn})...)
	}
}

// sorted ranges over a map, always in the same order.
func sorted[V any](all map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(all)) {
			if !yield(k, all[k]) {
				return
			}
		}
	}
}

func (m *maker) ecn() {
	names := []string{"not", "ECT(1)", "ECT(0)", "CE"}
	for outer := range byte(4) {
		for inner := range byte(4) {
			name := fmt.Sprintf("outer %s, inner %s", names[outer], names[inner])
			m.add("ECN", name, rig.ECN(rig.ECN(m.plain(0), innerIPAt, inner), rig.IPAt, outer))
			v6 := m.Outer(packet.IPv4{}, m.Inner(packet.IPv6{}, m.udp(), packet.Bytes(40)))
			m.add("ECN", name+", IPv6", rig.ECN(rig.Edited(v6, innerIPAt+1, inner<<4), rig.IPAt, outer))
		}
	}
	m.add("ECN", "outer DSCP", put(m.plain(0), rig.IPAt+1, rig.IPAt, 0xb8))
	m.add("ECN", "inner DSCP", put(m.plain(0), innerIPAt+1, innerIPAt, 0xb8))
}

func (m *maker) addresses() {
	macs := []struct {
		name string
		mac  []byte
	}{
		{"all", []byte{255, 255, 255, 255, 255, 255}}, {"a group", []byte{1, 0, 0x5e, 0, 0, 1}}, {"a group of IPv6", []byte{0x33, 0x33, 0, 0, 0, 1}},
		{"none", make([]byte, 6)}, {"an unknown one", []byte{2, 2, 2, 2, 2, 2}}, {"the spanning tree's", []byte{1, 0x80, 0xc2, 0, 0, 0}},
		{"LLDP's", []byte{1, 0x80, 0xc2, 0, 0, 0xe}}, {"the tunnel's", m.Tunnel[:]},
	}
	for _, a := range macs {
		m.add("addresses", "outer to "+a.name, rig.Edited(m.plain(0), 0, a.mac...))
		m.add("addresses", "outer from "+a.name, rig.Edited(m.plain(0), 6, a.mac...))
		m.add("addresses", "inner to "+a.name, rig.Edited(m.plain(0), innerAt, a.mac...))
		m.add("addresses", "inner from "+a.name, rig.Edited(m.plain(0), innerAt+6, a.mac...))
	}
	ips := []struct {
		name string
		ip   []byte
	}{
		{"0.0.0.0", []byte{0, 0, 0, 0}}, {"0.1.2.3", []byte{0, 1, 2, 3}}, {"127.0.0.1", []byte{127, 0, 0, 1}}, {"224.0.0.1", []byte{224, 0, 0, 1}},
		{"240.0.0.1", []byte{240, 0, 0, 1}}, {"255.255.255.255", []byte{255, 255, 255, 255}}, {"169.254.1.2", []byte{169, 254, 1, 2}}, {"the receiver's", m.Bed.Receiver().IP.AsSlice()},
		{"the pod's", m.Bed.Receiver().Pods[0].IP4.AsSlice()},
	}
	for _, a := range ips {
		m.add("addresses", "outer IP to "+a.name, put(m.plain(0), rig.IPAt+16, rig.IPAt, a.ip...))
		m.add("addresses", "outer IP from "+a.name, put(m.plain(0), rig.IPAt+12, rig.IPAt, a.ip...))
		m.add("addresses", "inner IP to "+a.name, put(m.plain(0), innerIPAt+16, innerIPAt, a.ip...))
		m.add("addresses", "inner IP from "+a.name, put(m.plain(0), innerIPAt+12, innerIPAt, a.ip...))
	}
	pod := m.Bed.Receiver().Pods[0].MAC
	m.list = append(m.list, kind{group: "addresses", name: "inner from the address that it is sent to", frames: [][]byte{rig.Edited(m.plain(0), innerAt+6, pod[:]...)}, moves: true})
	m.port++
}

func (m *maker) tags() {
	for _, id := range []uint16{0, 5, 4094, 4095, 0x2005} {
		m.add("tags", fmt.Sprintf("inner %#x", id), m.Outer(packet.IPv4{}, m.Inner(packet.VLAN{ID: id}, m.IP(packet.IPv4{}), m.udp(), packet.Bytes(40))))
		m.add("tags", fmt.Sprintf("outer %#x", id), m.Wire(packet.VLAN{ID: id}, m.OuterIP(packet.IPv4{}), packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI}, packet.Raw(m.inner(packet.IPv4{}))))
	}
	m.add("tags", "two inside", m.Outer(packet.IPv4{}, m.Inner(packet.VLAN{ID: 5}, packet.VLAN{ID: 6}, m.IP(packet.IPv4{}), m.udp(), packet.Bytes(40))))
	for _, kind := range []uint16{0x0806, 0x0040, 0x05ff, 0x0600, 0x86dd, 0x8100, 0x8808, 0x88a8, 0x88b5, 0x88cc, 0x8847, 0x8863, 0x9000, 0, 0xffff} {
		at := binary.BigEndian.AppendUint16(nil, kind)
		m.add("types", fmt.Sprintf("inner %#04x", kind), rig.Edited(m.plain(0), innerAt+12, at...))
		m.add("types", fmt.Sprintf("outer %#04x", kind), rig.Edited(m.plain(0), 12, at...))
	}
	m.add("types", "ARP", m.Outer(packet.IPv4{}, m.Inner(packet.ARP{})))
}

func (m *maker) outerIP() {
	for name, p := range sorted(map[string]packet.IPv4{
		"4 bytes of options": {Options: 4}, "40 bytes of options": {Options: 40}, "do not fragment": {Dont: true}, "identification": {ID: 77},
		"a first fragment": {More: true}, "a later fragment": {Offset: 8}, "version 5": {VersionHL: 0x55}, "length of header 4": {VersionHL: 0x44},
		"length of header 15": {VersionHL: 0x4f}, "a byte too long": {LenDelta: 1}, "a byte too short": {LenDelta: -1}, "8 bytes too short": {LenDelta: -8}, "too long": {LenDelta: 1000},
		"protocol TCP": {Proto: 6}, "protocol UDP-Lite": {Proto: 136},
	}) {
		m.add("outer IP", name, m.Outer(p, m.inner(packet.IPv4{})))
	}
	for _, ttl := range []byte{0, 1, 2, 255} {
		m.add("outer IP", fmt.Sprint("TTL ", ttl), put(m.plain(0), rig.IPAt+8, rig.IPAt, ttl))
	}
	m.add("outer IP", "a wrong checksum", rig.Edited(m.plain(0), rig.IPAt+10, 1, 2))
	m.add("outer IP", "no checksum", rig.Edited(m.plain(0), rig.IPAt+10, 0, 0))
	m.add("outer IP", "the reserved bit", put(m.plain(0), rig.IPAt+6, rig.IPAt, 0x80))
	m.add("outer IP", "two fragments", rig.Fragments(m.OuterIP(packet.IPv4{}), 17, m.plain(0)[rig.OuterUDP:], func(p packet.IPv4, r packet.Raw) []byte { return m.Wire(p, r) })...)
}

func (m *maker) outerUDP() {
	length := func(n int) []byte {
		f := m.plain(0)
		binary.BigEndian.PutUint16(f[rig.OuterUDP+4:], uint16(n))
		return f
	}
	whole := len(m.plain(0)) - rig.OuterUDP
	for _, n := range []int{0, 1, 7, 8, 16, 17, whole - 8, whole - 1, whole + 1, 0xffff} {
		m.add("outer UDP", fmt.Sprintf("length %+d", n-whole), length(n))
	}
	for _, port := range []uint16{0, 1, bed.TunnelPort, 65535} {
		m.add("outer UDP", fmt.Sprint("from port ", port), rig.Edited(m.plain(0), rig.OuterUDP, binary.BigEndian.AppendUint16(nil, port)...))
	}
	m.add("outer UDP", "to another port", rig.Edited(m.plain(0), rig.OuterUDP+2, 0, 99))
}

func (m *maker) tunnel() {
	for bit := range 8 {
		m.add("tunnel header", fmt.Sprintf("flags %#02x", 0x08^1<<bit), rig.Edited(m.plain(0), rig.OuterUDP+8, 0x08^1<<bit))
	}
	for _, at := range []int{1, 2, 3, 7} {
		m.add("tunnel header", fmt.Sprint("reserved byte ", at), rig.Edited(m.plain(0), rig.OuterUDP+8+at, 1))
		m.add("tunnel header", fmt.Sprint("reserved byte, high bit, ", at), rig.Edited(m.plain(0), rig.OuterUDP+8+at, 0x80))
	}
	for _, vni := range []uint32{0, bed.VNI - 1, bed.VNI + 1, bed.VNI << 8, 0xffffff} {
		m.add("tunnel header", fmt.Sprint("network ", vni), rig.Edited(m.plain(0), rig.OuterUDP+12, byte(vni>>16), byte(vni>>8), byte(vni)))
	}
}

func (m *maker) innerIP() {
	for name, p := range sorted(map[string]packet.IPv4{
		"4 bytes of options": {Options: 4}, "40 bytes of options": {Options: 40}, "do not fragment": {Dont: true}, "identification": {ID: 77},
		"a first fragment": {More: true}, "a later fragment": {Offset: 8}, "version 5": {VersionHL: 0x55}, "length of header 4": {VersionHL: 0x44},
		"length of header 15": {VersionHL: 0x4f}, "a byte too long": {LenDelta: 1}, "a byte too short": {LenDelta: -1}, "8 bytes too short": {LenDelta: -8}, "too long": {LenDelta: 1000},
		"protocol TCP": {Proto: 6}, "protocol UDP-Lite": {Proto: 136}, "ICMP": {Proto: 1}, "SCTP": {Proto: 132}, "OSPF": {Proto: 89}, "protocol 255": {Proto: 255},
	}) {
		m.add("inner IP", name, m.Outer(packet.IPv4{}, m.inner(p)))
	}
	for _, ttl := range []byte{0, 1, 2, 255} {
		m.add("inner IP", fmt.Sprint("TTL ", ttl), put(m.plain(0), innerIPAt+8, innerIPAt, ttl))
	}
	m.add("inner IP", "a wrong checksum", rig.Edited(m.plain(0), innerIPAt+10, 1, 2))
	m.add("inner IP", "no checksum", rig.Edited(m.plain(0), innerIPAt+10, 0, 0))
	m.add("inner IP", "a wrong checksum beside an outer one", rig.SumUDP(rig.Edited(m.plain(0), innerIPAt+10, 1, 2), rig.IPAt))
	m.add("inner IP", "the reserved bit", put(m.plain(0), innerIPAt+6, innerIPAt, 0x80))
	m.add("inner IP", "two fragments", rig.Fragments(m.IP(packet.IPv4{}), 17, m.plain(0)[innerUDP:], func(p packet.IPv4, r packet.Raw) []byte {
		return m.Outer(packet.IPv4{}, m.Inner(p, r))
	})...)
	m.add("inner IP", "TCP", m.Outer(packet.IPv4{}, m.Inner(m.IP(packet.IPv4{}), packet.TCP{Src: m.port, Dst: 99}, packet.Bytes(40))))
}

func (m *maker) innerUDP() {
	whole := len(m.plain(0)) - innerUDP
	for _, n := range []int{0, 1, 7, 8, whole - 8, whole - 1, whole + 1, 0xffff} {
		f := m.plain(0)
		binary.BigEndian.PutUint16(f[innerUDP+4:], uint16(n))
		m.add("inner UDP", fmt.Sprintf("length %+d", n-whole), f)
	}
	for _, port := range []uint16{0, 1, 65535} {
		m.add("inner UDP", fmt.Sprint("from port ", port), rig.Edited(m.plain(0), innerUDP, binary.BigEndian.AppendUint16(nil, port)...))
		m.add("inner UDP", fmt.Sprint("to port ", port), rig.Edited(m.plain(0), innerUDP+2, binary.BigEndian.AppendUint16(nil, port)...))
	}
	// Checksums, within and without: none, right, wrong.
	sums := []string{"no", "a right", "a wrong"}
	of := func(f []byte, at int, how int) []byte {
		if how == 0 {
			return f
		}
		f = rig.SumUDP(f, at)
		if how == 2 {
			f[at+20+6] ^= 1
		}
		return f
	}
	for inner, in := range sums {
		for outer, out := range sums {
			m.add("checksums", fmt.Sprintf("%s inner, %s outer", in, out), of(of(m.plain(0), innerIPAt, inner), rig.IPAt, outer))
		}
	}
	f := rig.SumUDP(rig.SumUDP(m.plain(0), innerIPAt), rig.IPAt)
	f[len(f)-2] ^= 1
	m.add("checksums", "the payload is not what was sent", f)
}

func (m *maker) lengths() {
	for _, n := range []int{0, 1, 2, 17, 18, 19, 20, 63, 64, 65, 511, 512, 1000, 1371, 1372, 1373, 1399, 1400, bed.OverlayMTU - 28} {
		m.add("lengths", fmt.Sprintf("%d bytes", n), m.Outer(packet.IPv4{}, m.Inner(m.IP(packet.IPv4{}), m.udp(), packet.Bytes(n))))
	}
	for _, n := range []int{1, 2, 6, 18, 46} {
		m.add("lengths", fmt.Sprintf("%d bytes behind the frame", n), append(m.plain(0), make([]byte, n)...))
		m.add("lengths", fmt.Sprintf("%d bytes behind the inner frame", n), m.Outer(packet.IPv4{}, append(m.inner(packet.IPv4{}), make([]byte, n)...)))
	}
	f := m.plain(0)
	for n := rig.EthLen; n < len(f); n += 3 {
		m.add("lengths", fmt.Sprintf("cut to %d", n), f[:n:n])
		m.add("lengths", fmt.Sprintf("cut to %d, and the outer lengths with it", n), fixed(f[:n:n]))
	}
}

// fixed is a frame with outer lengths and a header checksum that are right.
func fixed(f []byte) []byte {
	f = packet.Truthful(f)
	if len(f) >= rig.OuterUDP && f[12] == 8 && f[13] == 0 {
		f = sum(f, rig.IPAt)
	}
	return f
}

func (m *maker) innerIPv6() {
	v6 := func(p packet.IPv6, more ...packet.Layer) []byte {
		return m.Outer(packet.IPv4{}, m.Inner(slices.Concat([]packet.Layer{p}, more, []packet.Layer{m.udp(), packet.Bytes(40)})...))
	}
	m.add("inner IPv6", "no checksum", v6(packet.IPv6{}))
	for name, p := range sorted(map[string]packet.IPv6{"a byte too long": {LenDelta: 1}, "a byte too short": {LenDelta: -1}, "version 5": {Version: 5}, "TCP": {Next: 6}, "ICMPv6": {Next: 58}, "nothing behind": {Next: 59}}) {
		m.add("inner IPv6", name, v6(p))
	}
	m.add("inner IPv6", "hop by hop", v6(packet.IPv6{}, packet.Extension{Kind: 0}))
	m.add("inner IPv6", "destination options", v6(packet.IPv6{}, packet.Extension{Kind: 60}))
	m.add("inner IPv6", "routing", v6(packet.IPv6{}, packet.Extension{Kind: 43}))
	m.add("inner IPv6", "a first fragment", v6(packet.IPv6{}, packet.Fragment{More: true, ID: 7}))
	m.add("inner IPv6", "a later fragment", v6(packet.IPv6{}, packet.Fragment{Offset: 64, ID: 7, Next: 17}))
	m.add("inner IPv6", "a fragment that is all", v6(packet.IPv6{}, packet.Fragment{ID: 8}))
	for _, hops := range []byte{0, 1, 255} {
		m.add("inner IPv6", fmt.Sprint("hop limit ", hops), rig.Edited(v6(packet.IPv6{}), innerIPAt+7, hops))
	}
	m.add("inner IPv6", "flow label", rig.Edited(v6(packet.IPv6{}), innerIPAt+1, 1, 2, 3))
}

// senders are what a tunnel that learns, and was told of the sender, takes from which host.
func (m *maker) senders() {
	from := func(host byte, f []byte) []byte {
		ip := m.Bed.Sender().IP.As4()
		ip[3] += host
		return put(f, rig.IPAt+12, rig.IPAt, ip[:]...)
	}
	unknown := func(number byte) []byte { return rig.Edited(m.plain(number), innerAt+6, 2, 9, 9, 9, 9, 9) }
	m.add("senders", "a known one from another host", from(7, m.plain(1)), from(7, m.plain(2)), from(7, m.plain(3)))
	lonely := func(number byte) []byte { return rig.Edited(m.plain(number), innerAt+6, lonelyMAC...) }
	m.add("senders", "a known one that is silent, from another host", from(7, lonely(1)), from(7, lonely(2)))
	m.add("senders", "a known one from two hosts", m.plain(0), from(7, m.plain(1)), m.plain(2), from(7, m.plain(3)), m.plain(4))
	m.add("senders", "an unknown one", unknown(0), unknown(1), unknown(2))
	m.add("senders", "an unknown one from two hosts", unknown(0), from(7, unknown(1)), unknown(2), from(7, unknown(3)))
}

// lonelyMAC is a sender that the tunnel was told of, and that sends nothing by itself.
var lonelyMAC = []byte{2, 9, 9, 9, 9, 1}

// mutants are frames of the base kinds with bytes changed at random, always the same ones.
func mutants(c *rig.Crate, n int) (list [][]byte) {
	m := &maker{Crate: c, port: mutePort}
	rnd := rand.New(rand.NewPCG(1, 2))
	base := []func() []byte{
		func() []byte { return m.plain(0) },
		func() []byte { return rig.SumUDP(m.plain(0), rig.IPAt) },
		func() []byte { return rig.SumUDP(rig.SumUDP(m.plain(0), innerIPAt), rig.IPAt) },
		func() []byte { return m.Outer(packet.IPv4{}, m.Inner(packet.IPv6{}, m.udp(), packet.Bytes(40))) },
		func() []byte {
			return m.Outer(packet.IPv4{}, m.Inner(m.IP(packet.IPv4{}), packet.TCP{Src: m.port, Dst: 99}, packet.Bytes(40)))
		},
	}
	for len(list) < n {
		f := table.Mutate(rnd, base[rnd.IntN(len(base))]())
		switch rnd.IntN(3) {
		case 0:
			f = fixed(f)
		case 1: // as a tunnel would send it: the inner header's checksum right, too
			if f = fixed(f); len(f) >= innerUDP && f[innerIPAt] == 0x45 {
				f = sum(f, innerIPAt)
			}
		}
		if len(f) >= rig.EthLen && len(f) <= bed.WireMTU+rig.EthLen && !moves(c, f) {
			list = append(list, f)
			m.port++
		}
	}
	return list
}

// moves tells whether the bridge may take a pod for being elsewhere after a frame.
func moves(c *rig.Crate, f []byte) bool {
	return slices.ContainsFunc(c.Bed.Receiver().Pods, func(p bed.Pod) bool {
		return len(f) >= innerIPAt && slices.Equal(f[innerAt+6:innerAt+12], p.MAC[:])
	})
}
