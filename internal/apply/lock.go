// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const lockName = "lock"

// ErrBusy is what a BusyError unwraps to.
var ErrBusy = errors.New("another overlane owns this network namespace")

// BusyError says which process holds the lock.
type BusyError struct {
	// PID is the holder's, 0 if it has not written it yet.
	PID int
	// Restoring: the holder is a guardian, which lets go in a moment.
	Restoring bool
	// Path is the lock file.
	Path string
	// Elsewhere: the holder has another state directory, which is not known.
	Elsewhere bool
	// orphaned: no process holds the lock, but a guardian is going to.
	orphaned bool
}

func (e *BusyError) Error() string {
	holder := "another overlane"
	if e.PID != 0 {
		holder = fmt.Sprintf("overlane with pid %d", e.PID)
	}
	if e.Elsewhere {
		return fmt.Sprintf("%s owns this network namespace, with another state directory: use it, or stop it with `overlane off` and its --state-dir", holder)
	}
	return fmt.Sprintf("%s owns this network namespace (lock %s): use it, or stop it with `overlane off`", holder, e.Path)
}

// Unwrap makes errors.Is(err, ErrBusy) true.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Locked proves that its holder owns the namespace. Only Lock makes one, and
// everything that changes a setting or the journal is a method of it.
type Locked struct {
	dir *Dir

	mu   sync.Mutex
	f    *os.File // nil once released
	j    *journal
	tell func(Result)
	// unseen: the journal has entries of an earlier process on which
	// Restore has not been tried.
	unseen bool
}

// guardianWait is how long Lock waits for a guardian that is restoring, or is to. It is
// promised to be done within 1 s.
const guardianWait = 3 * time.Second

// Lock takes the lock and reads the journal. The kernel releases the lock
// when the process ends, however it ends. A *BusyError names the holder; the
// guardian of a daemon that has died is no holder, its end is waited for. One that does
// not come to restoring, since a signal has stopped it, is killed: it holds its daemon's
// programs.
func (d *Dir) Lock() (*Locked, error) {
	killed := false
	for deadline := time.Now().Add(guardianWait); ; time.Sleep(5 * time.Millisecond) {
		l, err := d.lock("")
		var busy *BusyError
		switch late := time.Now().After(deadline); {
		// A holder that has not written its number yet may be a guardian.
		case !errors.As(err, &busy) || !busy.Restoring && busy.PID != 0 || late && (killed || !busy.orphaned):
			return l, err
		case late:
			if err := d.killGuardian(busy.PID); err != nil {
				return nil, err
			}
			killed, deadline = true, time.Now().Add(guardianWait)
		}
		at("lock:waits")
	}
}

// lock takes the lock in a role, which "" or restoring names.
func (d *Dir) lock(role string) (*Locked, error) {
	f, err := d.open(lockName, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, role := holder(f)
			return nil, errors.Join(&BusyError{Path: f.Name(), PID: pid, Restoring: role == restoring}, f.Close())
		}
		return nil, errors.Join(fmt.Errorf("take lock %s: %w", f.Name(), err), f.Close())
	}
	if pid := guardianIn(f); role != restoring && d.isGuardian(pid) {
		return nil, errors.Join(&BusyError{Path: f.Name(), PID: pid, Restoring: true, orphaned: true}, f.Close())
	}
	l := &Locked{dir: d, f: f}
	if err := l.start(role); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

// restoring is the role of a guardian; a daemon that has one says so, with its number.
const (
	restoring = "restoring"
	guardedBy = "guardian="
)

func (l *Locked) start(role string) error {
	if err := l.f.Truncate(0); err != nil {
		return fmt.Errorf("write lock: %w", err)
	}
	l.write(role)
	var err error
	l.j, err = openJournal(l.dir)
	l.unseen = err == nil && len(l.j.entries) > 0
	return err
}

// write says which process holds the lock. A full disk keeps that out of it, not the lock from working.
func (l *Locked) write(role string) {
	_, _ = l.f.WriteAt(fmt.Appendf(nil, "%d %s\n", os.Getpid(), role), 0)
}

// Unlock releases the lock. It undoes nothing. An error may be Sync's.
func (l *Locked) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	_ = l.f.Truncate(0) // a pid without a lock misleads no program, only people
	err := errors.Join(l.j.sync(), l.j.close(), l.f.Close())
	l.f = nil
	return err
}

// Tell has fn told of each setting that Do and Restore are done with. It must not call back.
func (l *Locked) Tell(fn func(Result)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = fn
}

func (l *Locked) told(rep *Report) {
	if l.tell == nil {
		return
	}
	for _, r := range rep.Results {
		l.tell(r)
	}
}

// Holder returns the pid that the lock file names, 0 if none. Whether that
// process lives, and still holds the lock, only Lock tells.
func (d *Dir) Holder() int {
	f, err := d.open(lockName, os.O_RDONLY)
	if err != nil {
		return 0
	}
	defer f.Close()
	pid, _ := holder(f)
	return pid
}

// guardianIn is the guardian of the process that has held the lock, 0 if there was none.
func guardianIn(f *os.File) (pid int) {
	_, role := holder(f)
	if number, ok := strings.CutPrefix(role, guardedBy); ok {
		pid, _ = strconv.Atoi(number)
	}
	return pid
}

// holder is what the lock's file says of the process that holds it, or did so last: 0 and "" where it says nothing.
func holder(f *os.File) (pid int, role string) {
	b := make([]byte, 64)
	n, _ := f.ReadAt(b, 0) // io.EOF at least
	fmt.Sscan(string(b[:n]), &pid, &role)
	return pid, role
}

// isGuardian tells whether a process is a guardian of this namespace: numbers are given anew.
func (d *Dir) isGuardian(pid int) bool {
	// Another user's process may have its arguments where reading them never ends.
	var st unix.Stat_t
	if pid <= 0 || unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) != nil || int(st.Uid) != os.Geteuid() {
		return false
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(args), fmt.Sprintf("\x00%s\x00%d\x00", cookieFlag, d.cookie))
}

// killGuardian ends a guardian, and with it the programs that it holds.
func (d *Dir) killGuardian(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end the guardian with pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !d.isGuardian(pid) { // the number was another's before the descriptor was made
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the guardian with pid %d: %w", pid, err)
	}
	return waitForEnd(fd)
}
