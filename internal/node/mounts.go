// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/privilege"
)

// mounts are the network namespaces that are mounted where this process or the first one sees it: by
// ip-netns(8), and by container engines, each in a directory of its own.
type mounts struct {
	below []string // only in these directories; nil: anywhere
	poke  func()

	mu    sync.Mutex
	views []*view
}

// view is what the processes of one mount namespace see.
type view struct {
	pid   string
	check *os.File // tells a scan whether anything was mounted since the last one
	wake  *os.File // tells when
	list  []netns.Mount
}

// watchMounts makes it an event when a network namespace is mounted or unmounted. It never fails: what a
// mount would lead to is found by processes, and by the resync, where the kernel does not let it search.
func watchMounts(below []string, poke func(), run func(func())) *mounts {
	m := &mounts{below: below, poke: poke}
	var own string
	for _, pid := range []string{"self", "1"} {
		_ = privilege.With(unix.CAP_SYS_PTRACE, func() error {
			in, err := os.Readlink(proc + "/" + pid + "/ns/mnt")
			if err != nil || in == own {
				return err
			}
			own = in
			v := &view{pid: pid}
			if v.check, err = openMounts(pid, 0); err != nil {
				return err
			}
			if v.wake, err = openMounts(pid, unix.O_NONBLOCK); err != nil {
				return errors.Join(err, v.check.Close())
			}
			m.views = append(m.views, v)
			return nil
		})
	}
	for _, v := range m.views {
		m.read(v)
		run(func() { m.follow(v) })
	}
	return m
}

// openMounts opens a process's list of mounts. The kernel tells once for each open file that it has changed
// (mounts_poll, fs/proc_namespace.c): the runtime, which waits for those that do not block, has its own.
func openMounts(pid string, flags int) (*os.File, error) {
	fd, err := unix.Open(proc+"/"+pid+"/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "mountinfo"), nil
}

// follow pokes whenever a network namespace was mounted or unmounted, until the view is closed.
func (m *mounts) follow(v *view) {
	c, err := v.wake.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Read(func(uintptr) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.refresh(v) {
			m.poke()
		}
		return false // and wait for the next
	})
}

// refresh reads the list again where anything was mounted, and tells whether it is another one.
func (m *mounts) refresh(v *view) bool {
	changed := false
	c, err := v.check.SyscallConn()
	if err != nil {
		return false
	}
	_ = c.Control(func(fd uintptr) {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, 0)
		changed = n > 0
	})
	return changed && m.read(v)
}

// read reads the list, and tells whether it is another one than before.
func (m *mounts) read(v *view) bool {
	list, err := privilege.Read(unix.CAP_SYS_PTRACE, func() ([]netns.Mount, error) { return netns.Mounts(v.pid) })
	if err != nil {
		return false
	}
	list = slices.DeleteFunc(list, func(mount netns.Mount) bool {
		return m.below != nil && !slices.ContainsFunc(m.below, func(dir string) bool { return strings.HasPrefix(mount.Point, dir+"/") })
	})
	if slices.Equal(list, v.list) {
		return false
	}
	v.list = list
	return true
}

// all lists what is mounted now, of this process's view first.
func (m *mounts) all() (list []netns.Mount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.views {
		m.refresh(v)
		list = append(list, v.list...)
	}
	return list
}

func (m *mounts) close() {
	for _, v := range m.views {
		v.wake.Close()
		v.check.Close()
	}
}
