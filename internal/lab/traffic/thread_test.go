// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A cgroup without a budget for real time is what most containers are in, where the kernel has such budgets.
func TestUrgentThreadsWhereRealTimeIsRefused(t *testing.T) {
	const budgets = "/sys/fs/cgroup/cpu"
	if _, err := os.Stat(budgets + "/cpu.rt_runtime_us"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and cgroups of version 1 with budgets for real time")
	}
	dir, err := os.MkdirTemp(budgets, "overlane-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}()
	var attr *unix.SchedAttr
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with what it was given
		tid := []byte(strconv.Itoa(unix.Gettid()))
		err := os.WriteFile(filepath.Join(dir, "tasks"), tid, 0)
		if err == nil {
			err = inherit(nil, urgent)
		}
		if err == nil {
			attr, err = unix.SchedGetAttr(0, 0)
		}
		if back := os.WriteFile(budgets+"/tasks", tid, 0); err == nil {
			err = back // the folder goes when it is empty
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if attr.Policy != unix.SCHED_NORMAL || attr.Nice != -20 {
		t.Errorf("policy %d, nice %d; want %d and -20", attr.Policy, attr.Nice, unix.SCHED_NORMAL)
	}
}
