// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"io"
	"os"
	"testing"
)

// allowed is how long cores may take to wake now, in us.
func allowed(t *testing.T) int32 {
	t.Helper()
	f, err := os.Open(dmaLatency)
	if err != nil {
		t.Skipf("needs %s: %v", dmaLatency, err)
	}
	defer f.Close()
	var b [4]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		t.Fatal(err)
	}
	return int32(binary.NativeEndian.Uint32(b[:]))
}

func TestCoresStayAwakeUntilDone(t *testing.T) {
	before := allowed(t)
	done, err := StayAwake()
	if err != nil {
		t.Fatal(err)
	}
	if is := allowed(t); is != 0 {
		t.Errorf("cores may take %d us to wake", is)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if is := allowed(t); is != before {
		t.Errorf("cores may take %d us to wake after the end, %d before", is, before)
	}
}
