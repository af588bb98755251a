// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const nsDir = "/run/netns"

// addNamed creates a namespace under the name where ip-netns(8) looks for it.
func addNamed(name string) error {
	h, err := netns.New()
	if err != nil {
		return err
	}
	defer h.Close()
	return h.Name(filepath.Join(nsDir, name))
}

// Down ends a lab: processes in its namespaces, devices, namespaces, record.
// It works from what a killed Up left, and on a lab that is half gone.
func Down(stateDir, name string) error {
	if !nameRE.MatchString(name) {
		return fmt.Errorf("lab name %q: 1 to 12 of a-z and 0-9 are allowed", name)
	}
	dir := filepath.Join(stateDir, name)
	paths, err := filepath.Glob(filepath.Join(nsDir, "ol"+name+"-*"))
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && len(paths) == 0 {
		return fmt.Errorf("lab %q: %w", name, ErrNotUp)
	}
	var errs []error
	for _, p := range paths {
		errs = append(errs, removeNamed(p))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end lab %s: %w", name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("end lab %s: %w", name, err)
	}
	// Goes when this was the last one, and may stay when it was not.
	_ = os.Remove(stateDir)
	return nil
}

// Names lists the labs that are recorded under a state directory.
func Names(stateDir string) ([]string, error) {
	entries, err := os.ReadDir(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && nameRE.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func removeNamed(path string) error {
	var err error
	if h, e := netns.OfPath(path); e == nil { // else it is the file of a namespace that was never mounted
		err = errors.Join(empty(h), h.Close())
	}
	for unix.Unmount(path, unix.MNT_DETACH) == nil {
		// It may be mounted more than once.
	}
	if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// empty ends the processes of a namespace and deletes its devices. The kernel
// would do the latter by itself, but some time later, and a lab that is down
// should be down.
func empty(h *netns.Handle) error {
	if err := endProcesses(h.Inode()); err != nil {
		return err
	}
	return within(h, func(i *inside) {
		links, err := i.LinkList()
		i.try("list devices", err)
		for _, l := range links {
			// Deleting one end of a veth deletes the other, and devices that every
			// namespace has (lo, tunl0 ...) cannot be deleted.
			switch l.Type() {
			case "veth", "vxlan", "bridge", "geneve", "dummy":
				if err := i.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) && !isGone(i.Handle, l) {
					i.try("delete device "+l.Attrs().Name, err)
				}
			}
		}
	})
}

func isGone(nl *netlink.Handle, l netlink.Link) bool {
	_, err := nl.LinkByIndex(l.Attrs().Index)
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

// endProcesses ends every process whose namespace this is, but not the caller.
func endProcesses(inode uint64) error {
	const patience = 3 * time.Second
	want := fmt.Sprintf("net:[%d]", inode)
	for start := time.Now(); ; {
		left := 0
		procs, err := procfs.AllProcs()
		if err != nil {
			return err
		}
		for _, p := range procs {
			if l, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID)); err != nil || l != want || p.PID == os.Getpid() {
				continue
			}
			sig := unix.SIGTERM
			if time.Since(start) > patience/3 {
				sig = unix.SIGKILL
			}
			left++
			_ = unix.Kill(p.PID, sig)
		}
		if left == 0 {
			return nil
		}
		if time.Since(start) > patience {
			return fmt.Errorf("%d processes do not end", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
