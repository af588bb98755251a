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
		if r := (run{filter, frame, steps}); r.accepts(0, state{}) {
			return true
		}
	}
	return false
}

const etherHeader = 14

// bits are a value of which only some bits are known.
type bits struct {
	known, value uint32
	port         bool // it is one of UDP's ports, and nothing else
}

func exactly(v uint32) bits { return bits{known: ^uint32(0), value: v} }

// partly is a byte of a frame.
type partly struct{ known, value byte }

// frame is what is known of a packet, by byte; what is beyond is not known.
type frame struct {
	bytes []partly
	net   int // where IP's header is
	ports int // where UDP's ports are
	ether uint32
}

// datagrams are those that there are, of both versions of IP and all kinds of Ethernet addresses.
func datagrams(linkLayer bool) (list []frame) {
	addresses := [][]partly{
		{{1, 0}}, // unicast: this bit is off
		{{255, 0x01}, {255, 0x00}, {255, 0x5e}},
		{{255, 0x33}, {255, 0x33}},
		{{255, 255}, {255, 255}, {255, 255}, {255, 255}, {255, 255}, {255, 255}},
	}
	if !linkLayer {
		addresses = addresses[:1]
	}
	for _, mac := range addresses {
		for _, v6 := range []bool{false, true} {
			f := frame{bytes: make([]partly, 96)}
			put := func(at int, b ...byte) {
				for i, v := range b {
					f.bytes[at+i] = partly{255, v}
				}
			}
			f.ether = unix.ETH_P_IP
			if v6 {
				f.ether = unix.ETH_P_IPV6
			}
			if linkLayer {
				copy(f.bytes, mac)
				put(12, byte(f.ether>>8), byte(f.ether))
				f.net = etherHeader
			}
			if v6 {
				f.bytes[f.net] = partly{0xf0, 0x60}
				put(f.net+6, unix.IPPROTO_UDP)
				f.ports = f.net + 40
			} else {
				put(f.net, 0x45)
				f.bytes[f.net+6] = partly{0x3f, 0} // whole; DF may be on
				put(f.net+7, 0)
				put(f.net+9, unix.IPPROTO_UDP)
				f.ports = f.net + 20
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
}

// maxSteps bounds what a namespace's filters take together, some 10 ms: one that is not followed to its end may accept
// anything.
const maxSteps = 1 << 18

// dhcp are the ports of DHCP, of both versions.
var dhcp = []uint32{67, 68, 546, 547}

// accepts tells whether the filter may, from one instruction on. Jumps only go forward.
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
			if in.Code&0x18 == unix.BPF_A {
				return s.a.known != ^uint32(0) || s.a.value != 0
			}
			return in.K != 0
		case unix.BPF_JMP:
			if in.Code&0xf0 == unix.BPF_JA {
				pc += int(in.K)
				continue
			}
			yes, no := branches(in, s)
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
		return bits{}
	case unix.BPF_IND:
		if s.x.known != ^uint32(0) {
			return bits{}
		}
		return r.frame.load(int(s.x.value)+k, size)
	case unix.BPF_ABS:
		switch {
		case k >= 0:
			return r.frame.load(k, size)
		case k == skfAd: // SKF_AD_PROTOCOL is 0
			return exactly(r.frame.ether)
		case k >= skfNet && k < skfAd:
			return r.frame.load(r.frame.net+k-skfNet, size)
		case k >= skfLL && k < skfNet && r.frame.net > 0:
			return r.frame.load(k-skfLL, size)
		}
	}
	return bits{}
}

func alu(in unix.SockFilter, s state) bits {
	by := exactly(in.K)
	if in.Code&unix.BPF_X != 0 {
		by = s.x
	}
	a, all := s.a, ^uint32(0)
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
	by := exactly(in.K)
	if in.Code&unix.BPF_X != 0 {
		by = s.x
	}
	a := s.a
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
