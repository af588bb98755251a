// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RunGuardian is the body of the guardian process. It returns nil when it was
// released, and when the process that took the lock after the daemon's death does the
// restoring; an error means that settings are left, which the journal names. What the daemon has had
// it hold it gives to adopt, before it restores; without one it lets go of it then.
func RunGuardian(stateDir string, cookie uint64, adopt Adopt, log *slog.Logger) error {
	// A terminal's Ctrl-C and a service manager's SIGTERM are meant for the
	// daemon, whose end the guardian has to outlive.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	// Being killed for memory is one of the ends it is there for. Where the
	// daemon had no CAP_SYS_RESOURCE at its start, see privilege.Drop, it stays
	// as likely as the daemon's.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)

	var st unix.Stat_t
	if err := unix.Fstat(GuardianFD, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("guardian: descriptor %d is no socket: only the daemon starts a guardian", GuardianFD)
	}
	daemon, err := unix.GetsockoptInt(GuardianFD, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		daemon, err = -1, nil // dead already, and waited for
	}
	cred, credErr := unix.GetsockoptUcred(GuardianFD, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err := errors.Join(err, credErr); err != nil {
		return fmt.Errorf("guardian: identify the daemon: %w", err)
	}
	dir, err := Open(stateDir, cookie)
	if err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	defer dir.Close()

	if _, err := unix.Write(GuardianFD, []byte{ready}); err != nil {
		log.Warn("guardian: the daemon ended before it heard that the guardian stands")
	}
	var held heldFDs
	if held.listen(GuardianFD) {
		return nil
	}
	if err := waitForEnd(daemon); err != nil {
		return fmt.Errorf("guardian: wait for the daemon's end: %w", err)
	}
	return takeOver(dir, int(cred.Pid), held, adopt, log)
}

// waitForEnd waits until the process is dead. The kernel closes its files,
// and thereby releases its lock, before it says so.
func waitForEnd(pidfd int) error {
	if pidfd < 0 {
		return nil
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// takeOver takes the dead daemon's lock and restores. If it is taken already,
// its holder restores: `overlane off`, or a new daemon, whose start does; then what is held ends with
// this process.
func takeOver(dir *Dir, daemon int, held heldFDs, adopt Adopt, log *slog.Logger) error {
	l, err := dir.lock(restoring)
	// A child that the daemon was just starting may hold a copy of the lock
	// until its exec; then the file still names the daemon.
	for tries := 0; errors.Is(err, ErrBusy) && tries < 100; tries++ {
		if pid := dir.Holder(); pid != 0 && pid != daemon {
			log.Info("guardian: left to the new holder of the lock", "pid", pid)
			return nil
		}
		time.Sleep(5 * time.Millisecond)
		l, err = dir.lock(restoring)
	}
	if err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	at("guardian:locked")
	end := held.drain(adopt, log)
	at("guardian:drained")
	f := NewFinder()
	rep, err := l.Restore(f)
	end()
	for _, r := range rep.Results {
		log.Info("guardian: "+r.String(), "daemon", daemon)
	}
	if err = errors.Join(err, rep.Left(), f.Close(), l.Unlock()); err != nil {
		return fmt.Errorf("guardian: %w", err)
	}
	return nil
}
