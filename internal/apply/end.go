// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Ended is a holder of the lock that was ended.
type Ended struct {
	PID int
	// Killed: SIGTERM was not enough.
	Killed bool
}

// termWait is how long a holder may take to end after SIGTERM: flows get a second to leave their lanes.
const termWait = 3 * time.Second

// EndHolder ends the process that holds the lock of a namespace and does not answer. What it has changed is
// restored afterwards, by its guardian or with RestoreLeft. The process is told by what refers to it, not to
// its number: no other one can be hit. A PID of 0 says that it has ended by itself.
func EndHolder(stateDir string, cookie uint64) (Ended, error) {
	d, err := Open(stateDir, cookie)
	if err != nil {
		return Ended{}, err
	}
	defer d.Close()
	pid := d.Holder()
	if pid == 0 {
		return Ended{}, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return Ended{}, nil
	}
	if err != nil {
		return Ended{}, fmt.Errorf("end the daemon with pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	// Only now: before there was the descriptor, the number could become another process's.
	if has, err := d.hasOpen(pid); err != nil || !has {
		return Ended{}, err
	}
	ended := Ended{PID: pid}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		ended.Killed = sig == unix.SIGKILL
		err := unix.PidfdSendSignal(fd, sig, nil, 0)
		if errors.Is(err, unix.ESRCH) {
			return ended, nil
		}
		if err != nil {
			return Ended{}, fmt.Errorf("end the daemon with pid %d: %w", pid, err)
		}
		if gone, err := waitFor(fd, termWait); err != nil || gone {
			return ended, err
		}
	}
	return Ended{}, fmt.Errorf("the daemon with pid %d does not end, not even by SIGKILL: the kernel holds it (see /proc/%d/stack)", pid, pid)
}

// hasOpen tells whether a process has the lock's file open.
func (d *Dir) hasOpen(pid int) (bool, error) {
	var lock, st unix.Stat_t
	if err := unix.Stat(d.path+"/"+lockName, &lock); err != nil {
		return false, fmt.Errorf("look for the lock's holder: %w", err)
	}
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return false, fmt.Errorf("look for the lock's holder: %w", err)
	}
	tail := "/" + strconv.FormatUint(d.cookie, 10) + "/" + lockName
	for _, fd := range fds {
		to, err := os.Readlink(dir + fd.Name())
		if err == nil && strings.HasSuffix(to, tail) && unix.Stat(dir+fd.Name(), &st) == nil && st.Dev == lock.Dev && st.Ino == lock.Ino {
			return true, nil
		}
	}
	return false, nil
}

// waitFor waits for the end of a process, for so long at most.
func waitFor(pidfd int, long time.Duration) (gone bool, err error) {
	for deadline := time.Now().Add(long); ; {
		left := max(0, time.Until(deadline))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n > 0 || left == 0:
			return n > 0, err
		}
	}
}
