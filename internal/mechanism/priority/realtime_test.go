// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/plan"
)

// A thread that runs all the time takes all that it gets of a core, one that sleeps nothing.
func TestPollingIsWhatThreadsTake(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var r realtime
	me := []thread{{unix.Gettid(), plan.Sched{Cores: []int{0}}}}
	took := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	begun, first := time.Unix(1000, 0), took()
	if got := r.polling(begun, me)[0]; got != 0 {
		t.Errorf("at the first poll: %v", got)
	}
	before := took()
	for took() < before+20*time.Millisecond {
	}
	got, most := r.polling(begun.Add(40*time.Millisecond), me)[0], float64(took()-first)/float64(40*time.Millisecond)
	if got < 0.5 || got > most {
		t.Errorf("20 of 40 ms, and at most %v, are %v", most, got)
	}
	if got := r.polling(begun.Add(time.Hour), me)[0]; got > 0.001 {
		t.Errorf("nothing of an hour is %v", got)
	}
	// Two on one core take as much as both.
	var two realtime
	both := append(me, thread{unix.Getpid(), plan.Sched{Cores: []int{0}}})
	two.polling(begun, both)
	for pid := range two.ran {
		two.ran[pid] -= 300 * time.Millisecond
	}
	want := 0.3 * float64(len(two.ran)) // of one, where this is the process's first thread
	if got := two.polling(begun.Add(time.Second), both)[0]; got < want {
		t.Errorf("300 ms of a second, %d times, are %v", len(two.ran), got)
	}
}
