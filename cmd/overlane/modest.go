// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// slack is by how much the kernel may be late to wake a thread of the daemon's. Nothing here is due
// by less, and the default, 50 us, costs: Go's runtime has a thread that wakes each 20 us for as
// long as any other is at work or waits in a system call, to see whether one of them is to be helped.
// Beside a saturated core that was a third of all that the daemon took.
const slack = time.Millisecond

// beModest has this process take less time from the cores that packets need. It runs on one core at
// a time, which spares it to wake threads that find nothing to do, and garbage collection of a
// quarter of all cores of a large node; an operator that wants it otherwise sets GOMAXPROCS. And its threads
// are woken when it suits the kernel; those that they start inherit that.
func beModest() error {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	return privilege.With(unix.CAP_SYS_NICE, func() error {
		for _, t := range threads {
			// A thread has no such file in its process's directory, but in one of its own.
			err := os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", strconv.AppendInt(nil, int64(slack), 10), 0)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set timer slack: %w", err)
			}
		}
		return nil
	})
}
