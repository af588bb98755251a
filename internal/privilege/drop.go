// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Drop leaves this process no capability but those to be kept, on any of its threads, and no way to
// get another. It has to come before anything that must not happen twice: where there is something
// to drop, it does not return, but runs the program again from its first line.
//
// A program in Go has several threads before its first line, and the kernel changes one at a time.
// That runtime can have a system call made by all (syscall.AllThreadsSyscall), but not in a
// program that is linked with C, and it knows no threads but its own. What exec leaves over is
// one thread, the one that has been limited here; all others descend from it.
func Drop(keep Set) error {
	return OnThread(func() error { return drop(keep) })
}

// OnThread runs fn on a locked thread that is thrown away afterwards, as one that is limited or in another namespace
// has to be: the runtime ends a thread whose goroutine exits while locked. Only the first thread
// of the process it keeps, for ever, wherever fn has left it, and with it a namespace that
// others want gone. That one is never used.
func OnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- OnThread(fn)
			runtime.UnlockOSThread()
			return
		}
		done <- fn()
	}()
	return <-done
}

func drop(keep Set) error {
	now, err := current()
	if err != nil || now.within(keep) {
		return err
	}
	back := lowerOOM()
	if err := errors.Join(limit(keep), back()); err != nil {
		return fmt.Errorf("give up privileges: %w", err)
	}
	// It is the first thread that has it, which does not survive this one's exec.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(parentDeath), 0, 0, 0); err != nil {
		return fmt.Errorf("keep parent death signal: %w", err)
	}
	if err := unix.Exec(program(), os.Args, os.Environ()); err != nil {
		return fmt.Errorf("run again with fewer privileges: %w", err)
	}
	return nil
}

// parentDeath is the signal that the parent of this process has it get with its own end, 0 for
// none. Packages are initialised on the first thread.
var parentDeath = func() (sig int32) {
	_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&sig)), 0, 0, 0) // fails for no valid pointer
	return sig
}()

// program is the path of the program that runs. When another one has been put in its place, which
// must not run instead, what is left is a path that has the process called "exe".
func program() string {
	const running = "/proc/self/exe"
	path, err := os.Executable()
	there, terr := os.Stat(path)
	here, herr := os.Stat(running)
	if errors.Join(err, terr, herr) != nil || !os.SameFile(here, there) {
		return running
	}
	return path
}

// lowerOOM lets this process, and those that it starts, become the last to be killed for memory
// later, without CAP_SYS_RESOURCE: what a process with it sets once, others can set again
// (__set_oom_adj, fs/proc/base.c). The function that it returns sets back what it was, and has to
// be called without that capability.
func lowerOOM() (back func() error) {
	const file = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(file)
	if err != nil || os.WriteFile(file, []byte("-1000"), 0) != nil {
		return func() error { return nil } // not ours to set: the guardian stays as it is
	}
	return func() error { return os.WriteFile(file, []byte(strings.TrimSpace(string(was))), 0) }
}

// Start starts a command that has no capability but those to be kept, and no way to get another.
// The process that calls may have more. The command must not ask for a parent death signal: what
// the kernel takes for its parent is a thread that ends.
func Start(cmd *exec.Cmd, keep Set) error {
	return OnThread(func() error { return startHere(cmd, keep) })
}

// startHere limits the calling thread, which a child is like.
func startHere(cmd *exec.Cmd, keep Set) error {
	if err := limit(keep); err != nil {
		return err
	}
	return cmd.Start()
}
