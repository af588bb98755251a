// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"golang.org/x/sys/unix"
)

// What spins takes its core's time until it is stopped, and then none.
func TestSpinnersKeepCoresBusy(t *testing.T) {
	s, err := Spin(loopback(t), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	used := func() int64 {
		var ts unix.Timespec
		// The clock of another thread's CPU time.
		if err := unix.ClockGettime(int32(^s.threads[0].tid<<3|6), &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano()
	}
	for was := used(); used() == was; {
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
}
