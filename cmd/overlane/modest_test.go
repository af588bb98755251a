// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads have the slack, those that come later, too; and how many cores are used is what
// the operator asks for, or one.
func TestThreadsAreModest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: sets other threads' timer slack")
	}
	procs := runtime.GOMAXPROCS(3)
	defer runtime.GOMAXPROCS(procs)
	t.Setenv("GOMAXPROCS", "3")
	if err := beModest(); err != nil {
		t.Fatal(err)
	}
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("%d cores, 3 were asked for", got)
	}
	t.Setenv("GOMAXPROCS", "")
	if err := beModest(); err != nil {
		t.Fatal(err)
	}
	if got := runtime.GOMAXPROCS(0); got != 1 {
		t.Errorf("%d cores, 1 is modest", got)
	}
	later := make(chan int)
	go func() {
		runtime.LockOSThread() // of which the runtime has to make another
		later <- unix.Gettid()
		later <- 0
	}()
	tid := <-later
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	seen := false
	for _, th := range threads {
		b, err := os.ReadFile("/proc/" + th.Name() + "/timerslack_ns")
		if err != nil {
			continue // has ended
		}
		seen = seen || th.Name() == fmt.Sprint(tid)
		if got, want := strings.TrimSpace(string(b)), fmt.Sprint(slack.Nanoseconds()); got != want {
			t.Errorf("thread %s: %s ns, not %s", th.Name(), got, want)
		}
	}
	if !seen {
		t.Errorf("thread %d was not checked", tid)
	}
	<-later
}
