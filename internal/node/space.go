// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/privilege"
)

// known is what is kept about a namespace between scans. It holds nothing that
// keeps the namespace alive: a descriptor of a dead container's namespace would
// keep its veth, and the name of its host end, in use.
type known struct {
	cookie  uint64
	inode   uint64
	path    string      // leads to it, checked by inode and cookie at every use
	mount   netns.Mount // that the path is of, if it is one's
	tunnels bool        // has tunnels of ours
	vlans   []int       // devices of home on which its VLAN devices sit, when it was last listed
	stacks  []*link     // devices that share the frames of ones elsewhere, likewise
	sysfs   *os.Root    // does not keep the namespace alive; opened when asked for
	gateway map[int]bool
	retries int
	member  member // what is in it, for the operator
	// switches: its sysfs is read-only, and could be made writable.
	switches bool
}

// leads notes how a namespace is reached.
func (s *Scanner) leads(k *known, path string, m netns.Mount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.path, k.mount = path, m
}

// sysfs opens a namespace's /sys the first time.
func (p *pass) sysfs(sp *space) (*os.Root, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return sp.openSysfs(sp.h)
}

// openSysfs does so where the lock on what is known is held.
func (k *known) openSysfs(h *netns.Handle) (*os.Root, error) {
	if k.sysfs == nil {
		root, err := h.Sysfs()
		if err != nil {
			return nil, err
		}
		k.sysfs = root
	}
	return k.sysfs, nil
}

// close lets go of what is open; nil has nothing.
func (k *known) close() {
	if k != nil && k.sysfs != nil {
		k.sysfs.Close()
	}
}

// space is a namespace during one scan.
type space struct {
	*known
	h      *netns.Handle
	c      *conn
	links  map[int]*link
	ours   []*link        // tunnels whose link namespace is home
	ids    map[int]*space // by the id that this namespace has for them
	asked  int            // namespaces looked up for ids
	routes map[int]via
}

// proc is where namespaces are reached that have no name.
const proc = "/proc"

// remembered adds the namespaces that earlier scans reached through a process,
// and reports whether all of them are still there.
func (p *pass) remembered() bool {
	all := true
	for _, k := range p.s.known {
		if _, ok := p.byInode[k.inode]; !ok {
			p.magic(k.path)
			_, ok = p.byInode[k.inode]
			all = all && ok
		}
	}
	return all
}

// procs adds the namespaces that processes are in.
func (p *pass) procs() {
	p.walked = walkedProcs
	_ = privilege.With(unix.CAP_SYS_PTRACE, func() error { // once, and not for each
		for _, pid := range netns.PIDs() {
			p.magic(ofProcess(pid))
		}
		return nil
	})
}

// ofProcess leads to the namespace that a process is in.
func ofProcess(pid string) string { return proc + "/" + pid + "/ns/net" }

// magic adds the namespace behind a link of /proc, which tells its inode
// without being followed.
func (p *pass) magic(path string) {
	if inode := inodeOf(path); inode != 0 {
		p.add(path, inode, netns.Mount{})
	}
}

// inodeOf is that of the network namespace behind a link of /proc, 0 if that cannot be told.
func inodeOf(path string) (inode uint64) {
	_ = privilege.With(unix.CAP_SYS_PTRACE, func() error {
		var b [64]byte
		n, err := unix.Readlink(path, b[:])
		if in, ok := netns.ParseLink(string(b[:max(n, 0)])); err == nil && ok {
			inode = in
		}
		return err
	})
	return inode
}

// add opens a namespace, unless this scan knows it. Nothing else is opened.
func (p *pass) add(path string, inode uint64, m netns.Mount) {
	if sp, ok := p.byInode[inode]; ok {
		// A mount outlives a process, and no other process can use our descriptors.
		mounted := sp.mount != (netns.Mount{})
		if !mounted && m != (netns.Mount{}) || sp.path == p.s.homePath {
			p.s.leads(sp.known, path, m)
		}
		return
	}
	h, err := open(path, m)
	if err == nil {
		if err = p.adopt(h, path, m); err != nil {
			h.Close()
		}
	}
	if err != nil {
		p.unopened[inode] = err
		p.gone(path, err)
	}
}

// open opens a namespace by its mount, or by a path of /proc.
func open(path string, m netns.Mount) (*netns.Handle, error) {
	if m != (netns.Mount{}) {
		return netns.OfMount(m)
	}
	return netns.OfPath(path)
}

// adopt makes a space of an open namespace.
func (p *pass) adopt(h *netns.Handle, path string, m netns.Mount) error {
	if err := h.Enter(); err != nil {
		return err
	}
	p.at = h.FD()
	cookie, err := netns.CookieHere()
	if err != nil {
		return err
	}
	k := p.s.known[cookie]
	if k == nil {
		k = &known{cookie: cookie, inode: h.Inode(), gateway: map[int]bool{}}
	}
	p.s.leads(k, path, m)
	sp := &space{known: k, h: h, ids: map[int]*space{}}
	p.byInode[k.inode] = sp
	p.order = append(p.order, sp)
	return nil
}

// gone notes a namespace that could not be scanned, unless it just ended.
func (p *pass) gone(path string, err error) {
	if !ended(err) {
		p.skip(Dev{Name: path}, "cannot enter this namespace: %v", err)
	}
}

// ended tells an error that comes of the end of a namespace or a device.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, ErrGone)
}

// enter moves the scanning thread.
func (p *pass) enter(sp *space) error {
	if p.at == sp.h.FD() {
		return nil
	}
	if err := sp.h.Enter(); err != nil {
		return err
	}
	p.at = sp.h.FD()
	return nil
}

// dial opens the space's request socket.
func (p *pass) dial(sp *space) error {
	if sp.c != nil {
		return nil
	}
	if err := p.enter(sp); err != nil {
		return err
	}
	c, err := nlsock.Dial(unix.NETLINK_ROUTE, p.s.buf)
	if err != nil {
		return err
	}
	sp.c = &conn{c}
	return nil
}
