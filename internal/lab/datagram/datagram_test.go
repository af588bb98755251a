// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"errors"
	"testing"
)

func TestWhatIsPutIsParsed(t *testing.T) {
	for _, size := range []int{MinSize, StampedSize, 200} {
		for _, seq := range []uint64{0, 1, 1<<32 - 1, 1 << 63, 1<<64 - 1} {
			p := make([]byte, size)
			Put(p, 77, seq, 1<<40+3)
			flow, s, when, err := Parse(p)
			want := uint64(1<<40 + 3)
			if size < StampedSize {
				want = 0
			}
			if err != nil || flow != 77 || s != seq || when != want {
				t.Errorf("%d bytes, seq %d: got %d %d %d %v", size, seq, flow, s, when, err)
			}
			p[9] ^= 0x10
			if _, _, _, err := Parse(p); !errors.Is(err, ErrAlien) {
				t.Errorf("%d bytes, seq %d: a changed number is not noticed: %v", size, seq, err)
			}
		}
	}
}

func TestAChangeOfAnyFilledByteIsNoticed(t *testing.T) {
	p := make([]byte, 64)
	PutFilled(p, 3, 77)
	if flow, seq, when, err := Parse(p); err != nil || flow != 3 || seq != 77 || when != 0 {
		t.Errorf("got %d %d %d %v", flow, seq, when, err)
	}
	for i := range p {
		if i == 4 || i == 5 {
			continue // the flow: for UDP's checksum to notice
		}
		p[i] ^= 0x10
		if _, _, _, err := Parse(p); !errors.Is(err, ErrAlien) {
			t.Errorf("byte %d was changed: %v", i, err)
		}
		p[i] ^= 0x10
	}
}
