// SPDX-License-Identifier: Apache-2.0

package table

import (
	"math/rand/v2"
	"slices"
)

// Mutate returns a frame with some bytes changed, cut off, inserted or added.
// Bytes in the headers are preferred.
func Mutate(rnd *rand.Rand, frame []byte) []byte {
	f := slices.Clone(frame)
	for range rnd.IntN(4) {
		if len(f) == 0 {
			return f
		}
		at := rnd.IntN(min(len(f), 160))
		switch rnd.IntN(8) {
		case 0:
			f[at] = byte(rnd.Uint32())
		case 1:
			f[at] ^= 1 << rnd.IntN(8)
		case 2:
			f[at] += byte(rnd.IntN(5) - 2)
		case 3:
			f[at] = []byte{0, 1, 0x08, 0x40, 0x45, 0x60, 0x80, 0xff}[rnd.IntN(8)]
		case 4:
			f = f[:at]
		case 5:
			f = f[:len(f)-rnd.IntN(min(len(f), 40))]
		case 6:
			f = append(f, make([]byte, rnd.IntN(40))...)
		case 7:
			f = slices.Insert(f, at, byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32()))
		}
	}
	return f
}
