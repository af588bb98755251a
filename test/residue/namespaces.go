// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	errESRCH  = syscall.ESRCH
	errENODEV = syscall.ENODEV
)

// namespace is one network namespace, held open.
type namespace struct {
	file   *os.File
	inode  uint64
	cookie uint64
	name   string
	home   bool // the one the test runs in
}

// observer is a scope whose namespaces are open.
type observer struct {
	scope Scope
	home  *namespace
	given []*namespace // without home
}

func openScope(scope Scope) (*observer, error) {
	home, err := openNamespace("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	home.home, home.name = true, "own netns"
	o := &observer{scope: scope, home: home}
	for _, path := range scope.Namespaces {
		ns, err := openNamespace(path)
		if err != nil {
			o.close()
			return nil, err
		}
		if o.watches(ns.inode) {
			ns.file.Close()
			continue
		}
		o.given = append(o.given, ns)
	}
	return o, nil
}

func (o *observer) close() {
	o.home.file.Close()
	for _, ns := range o.given {
		ns.file.Close()
	}
}

// watches reports whether the namespace is home or was named in the scope.
func (o *observer) watches(inode uint64) bool {
	if o.home.inode == inode {
		return true
	}
	return o.owns(inode)
}

// owns reports whether the namespace was named in the scope and is not home.
func (o *observer) owns(inode uint64) bool {
	for _, ns := range o.given {
		if ns.inode == inode {
			return true
		}
	}
	return false
}

func openNamespace(path string) (*namespace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("stat network namespace: %w", err), f.Close())
	}
	ns := &namespace{file: f, inode: st.Ino, name: fmt.Sprintf("net:[%d]", st.Ino)}
	if filepath.Base(filepath.Dir(path)) == "netns" {
		ns.name = filepath.Base(path)
	}
	err = ns.do(func() error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		ns.cookie, err = unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("enter %s: %w", path, err), f.Close())
	}
	return ns, nil
}

// do runs fn on a thread in the namespace; the thread ends with it.
func (ns *namespace) do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// listNamespaces finds every network namespace that a process, a thread, a
// descriptor or a mount refers to: inode -> a path to open it by. (One held by
// nothing but a socket of a process that has left it is not found.)
func listNamespaces() (map[uint64]string, error) {
	found := map[uint64]string{}
	note := func(path string) {
		if ino, ok := netnsInode(path); ok {
			if _, known := found[ino]; !known {
				found[ino] = path
			}
		}
	}
	mounts, err := mountsOf("nsfs")
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		var fs unix.Statfs_t
		var st unix.Stat_t
		if !strings.HasPrefix(m.root, "net:[") || unix.Statfs(m.point, &fs) != nil || unix.Stat(m.point, &st) != nil {
			continue
		}
		found[st.Ino] = m.point
	}
	for _, pattern := range []string{"/proc/[0-9]*/ns/net", "/proc/[0-9]*/fd/[0-9]*", "/proc/[0-9]*/task/[0-9]*/ns/net"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			note(p)
		}
	}
	return found, nil
}

// holder names the process or the mount by whose path a namespace was found.
func holder(path string) string {
	if rest, ok := strings.CutPrefix(path, "/proc/"); ok {
		pid, _, _ := strings.Cut(rest, "/")
		if name, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil {
			return path + " (" + strings.TrimSpace(string(name)) + ")"
		}
	}
	return path
}

// netnsInode reads "net:[N]" from a magic link.
func netnsInode(path string) (uint64, bool) {
	target, err := os.Readlink(path)
	if err != nil || !strings.HasPrefix(target, "net:[") {
		return 0, false
	}
	var ino uint64
	_, err = fmt.Sscanf(target, "net:[%d]", &ino)
	return ino, err == nil
}

type mount struct{ point, root string }

// mountsOf lists the mounts of one file system type that this process sees.
func mountsOf(fstype string) ([]mount, error) {
	raw, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var mounts []mount
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(left)
		if !ok || len(fields) < 5 || !strings.HasPrefix(right, fstype+" ") {
			continue
		}
		mounts = append(mounts, mount{point: unescape.Replace(fields[4]), root: fields[3]})
	}
	return mounts, nil
}

// unescape undoes what the kernel does to blanks in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
