// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// mayTake tells whether a socket's classic BPF filter may accept a datagram that could be joined to
// another: UDP, whole, without options, to a unicast or multicast address, and not one of DHCP's, of
// which no two come in a row. What the filter reads besides may be anything: it is followed both ways.
//
// linkLayer: the filter sees the Ethernet header, too. steps counts to maxSteps.
func mayTake(filter []unix.SockFilter, linkLayer bool, steps *int) bool {
	for _, frame := range datagrams(linkLayer) {
		if r := (run{filter: filter, frame: frame, steps: steps}); r.accepts(0, state{}) {
			return true
		}
	}
	return false
}

const etherHeader = 14

// bits are a value of which only some bits are known.
type bits struct {
	known, value uint32
	varies       uint32 // which are not the same in datagrams that are joined
	port         bool   // it is one of UDP's ports, and nothing else
}

func exactly(v uint32) bits { return bits{known: ^uint32(0), value: v} }

// unlike are values that are not the same in datagrams that are joined.
var unlike = bits{varies: ^uint32(0)}

// partly is a byte of a frame.
type partly struct {
	known, value byte
	same         bool // in all datagrams that are joined
}

// frame is what is known of a packet, by byte; what is beyond is not known.
type frame struct {
	bytes []partly
	net   int // where IP's header is
	ports int // where UDP's ports are
	ether uint32
}

// datagrams are those that there are, of both versions of IP and all kinds of Ethernet addresses.
func datagrams(linkLayer bool) (list []frame) {
	addresses := [][]byte{nil, {0x01, 0x00, 0x5e}, {0x33, 0x33}, {255, 255, 255, 255, 255, 255}}
	if !linkLayer {
		addresses = addresses[:1]
	}
	for _, mac := range addresses {
		for _, v6 := range []bool{false, true} {
			f := frame{bytes: make([]partly, 96)}
			put := func(at int, b ...byte) {
				for i, v := range b {
					f.bytes[at+i] = partly{known: 255, value: v}
				}
			}
			f.ether = unix.ETH_P_IP
			if v6 {
				f.ether = unix.ETH_P_IPV6
			}
			if linkLayer {
				f.bytes[0].known = 1 // unicast: this bit is off
				put(0, mac...)
				put(12, byte(f.ether>>8), byte(f.ether))
				f.net = etherHeader
			}
			if v6 {
				f.bytes[f.net] = partly{known: 0xf0, value: 0x60}
				put(f.net+6, unix.IPPROTO_UDP)
				f.ports = f.net + 40
			} else {
				put(f.net, 0x45)
				f.bytes[f.net+6] = partly{known: 0x3f} // whole; DF may be on
				put(f.net+7, 0)
				put(f.net+9, unix.IPPROTO_UDP)
				f.ports = f.net + 20
			}
			differ := []int{2, 3, 4, 5, 10, 11} // IPv4's length, identification and checksum
			if v6 {
				differ = []int{4, 5}
			}
			for i := range f.ports + 4 {
				f.bytes[i].same = !slices.Contains(differ, i-f.net)
			}
			list = append(list, f)
		}
	}
	return list
}

func (f frame) load(at, size int) bits {
	if size == 2 && (at == f.ports || at == f.ports+2) {
		return bits{known: 0xffff_0000, port: true}
	}
	b := bits{known: ^uint32(0) << (8 * size)}
	for i := range size {
		var p partly
		if at+i >= 0 && at+i < len(f.bytes) {
			p = f.bytes[at+i]
		}
		shift := 8 * (size - 1 - i)
		if !p.same {
			b.varies |= 0xff << shift
		}
		b.known |= uint32(p.known) << shift
		b.value |= uint32(p.value&p.known) << shift
	}
	return b
}

// state is what a program knows.
type state struct {
	a, x bits
	mem  [16]bits
}

// run follows a filter.
type run struct {
	filter []unix.SockFilter
	frame  frame
	steps  *int
	joined bool // asked is whether it tells joined datagrams from single ones, and not whether it accepts any
}

// maxSteps bounds what a namespace's filters take together, some 10 ms: one that is not followed to its end may accept
// anything.
const maxSteps = 1 << 18

// dhcp are the ports of DHCP, of both versions.
var dhcp = []uint32{67, 68, 546, 547}

// accepts tells whether the filter may, from one instruction on, or whether it may tell joined datagrams. Jumps only go
// forward.
func (r *run) accepts(pc int, s state) bool {
	for ; pc < len(r.filter); pc++ {
		if *r.steps++; *r.steps > maxSteps {
			return true
		}
		in := r.filter[pc]
		switch in.Code & 7 {
		case unix.BPF_LD:
			s.a = r.load(in, s)
		case unix.BPF_LDX:
			s.x = r.load(in, s)
		case unix.BPF_ST:
			s.mem[in.K&15] = s.a
		case unix.BPF_STX:
			s.mem[in.K&15] = s.x
		case unix.BPF_ALU:
			s.a = alu(in, s)
		case unix.BPF_MISC:
			if in.Code&0xf8 == unix.BPF_TAX {
				s.x = s.a
			} else {
				s.a = s.x
			}
		case unix.BPF_RET:
			switch byA := in.Code&0x18 == unix.BPF_A; {
			case r.joined:
				return byA && s.a.varies != 0
			case byA:
				return s.a.known != ^uint32(0) || s.a.value != 0
			}
			return in.K != 0
		case unix.BPF_JMP:
			if in.Code&0xf0 == unix.BPF_JA {
				pc += int(in.K)
				continue
			}
			yes, no := branches(in, s)
			if r.joined && yes && no && tested(in, s) != 0 {
				return true
			}
			if yes && no && r.accepts(pc+1+int(in.Jt), s) {
				return true
			}
			if no {
				pc += int(in.Jf)
			} else {
				pc += int(in.Jt)
			}
		}
	}
	return true // no filter ends so
}

