// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"slices"
)

// Truthful returns a frame whose outer IP and UDP lengths are those of what is
// there, as far as these headers are.
func Truthful(frame []byte) []byte {
	f := slices.Clone(frame)
	if len(f) < 14+20 {
		return f
	}
	udp := 0
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0800:
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
		udp = 14 + 20
	case 0x86dd:
		if len(f) < 14+40 {
			return f
		}
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-14-40))
		udp = 14 + 40
	}
	if udp > 0 && len(f) >= udp+8 {
		binary.BigEndian.PutUint16(f[udp+4:], uint16(len(f)-udp))
	}
	return f
}
