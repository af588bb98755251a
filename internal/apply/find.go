// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/privilege"
)

// Finder finds network namespaces by itself: by mounts (named
// ones, Docker's), by processes, and, for those that are left, by threads, by
// descriptors that processes hold and by the mounts of other mount
// namespaces. A namespace that none of these leads to can only be held by a
// socket; it counts as gone.
//
// It holds what it has found until Close, and is for one pass of restoring:
// it does not notice namespaces that appear later.
type Finder struct {
	hints map[uint64]uint64 // cookie to inode
	found map[uint64]*netns.Handle
	known map[uint64]bool // inodes already looked into
	paths map[uint64][]opener
	// deep is set when the costly places have been searched.
	near, deep bool
	// blind holds what kept the search from being complete.
	blind error
}

// opener opens a namespace at one of the places that lead to it.
type opener func() (*netns.Handle, error)

// NewFinder returns a Finder that has not searched yet.
func NewFinder() *Finder {
	return &Finder{
		hints: make(map[uint64]uint64),
		found: make(map[uint64]*netns.Handle),
		known: make(map[uint64]bool),
		paths: make(map[uint64][]opener),
	}
}

// Hint tells the inode number that a namespace had when it was last seen. An
// inode lives as long as its namespace: with a hint, no other is entered.
func (f *Finder) Hint(cookie, inode uint64) { f.hints[cookie] = inode }

// Close lets go of all namespaces found.
func (f *Finder) Close() error {
	var errs []error
	for _, h := range f.found {
		errs = append(errs, h.Close())
	}
	f.found = nil
	return errors.Join(errs...)
}

// ByCookie implements Namespaces.
func (f *Finder) ByCookie(cookie uint64) (*netns.Handle, error) {
	return privilege.Read(unix.CAP_SYS_PTRACE, func() (*netns.Handle, error) { return f.byCookie(cookie) })
}

func (f *Finder) byCookie(cookie uint64) (*netns.Handle, error) {
	if !f.near {
		f.near = true
		f.checkSight()
		f.searchMounts("self")
		f.searchProcesses()
	}
	if h := f.lookInto(cookie); h != nil {
		return h, nil
	}
	if !f.deep {
		f.deep = true
		f.searchThreads()
		f.searchOtherMounts()
		if h := f.lookInto(cookie); h != nil {
			return h, nil
		}
	}
	if f.blind != nil {
		mend := "needs CAP_SYS_PTRACE"
		switch {
		case errors.Is(f.blind, errOwnPIDs):
			mend = "a container needs the host's processes: --pid host, in Kubernetes hostPID: true"
		case errors.Is(f.blind, netns.ErrHidden):
			mend = "end the process, or unmount what is in the way"
		}
		return nil, fmt.Errorf("find network namespace %d: not seen, but it may exist: %w (%s)", cookie, f.blind, mend)
	}
	return nil, ErrNoNamespace
}

// lookInto opens the places found so far until one is the wanted namespace.
func (f *Finder) lookInto(cookie uint64) *netns.Handle {
	if h := f.found[cookie]; h != nil {
		return h
	}
	if inode, ok := f.hints[cookie]; ok {
		f.open(inode)
		return f.found[cookie]
	}
	for inode := range f.paths {
		if f.open(inode); f.found[cookie] != nil {
			return f.found[cookie]
		}
	}
	return nil
}

// open enters the namespace with the inode number, by the first of its paths
// that still leads there, and files it under its cookie.
func (f *Finder) open(inode uint64) {
	if f.known[inode] {
		return
	}
	for _, open := range f.paths[inode] {
		h, err := open()
		if err != nil || h.Inode() != inode {
			f.missed(err)
			if h != nil {
				f.missed(h.Close())
			}
			continue
		}
		cookie, err := h.Cookie()
		if err != nil || f.found[cookie] != nil {
			f.missed(errors.Join(err, h.Close()))
			continue
		}
		f.known[inode] = true
		f.found[cookie] = h
		return
	}
	delete(f.paths, inode) // all stale: makes room for others
}

// checkSight notes that processes are hidden: in a container of its own pid
// namespace, a namespace that is not found may well exist.
func (f *Finder) checkSight() {
	const initial = "pid:[4026531836]" // PROC_PID_INIT_INO
	if own, err := os.Readlink("/proc/self/ns/pid"); err != nil || own != initial {
		f.missed(errors.Join(errOwnPIDs, err))
	}
}

var errOwnPIDs = errors.New("not in the initial pid namespace")

// missed notes an error unless it only says that a process has ended.
func (f *Finder) missed(err error) {
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return
	}
	if f.blind == nil {
		f.blind = err
	}
}

func (f *Finder) add(inode uint64, open opener) {
	const enough = 4 // some may be gone when they are opened
	if !f.known[inode] && len(f.paths[inode]) < enough {
		f.paths[inode] = append(f.paths[inode], open)
	}
}

// searchProcesses adds the namespaces that processes are in. One that may not be inspected (a security
// module can shield it even from root) hides nothing if another process is in the same namespace.
func (f *Finder) searchProcesses() {
	shielded := map[string]error{}
	seen := []string{"thread-self"}
	for _, pid := range netns.PIDs() {
		switch err := f.link("/proc/" + pid + "/ns/net"); {
		case err == nil:
			seen = append(seen, pid)
		case errors.Is(err, fs.ErrPermission):
			shielded[pid] = err
		default:
			f.missed(err)
		}
	}
	if len(shielded) == 0 {
		return
	}
	found := map[uint64]bool{}
	for _, pid := range seen {
		if file, ok := spaceOf(pid); ok {
			found[file] = true
		}
	}
	for pid, err := range shielded {
		if file, ok := spaceOf(pid); !ok || !found[file] {
			f.missed(err)
		}
	}
}

// spaceOf tells processes of one namespace from those of others: /proc/<pid>/net is open to all, and is one
// and the same file for all processes of a namespace.
func spaceOf(pid string) (file uint64, ok bool) {
	var st unix.Stat_t
	err := unix.Stat("/proc/"+pid+"/net/dev", &st)
	return st.Ino, err == nil
}

// searchThreads adds the namespaces that single threads are in and that
// processes hold by a descriptor. A shielded process counts as holding none:
// were that a reason to take one for there, no namespace would ever be gone beside it.
func (f *Finder) searchThreads() {
	for _, pid := range netns.PIDs() {
		for _, thread := range netns.Names("/proc/" + pid + "/task") {
			_ = f.link("/proc/" + pid + "/task/" + thread + "/ns/net")
		}
		for _, fd := range netns.Names("/proc/" + pid + "/fd") {
			_ = f.link("/proc/" + pid + "/fd/" + fd)
		}
	}
}

// link adds a magic link if it leads to a network namespace.
func (f *Finder) link(path string) error {
	to, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if inode, ok := netns.ParseLink(to); ok {
		f.add(inode, func() (*netns.Handle, error) { return netns.OfPath(path) })
	}
	return nil
}

// searchMounts adds the network namespaces that a process sees mounted.
func (f *Finder) searchMounts(pid string) {
	mounts, err := netns.Mounts(pid)
	if err != nil {
		f.missed(err)
	}
	for _, m := range mounts {
		f.add(m.Inode, func() (*netns.Handle, error) { return netns.OfMount(m) })
	}
}

func (f *Finder) searchOtherMounts() {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true} // searched already
	for _, pid := range netns.PIDs() {
		mnt, err := os.Readlink("/proc/" + pid + "/ns/mnt")
		if err == nil && !seen[mnt] {
			seen[mnt] = true
			f.searchMounts(pid)
		}
	}
}
