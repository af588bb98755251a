// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread that stays on its core counts while it does, and not only once it is switched.
func TestCPUClockCountsWhatGoesOn(t *testing.T) {
	clock, err := NewCPUClock()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.Close()
	begin := make(chan struct{})
	var runs, stop atomic.Bool
	// In real time, so that no other thread takes its core.
	spins, err := startThread(loopback(t), 0, urgent, func() error {
		<-begin
		for runs.Store(true); !stop.Load(); {
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop.Store(true)
		if err := <-spins.done; err != nil {
			t.Error(err)
		}
	}()
	err = clock.SetThreads([]int{spins.tid})
	close(begin)
	if err != nil {
		t.Fatal(err)
	}
	for !runs.Load() {
	}
	before, err := clock.Read()
	if err != nil {
		t.Fatal(err)
	}
	const took = 20 * time.Millisecond
	for was := threadTime(t, spins.tid); threadTime(t, spins.tid)-was < took; {
	}
	after, err := clock.Read()
	if err != nil {
		t.Fatal(err)
	}
	if got := after.Since(before).Cores[0]; got < took*9/10 {
		t.Errorf("a thread ran for %s: %s were counted", took, got)
	}
}

// threadTime is the CPU time of another thread.
func threadTime(t *testing.T, tid int) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^tid<<3|6), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}
