// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"maps"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestUserTicksAreThoseOfPrograms(t *testing.T) {
	const stat = "cpu  5311290 4532 2003225 5928054 16467 0 607964 3561 0 0\ncpu0 100 20 3000 0 0 0 0 0 0 0\ncpu12 7 0 1 2 3 4 5 6 7 8\nintr 3 4\n"
	got, err := userTicks([]byte(stat))
	if want := map[int]uint64{0: 120, 12: 7}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := userTicks([]byte("cpu0 many few 1\n")); err == nil {
		t.Errorf("nonsense is read as %v", got)
	}
	is, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := userTicks(is); err != nil || len(got) < runtime.NumCPU() {
		t.Errorf("here: %v, %v", got, err)
	}
}

// A thread that runs all the time takes all that it gets of a core, one that sleeps nothing.
func TestPollingIsWhatThreadsTake(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var r realtime
	me := map[int]int{unix.Gettid(): 0}
	took := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	begun := time.Unix(1000, 0)
	if got := r.polling(begun, me); got != 0 {
		t.Errorf("at the first look: %v", got)
	}
	before := took()
	for took() < before+20*time.Millisecond {
	}
	if got := r.polling(begun.Add(40*time.Millisecond), me); got < 0.5 || got > 0.6 {
		t.Errorf("20 of 40 ms are %v", got)
	}
	if got := r.polling(begun.Add(time.Hour), me); got > 0.001 {
		t.Errorf("nothing of an hour is %v", got)
	}
}
