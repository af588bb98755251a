// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// GuardianFD is the descriptor by which a guardian is tied to its daemon.
const GuardianFD = 3

// released is what a daemon says to a guardian that it does not need any
// more; ready is what the guardian says when it stands.
const (
	ready    = 'r'
	released = 'x'
)

// Guardian is a small process that restores when this one ends without
// having released it. It holds this one's programs, so that flows are drained before
// anything is restored, see Hold.
type Guardian struct {
	conn *os.File
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed

	mu   sync.Mutex
	held uint32 // so many descriptors were handed to it
}

// answerWait is how long a guardian may take to answer before it is taken for stopped.
const answerWait = 20 * time.Second

// StartGuardian runs this program again with the given verb, which must lead
// to RunGuardian, and returns once the guardian stands. It has to come before
// the first Do. Behind the verb come the flags that tell it the daemon's folder;
// it logs to this process's standard error.
//
// The guardian is held by one end of a socket pair whose other end only this
// process has. As a side effect, every descriptor above 2 that this process
// inherited is marked close-on-exec.
func (l *Locked) StartGuardian(verb []string) (*Guardian, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil, ErrUnlocked
	}
	g, err := startGuardian(slices.Concat(verb, []string{
		"--state-dir", filepath.Dir(l.dir.path), cookieFlag, strconv.FormatUint(l.dir.cookie, 10),
	}))
	if err != nil {
		if g != nil {
			err = errors.Join(err, g.Release())
		}
		return nil, fmt.Errorf("start guardian: %w (nothing was changed)", err)
	}
	l.write(fmt.Sprintf("%s%d", guardedBy, g.PID()))
	return g, nil
}

func startGuardian(args []string) (*Guardian, error) {
	// What an outer process left open, such as the write end of a shell's
	// pipe, must not live on in the guardian.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("mark descriptors: %w", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "guardian"), os.NewFile(uintptr(fds[1]), "daemon")
	// /proc/self/exe is the program that runs, also after an upgrade has
	// put another one in its place.
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := errors.Join(privilege.Start(cmd, privilege.Guardian()), theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	g := &Guardian{conn: ours, cmd: cmd, done: make(chan struct{})}
	go func() {
		g.err = cmd.Wait()
		close(g.done)
	}()
	hello := make([]byte, 1)
	if _, err := io.ReadFull(ours, hello); err != nil || hello[0] != ready {
		ours.Close()
		<-g.done
		return nil, errors.Join(errors.New("it ended before it was ready"), err, g.err)
	}
	return g, g.limit(answerWait)
}

// limit bounds how long it is waited for from now on.
func (g *Guardian) limit(d time.Duration) error {
	wait, fd := unix.NsecToTimeval(d.Nanoseconds()), int(g.conn.Fd())
	err := errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	if err != nil {
		return fmt.Errorf("limit the wait for its answers: %w", err)
	}
	return nil
}

// PID returns the guardian's process number.
func (g *Guardian) PID() int { return g.cmd.Process.Pid }

// Done is closed when the guardian has ended. A daemon that did not release
// it has lost its net and has to start another one.
func (g *Guardian) Done() <-chan struct{} { return g.done }

// Release tells the guardian that nothing is left to restore, and waits for
// its end. It comes after a Restore, and before Unlock.
func (g *Guardian) Release() error {
	werr := g.send([]byte{released}, nil)
	select {
	case <-g.done:
	case <-time.After(answerWait):
		g.kill()
	}
	if err := errors.Join(g.err, g.conn.Close()); err != nil {
		return fmt.Errorf("release guardian: %w", errors.Join(err, werr))
	}
	return nil
}

// cookieFlag tells a guardian's namespace, to itself and to a process that looks for it.
const cookieFlag = "--netns-cookie"
