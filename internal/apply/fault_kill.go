// SPDX-License-Identifier: Apache-2.0

//go:build faults

package apply

import (
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// With the build tag "faults", OVERLANE_FAULT=n kills the process with
// SIGKILL at the n-th fault point that it passes, counted from 1. The
// variable is taken out of the environment: the guardian does not inherit it.
func init() {
	n, err := strconv.ParseInt(os.Getenv("OVERLANE_FAULT"), 10, 64)
	if err != nil {
		return
	}
	os.Unsetenv("OVERLANE_FAULT")
	var passed atomic.Int64
	fault = func(string) {
		if passed.Add(1) == n {
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
}
