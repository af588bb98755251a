// SPDX-License-Identifier: Apache-2.0

package polled

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// policy is how the calling thread is scheduled.
func policy(t *testing.T) unix.SchedAttr {
	t.Helper()
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return *a
}

// allowed is where the calling thread may run.
func allowed(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	return set
}

func last(set unix.CPUSet) int {
	core := MaxCores
	for core >= 0 && !set.IsSet(core) {
		core--
	}
	return core
}

func TestAChangeIsMadeOnItsCore(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, scheduled := allowed(t), policy(t)
	failed := errors.New("failed")
	for _, core := range []int{last(was), -1, MaxCores} {
		var there unix.CPUSet
		if err := On(core, func() error { there = allowed(t); return failed }); !errors.Is(err, failed) {
			t.Errorf("core %d: %v", core, err)
		}
		if one := core >= 0 && core < MaxCores; one && (there.Count() != 1 || !there.IsSet(core)) || !one && there != was {
			t.Errorf("core %d: made where %d are allowed", core, there.Count())
		}
		if allowed(t) != was || policy(t) != scheduled {
			t.Errorf("core %d: the thread is kept there, or in real time", core)
		}
	}
}

// A core that others take keeps nothing from being changed: what waits for it is let go elsewhere.
func TestACoreThatIsTakenHoldsUpNothing(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, scheduled := allowed(t), policy(t)
	err := on(last(was), 50*time.Millisecond, func() error {
		for begun := time.Now(); allowed(t) != was || policy(t) != scheduled; time.Sleep(time.Millisecond) { // nothing tells of it
			if time.Since(begun) > 10*time.Second {
				return errors.New("it waits for one core only")
			}
		}
		return nil
	})
	if err != nil && was.Count() > 1 {
		t.Error(err)
	}
}
