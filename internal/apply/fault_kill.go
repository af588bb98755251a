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
// SIGKILL at the n-th fault point that it passes, counted from 1,
// OVERLANE_PANIC=n makes it panic there, and OVERLANE_STARVE=n has it find no
// more memory.
func init() {
	var passed atomic.Int64
	kill, panics, starves := number("OVERLANE_FAULT"), number("OVERLANE_PANIC"), number("OVERLANE_STARVE")
	if kill+panics+starves == 0 {
		return
	}
	fault = func(point string) {
		switch passed.Add(1) {
		case kill:
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case panics:
			panic("a fault at " + point)
		case starves:
			starve()
		}
	}
}

// starve takes all the memory that this process may have, which becomes what it has.
func starve() {
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{}); err != nil {
		panic(err)
	}
	for all := [][]byte{}; ; {
		all = append(all, make([]byte, 1<<20))
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