// Offsets that stand for something else (linux/filter.h).
const (
	skfAd  = -0x1000
	skfNet = -0x100000
	skfLL  = -0x200000
	// skfPayOffset is what SKF_AD_PAY_OFFSET adds to skfAd.
	skfPayOffset = 52
)

func (r *run) load(in unix.SockFilter, s state) bits {
	size := map[uint16]int{unix.BPF_W: 4, unix.BPF_H: 2, unix.BPF_B: 1}[in.Code&0x18]
	k := int(int32(in.K))
	switch in.Code & 0xe0 {
	case unix.BPF_IMM:
		return exactly(in.K)
	case unix.BPF_MEM:
		return s.mem[in.K&15]
	case unix.BPF_MSH:
		if b := r.frame.load(k, 1); b.known&0xf == 0xf {
			return exactly(4 * (b.value & 0xf))
		}
		return unlike
	case unix.BPF_IND:
		if s.x.known != ^uint32(0) {
			return unlike
		}
		return r.frame.load(int(s.x.value)+k, size)
	case unix.BPF_ABS:
		switch {
		case k >= 0:
			return r.frame.load(k, size)
		case k == skfAd: // SKF_AD_PROTOCOL is 0
			return exactly(r.frame.ether)
		case k == skfAd+skfPayOffset:
			return exactly(uint32(r.frame.ports + udpHeader))
		case k >= skfNet && k < skfAd:
			return r.frame.load(r.frame.net+k-skfNet, size)
		case k >= skfLL && k < skfNet && r.frame.net > 0:
			return r.frame.load(k-skfLL, size)
		}
	}
	return unlike
}

// operand is that of an instruction beside the accumulator.
func operand(in unix.SockFilter, s state) bits {
	if in.Code&unix.BPF_X != 0 {
		return s.x
	}
	return exactly(in.K)
}

// tested are the bits that vary of what a jump goes by.
func tested(in unix.SockFilter, s state) uint32 {
	by := operand(in, s)
	varies := s.a.varies | by.varies
	if in.Code&0xf0 == unix.BPF_JSET && by.known == ^uint32(0) {
		varies &= by.value
	}
	return varies
}

// alu computes. Of what it makes of bits that vary all may vary, but for those that are known, and those that are moved.
func alu(in unix.SockFilter, s state) bits {
	a, by := s.a, operand(in, s)
	b := compute(in, a, by)
	varies := a.varies | by.varies
	switch op := in.Code & 0xf0; {
	case varies == 0 || op == unix.BPF_AND || op == unix.BPF_OR || op == unix.BPF_XOR:
	case by.known == ^uint32(0) && by.value < 32 && op == unix.BPF_RSH:
		varies >>= by.value
	case by.known == ^uint32(0) && by.value < 32 && op == unix.BPF_LSH:
		varies <<= by.value
	default:
		varies = ^uint32(0)
	}
	b.varies = varies &^ b.known
	return b
}

func compute(in unix.SockFilter, a, by bits) bits {
	all := ^uint32(0)
	op := in.Code & 0xf0
	switch op {
	case unix.BPF_AND:
		zero := a.known&^a.value | by.known&^by.value
		return bits{known: zero | a.known&by.known, value: a.value & by.value}
	case unix.BPF_OR:
		one := a.known&a.value | by.known&by.value
		return bits{known: one | a.known&by.known, value: a.value | by.value}
	}
	if by.known != all {
		return bits{}
	}
	switch op {
	case unix.BPF_RSH:
		if by.value < 32 {
			return bits{known: a.known>>by.value | ^(all >> by.value), value: a.value >> by.value}
		}
	case unix.BPF_LSH:
		if by.value < 32 {
			return bits{known: a.known<<by.value | ^(all << by.value), value: a.value << by.value}
		}
	case unix.BPF_XOR:
		return bits{known: a.known, value: (a.value ^ by.value) & a.known}
	}
	if a.known != all {
		return bits{}
	}
	switch op {
	case unix.BPF_ADD:
		return exactly(a.value + by.value)
	case unix.BPF_SUB:
		return exactly(a.value - by.value)
	case unix.BPF_MUL:
		return exactly(a.value * by.value)
	case unix.BPF_NEG:
		return exactly(-a.value)
	}
	return bits{}
}

// branches tells which ways a jump may go.
func branches(in unix.SockFilter, s state) (yes, no bool) {
	a, by := s.a, operand(in, s)
	both := a.known & by.known
	least, most := a.value&a.known, a.value&a.known|^a.known
	switch in.Code & 0xf0 {
	case unix.BPF_JEQ:
		switch {
		case (a.value^by.value)&both != 0:
			return false, true
		case a.port && by.known == ^uint32(0) && slices.Contains(dhcp, by.value):
			return false, true
		case both == ^uint32(0):
			return true, false
		}
	case unix.BPF_JSET:
		switch {
		case a.value&by.value&both != 0:
			return true, false
		case most&(by.value|^by.known) == 0:
			return false, true
		}
	case unix.BPF_JGT, unix.BPF_JGE:
		if by.known != ^uint32(0) {
			break
		}
		holds := func(a uint32) bool { return a > by.value || a == by.value && in.Code&0xf0 == unix.BPF_JGE }
		switch {
		case holds(least):
			return true, false
		case !holds(most):
			return false, true
		}
	}
	return true, true
}

// parseFilter reads what PACKET_DIAG_FILTER has.
func parseFilter(b []byte) []unix.SockFilter {
	list := make([]unix.SockFilter, len(b)/unix.SizeofSockFilter)
	_, _ = binary.Decode(b, binary.NativeEndian, list) // b has as much
	return list
}
