// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A thread that stays on its core counts while it does, and not only once it is switched, also where the clock is
// told of it when it is there already.
func TestCPUClockCountsWhatGoesOn(t *testing.T) {
	for name, late := range map[string]bool{"before": false, "while it runs": true} {
		t.Run(name, func(t *testing.T) { countsWhatGoesOn(t, late) })
	}
}

func countsWhatGoesOn(t *testing.T, late bool) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	clock, err := NewCPUClock()
	if err != nil {
		t.Fatal(err)
	}
	defer clock.Close()
	begin := make(chan struct{})
	var runs, stop atomic.Bool
	// In real time, so that no other thread takes its core.
	spins, err := startThread(loopback(t), 0, urgent, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		<-begin
		for runs.Store(true); !stop.Load(); {
			// Each is received in a softirq of this thread's; no socket takes it.
			_ = unix.Sendto(fd, nil, 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
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
	tell := func() { err = clock.SetThreads([]int{spins.tid}) }
	if !late {
		tell()
	}
	close(begin)
	for !runs.Load() {
	}
	if late {
		tell()
	}
	if err != nil {
		t.Fatal(err)
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
