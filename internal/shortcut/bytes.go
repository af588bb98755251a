// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// The lengths of headers: a tunnel's is that of VXLAN, and of Geneve without options.
const (
	udpHeader    = 8
	tunnelHeader = 8
)

// seesBytes evaluates a match that goes by bytes of packets. tells says whether it would tell datagrams like these from
// each other that are joined.
func seesBytes(name string, of packets, tells func(frame) bool) []Sees {
	sees := false
	for _, f := range datagrams(false) {
		if version := int(f.bytes[0].value >> 4); of.version != 0 && of.version != version || !tells(f) {
			continue
		}
		sees = true
		for i := range tunnelHeader {
			f.bytes[f.ports+udpHeader+i].same = true
		}
		if tells(f) {
			of.port = 0
		}
	}
	if !sees {
		return nil
	}
	return []Sees{{Port: of.port, What: "bytes of the packet that are not the same in joined datagrams (-m " + name + ")"}}
}

// Of linux/netfilter/xt_u32.h.
const (
	u32And = iota
	u32LeftShift
	u32RightShift
	u32At

	u32Locations = 11 // in each of as many tests
	sizeofU32    = 8  // struct xt_u32_location_element, and xt_u32_value_element
	sizeofTest   = 2*u32Locations*sizeofU32 + 4
)

// u32Tells follows the tests of a match u32 (struct xt_u32).
func u32Tells(info []byte, f frame) bool {
	if len(info) < u32Locations*sizeofTest+1 {
		return true
	}
	for n := range min(int(info[u32Locations*sizeofTest]), u32Locations) {
		test := info[n*sizeofTest:]
		at, v := 0, bits{}
		for i := range max(1, min(int(test[sizeofTest-4]), u32Locations)) {
			number, op := nlsock.U32(test[i*sizeofU32:]), test[i*sizeofU32+4]
			by := map[byte]uint16{u32And: unix.BPF_AND, u32LeftShift: unix.BPF_LSH, u32RightShift: unix.BPF_RSH}
			switch {
			case i > 0 && op > u32At:
				return true
			case i > 0 && op < u32At:
				v = alu(unix.SockFilter{Code: by[op], K: number}, state{a: v})
				continue
			case i > 0 && v.known != ^uint32(0):
				return true // it may be anywhere
			}
			// What is read first begins where the packet does, and what follows where the value before says.
			if at += int(v.value); at > len(f.bytes) || number > uint32(len(f.bytes)) {
				return true
			}
			v = f.load(at+int(number), 4)
		}
		if v.varies != 0 {
			return true
		}
	}
	return false
}

// filterTells follows the program of a match bpf (struct xt_bpf_info, and _v1). What is no classic one is not followed.
func filterTells(rev uint8, info []byte, f frame) bool {
	at, count := 4, 0
	if rev == 1 {
		at, count = 8, 2
	}
	if rev > 1 || len(info) < at || rev == 1 && binary.NativeEndian.Uint16(info) != 0 {
		return true
	}
	n := int(binary.NativeEndian.Uint16(info[count:])) * unix.SizeofSockFilter
	if n == 0 || at+n > len(info) {
		return true
	}
	r := run{filter: parseFilter(info[at : at+n]), frame: f, steps: new(int), joined: true}
	return r.accepts(0, state{})
}
