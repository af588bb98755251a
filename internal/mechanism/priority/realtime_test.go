// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
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

// A thread that another mechanism has bound, or has out of real time, is none of priority's.
func TestThreadsOfAnotherMechanismAreNotPrioritys(t *testing.T) {
	entry := func(by plan.Owner, pid int, core int) apply.Entry {
		id, bound := plan.ThreadID{PID: pid, Start: 1, Comm: "napi/eth0-1"}, plan.Sched{Policy: "other", Cores: []int{core}}
		return apply.Entry{Setting: plan.Thread(plan.Target{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}, id), By: by, Wrote: bound.String()}
	}
	journal := []apply.Entry{entry(plan.ByPipeline, 7, 0), entry(plan.ByPriority, 8, 1)}
	if got := boundThreads(journal); len(got) != 1 || got[0].pid != 8 {
		t.Errorf("bound by priority: %+v", got)
	}
	if got := notInRealtime(journal); !slices.Equal(got, []int{1}) {
		t.Errorf("not in real time, by priority: cores %v", got)
	}
}
