// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Lower leaves in force, on every thread, only the Everyday capabilities of those that this process
// keeps. The others have to be raised for what needs them, by With: a mistake anywhere else cannot
// make use of them. It is no wall against an attacker that has made the process run code.
//
// It is about the process as it is: what it starts is not lowered, see Start. ErrLinkedWithC means
// that it cannot be done, and that everything else goes on as before.
func Lower() error {
	t, err := current()
	if err != nil {
		return err
	}
	hdr, data := capUser(t.permitted, Everyday(t.permitted), t.inheritable)
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno == syscall.ENOTSUP {
		return ErrLinkedWithC
	}
	if errno != 0 {
		return fmt.Errorf("lower capabilities: %w", errno)
	}
	return nil
}

// ErrLinkedWithC says that the runtime does not know all threads of this program.
var ErrLinkedWithC = errors.New("built with cgo, whose threads are not known: build with CGO_ENABLED=0")

// Read is With for what has a result.
func Read[T any](c Capability, fn func() (T, error)) (result T, err error) {
	err = With(c, func() (err error) {
		result, err = fn()
		return err
	})
	return result, err
}

// With runs fn, on the calling thread, with a capability in force that this process keeps. Where it
// does not, or it is in force anyhow, fn is just run: the kernel says what it thinks of it.
func With(c Capability, fn func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	word, bit := &data[c/32], uint32(1)<<(c%32)
	if word.Effective&bit != 0 || word.Permitted&bit == 0 {
		return fn()
	}
	word.Effective |= bit
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("raise %s: %w", c, err)
	}
	defer func() {
		word.Effective &^= bit
		if e := unix.Capset(&hdr, &data[0]); e != nil {
			runtime.LockOSThread() // once more than it is unlocked: the thread ends with its goroutine
			err = errors.Join(err, fmt.Errorf("lower %s: %w", c, e))
		}
	}()
	return fn()
}
