// SPDX-License-Identifier: Apache-2.0

//go:build faults

package apply

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// With the build tag "faults", OVERLANE_FAULT=n kills the process with
// SIGKILL at the n-th fault point that it passes, counted from 1, and
// OVERLANE_PANIC=n makes it panic there.
func init() {
	var passed atomic.Int64
	kill, panics := number("OVERLANE_FAULT"), number("OVERLANE_PANIC")
	if kill+panics == 0 {
		return
	}
	fault = func(point string) {
		switch passed.Add(1) {
		case kill:
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case panics:
			panic("a fault at " + point)
		}
	}
}

// number reads a number from the environment, and makes the variable one of this process: it may
// run this program again, to have fewer privileges, and its guardian passes points, too. 0: there
// is none, or it is another's.
func number(name string) int64 {
	count, pid, owned := strings.Cut(os.Getenv(name), "@")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || owned && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	os.Setenv(name, fmt.Sprintf("%d@%d", n, os.Getpid()))
	return n
}
