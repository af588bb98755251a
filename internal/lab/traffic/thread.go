// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"golang.org/x/sys/unix"
)

// policy is a thread's scheduling class.
type policy uint32

const (
	normal policy = unix.SCHED_NORMAL
	// idle threads only get what no other thread wants.
	idle policy = unix.SCHED_IDLE
	// urgent ones run when they are due: a probe that waits for a core would
	// measure the scheduler.
	urgent policy = unix.SCHED_FIFO
)

// thread is a thread of this process that lives in another namespace, on one
// core. It ends with its function; nothing of its settings leaks.
type thread struct {
	tid  int
	done chan error
}

// startThread returns when fn is about to run, or could not be.
func startThread(ns *netns.Handle, core int, p policy, fn func() error) (*thread, error) {
	t := &thread{done: make(chan error, 1)}
	ready := make(chan error, 1)
	go func() {
		// Never unlocked: the runtime ends the thread with its goroutine.
		runtime.LockOSThread()
		t.tid = unix.Gettid()
		if err := t.settle(ns, core, p); err != nil {
			ready <- err
			return
		}
		ready <- nil
		t.done <- fn()
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *thread) settle(ns *netns.Handle, core int, p policy) error {
	if err := unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return inherit([]int{core}, p)
}

// inherit gives the calling thread, and the programs that it starts, cores and
// a policy.
func inherit(cores []int, p policy) error {
	if len(cores) > 0 {
		var set unix.CPUSet
		for _, c := range cores {
			set.Set(c)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin thread to cores %v: %w", cores, err)
		}
	}
	if p == normal {
		return nil // and keep what nice(1) may have set
	}
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: uint32(p)}
	if p == urgent {
		attr.Priority = 1
	}
	err := unix.SchedSetAttr(0, attr, 0)
	if p == urgent && errors.Is(err, unix.EPERM) {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: -20}, 0)
	}
	if err != nil {
		return fmt.Errorf("set scheduling policy: %w", err)
	}
	return nil
}

// RealTime tells that urgent threads are real-time ones. A kernel with CONFIG_RT_GROUP_SCHED refuses
// that to cgroups without a budget for it: there they run at nice -20.
func RealTime() bool {
	isReal := make(chan bool)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its policy
		err := inherit(nil, urgent)
		attr, told := unix.SchedGetAttr(0, 0)
		isReal <- err == nil && told == nil && attr.Policy == unix.SCHED_FIFO
	}()
	return <-isReal
}

// wait waits for its end.
func (t *thread) wait() error { return <-t.done }

// interrupt makes the thread's system call return until the thread has ended.
// One signal could come before the call begins; the Go runtime ignores SIGURG.
func (t *thread) interrupt() error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-t.done:
			return err
		case <-tick.C:
			if err := unix.Tgkill(unix.Getpid(), t.tid, unix.SIGURG); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("interrupt generator: %w", err)
			}
		}
	}
}

func monotonic() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail with this clock
	return uint64(ts.Nano())
}

// sleepUntil waits for a time of the monotonic clock.
func sleepUntil(ns uint64) {
	ts := unix.NsecToTimespec(int64(ns))
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}
