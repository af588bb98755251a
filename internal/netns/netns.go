// SPDX-License-Identifier: Apache-2.0

// Package netns opens, enters and identifies network namespaces.
//
// A namespace is entered on threads that run nothing else: code that runs in Do or Visit cannot
// leak its namespace into other goroutines, and a thread that could not return
// to where it came from ends instead of being reused.
package netns

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Handle is one network namespace, held by a file descriptor. It stays valid
// until Close, whatever happens to the name or process it was opened by.
type Handle struct {
	f     *os.File
	inode uint64
}

// Current opens the namespace of the calling thread.
func Current() (*Handle, error) { return OfPath("/proc/thread-self/ns/net") }

// OfPID opens the namespace of a process.
func OfPID(pid int) (*Handle, error) {
	return OfPath("/proc/" + strconv.Itoa(pid) + "/ns/net")
}

// OfName opens a namespace by the name that ip-netns(8) gave it.
func OfName(name string) (*Handle, error) { return OfPath("/run/netns/" + name) }

// OfPath opens a namespace by a path under a nsfs mount or /proc. What else the path may lead to is
// not opened: a FIFO would block, and a device may act on being opened. A path in a mount namespace that
// another user has made is for OfMount.
func OfPath(path string) (*Handle, error) {
	h, err := privilege.Read(unix.CAP_SYS_PTRACE, func() (*Handle, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return ofPlace(os.NewFile(uintptr(fd), path))
	})
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	return h, nil
}

// ofPlace takes ownership of an O_PATH descriptor, which tells what a file is without opening it, and
// opens the file once it is known to be a namespace.
func ofPlace(place *os.File) (*Handle, error) {
	defer place.Close()
	if err := isNamespace(place); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(place.Fd())), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: place.Name(), Err: err}
	}
	f := os.NewFile(uintptr(fd), place.Name())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("stat network namespace: %w", err), f.Close())
	}
	return &Handle{f: f, inode: st.Ino}, nil
}

func isNamespace(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return fmt.Errorf("stat network namespace: %w", err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("%s is not a namespace", f.Name())
	}
	return nil
}

// New creates an unnamed namespace, which lives as long as the handle or
// something that was put into it.
func New() (*Handle, error) {
	var h *Handle
	err := privilege.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		var err error
		h, err = Current()
		return err
	})
	return h, err
}

// FD returns the descriptor; it belongs to the handle.
func (h *Handle) FD() int { return int(h.f.Fd()) }

// Inode identifies the namespace among those that exist now. Numbers are
// reused; Cookie is not.
func (h *Handle) Inode() uint64 { return h.inode }

// Close lets go of the namespace.
func (h *Handle) Close() error { return h.f.Close() }

// Cookie identifies the namespace for the life of the machine.
func (h *Handle) Cookie() (uint64, error) { return Read(h, CookieHere) }

// CookieHere is the cookie of the calling thread's namespace.
func CookieHere() (uint64, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read network namespace cookie: %w", err)
	}
	return cookie, nil
}

// Do runs fn in the namespace, on a thread of its own. Sockets and netlink
// handles that fn opens belong to the namespace and may outlive the call.
// Processes that fn starts inherit the namespace.
func (h *Handle) Do(fn func() error) error {
	return privilege.OnThread(func() error {
		if err := h.Enter(); err != nil {
			return err
		}
		return fn()
	})
}

// Visit is Do for what is short and done often, on a thread that others use before and afterwards: of
// the thread itself fn changes nothing, but may enter other namespaces, and starts no process.
func (h *Handle) Visit(fn func() error) error {
	v := visit{h, fn, make(chan error, 1)}
	select {
	case t := <-resting:
		t <- v
	default:
		go privilege.OnThread(func() error { return travel(v) })
	}
	return <-v.done
}

// Read is Visit for what has a result.
func Read[T any](h *Handle, fn func() (T, error)) (result T, err error) {
	err = h.Visit(func() (err error) {
		result, err = fn()
		return err
	})
	return result, err
}

// visit is of one namespace.
type visit struct {
	to   *Handle
	fn   func() error
	done chan error
}

// resting are threads between two visits. To make a thread, and to end it, takes longer than most
// visits do, of which a look at a node makes one for each pod.
var resting = make(chan chan visit, 2)

// travel makes visits, on a thread of its own, which rests in the namespace that it began in: it keeps
// no other alive. It ends with the first visit that fails: it is not known what that has left behind.
func travel(v visit) error {
	home, err := Current()
	if err != nil {
		v.done <- err
		return nil
	}
	defer home.Close()
	next := make(chan visit)
	for {
		err := v.to.Enter()
		if err == nil {
			err = v.fn()
		}
		if back := home.Enter(); err != nil || back != nil {
			v.done <- err
			return nil
		}
		select {
		case resting <- next: // before the caller that waits for this one asks again
			v.done <- nil
			v = <-next
		default:
			v.done <- nil
			return nil
		}
	}
}

// Thread is one that stays in a namespace. To make one takes longer than much of what is done there.
type Thread struct{ work chan func() }

// Thread makes one, which is to be closed. It keeps the namespace alive.
func (h *Handle) Thread() (*Thread, error) {
	t := &Thread{work: make(chan func())}
	entered := make(chan error, 1)
	go privilege.OnThread(func() error {
		err := h.Enter()
		entered <- err
		if err != nil {
			return err
		}
		for fn := range t.work {
			fn()
		}
		return nil
	})
	if err := <-entered; err != nil {
		return nil, err
	}
	return t, nil
}

// Do is Handle.Do, on this thread, one call at a time. It must not be called after Close.
func (t *Thread) Do(fn func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- fn() }
	return <-done
}

// Close ends the thread.
func (t *Thread) Close() { close(t.work) }

// Enter moves the calling thread, which has to be locked, and must not go back to the runtime.
func (h *Handle) Enter() error {
	err := privilege.With(unix.CAP_SYS_ADMIN, func() error { return unix.Setns(h.FD(), unix.CLONE_NEWNET) })
	if err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}
