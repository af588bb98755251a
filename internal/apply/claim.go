// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// claimFile is what a daemon locks. The kernel has one sysfs for each network namespace, for all mount and
// process namespaces: all daemons meet there, and the lock ends with its process. Of its files those serve that
// only root can open: a lock on a file that all can open, or on an abstract socket's name, any user could take
// first. This one is there on each kernel, and does nothing unless something is written to it.
const claimFile = "bus/cpu/drivers_probe"

// ClaimNamespace takes the right to be the only daemon of a network namespace, whatever state directories there
// are, until the file that it returns is closed. A *BusyError names the daemon that has it.
func ClaimNamespace(home *netns.Handle) (*os.File, error) {
	// Commands that ask which daemon has it lock it for a moment.
	for tries := 0; ; tries++ {
		c, err := lockClaim(home, unix.LOCK_EX)
		if !errors.Is(err, ErrBusy) || tries == 20 {
			return c, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// lockClaim locks the file as a daemon does (unix.LOCK_EX), or as one of any number that ask (unix.LOCK_SH).
func lockClaim(home *netns.Handle, how int) (*os.File, error) {
	sysfs, err := home.Sysfs()
	if err != nil {
		return nil, fmt.Errorf("claim network namespace: %w", err)
	}
	defer sysfs.Close()
	f, err := sysfs.OpenFile(claimFile, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("claim network namespace: %w", err)
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = &BusyError{PID: flocker(f), Elsewhere: true}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Claimed returns a *BusyError if a daemon has the namespace.
func Claimed(home *netns.Handle) error {
	c, err := lockClaim(home, unix.LOCK_SH)
	if err == nil {
		return c.Close()
	}
	if errors.Is(err, ErrBusy) {
		return err
	}
	return nil // not known: see where the daemon claims
}

// flocker is the process that has locked a file, 0 if it is not told: it may be in another process
// namespace.
func flocker(f *os.File) (pid int) {
	var st unix.Stat_t
	list, err := os.ReadFile("/proc/locks")
	if err := errors.Join(err, unix.Fstat(int(f.Fd()), &st)); err != nil {
		return 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(list)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 00:17:52 0 EOF
		fields := strings.Fields(line)
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == file {
			fmt.Sscan(fields[4], &pid)
		}
	}
	return pid
}
