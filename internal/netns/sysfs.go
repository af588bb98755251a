// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Sysfs returns /sys as the namespace sees it: an os.Root over a detached
// mount that no other process sees and that ends with Close. It needs
// CAP_SYS_ADMIN.
func (h *Handle) Sysfs() (*os.Root, error) {
	root, err := Read(h, func() (*os.Root, error) { return privilege.Read(unix.CAP_SYS_ADMIN, sysfsHere) })
	if err != nil {
		return nil, fmt.Errorf("sysfs of network namespace: %w", err)
	}
	return root, nil
}

func sysfsHere() (*os.Root, error) {
	fsfd, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen sysfs: %w", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, fmt.Errorf("fsconfig sysfs: %w", err)
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsmount sysfs: %w", err)
	}
	defer unix.Close(mfd)
	return os.OpenRoot("/proc/self/fd/" + strconv.Itoa(mfd))
}

// All sysfs mounts of a network namespace share one superblock, which is read-only where the first of
// them was, as a container runtime makes it. Its mount is read-only by itself besides: what the
// container may write does not depend on the superblock (MNT_READONLY and SB_RDONLY, fs/namespace.c).

// SysfsReadOnly tells whether the superblock of a sysfs is read-only. root is that of Sysfs, whose own
// mount is not.
func SysfsReadOnly(root *os.Root) (bool, error) {
	var fs unix.Statfs_t
	err := atRoot(root, func(fd int) error { return unix.Fstatfs(fd, &fs) })
	if err != nil {
		return false, fmt.Errorf("look at sysfs: %w", err)
	}
	return fs.Flags&unix.ST_RDONLY != 0, nil
}

// ReconfigureSysfs makes the superblock of a sysfs read-only ("ro"), or writable ("rw"). To read-only it fails with
// EBUSY while a file is open for writing by any of its mounts. Without a flag it finds out whether the superblock can
// be made writable, by a change that changes nothing: the kernel checks the same.
func ReconfigureSysfs(root *os.Root, flag string) error {
	return privilege.With(unix.CAP_SYS_ADMIN, func() error {
		return atRoot(root, func(fd int) error {
			fsfd, err := unix.Fspick(fd, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
			if err != nil {
				return fmt.Errorf("fspick sysfs: %w", err)
			}
			defer unix.Close(fsfd)
			if flag != "" {
				if err := unix.FsconfigSetFlag(fsfd, flag); err != nil {
					return fmt.Errorf("fsconfig sysfs %s: %w", flag, err)
				}
			}
			if err := unix.FsconfigReconfigure(fsfd); err != nil {
				return fmt.Errorf("reconfigure sysfs: %w", err)
			}
			return nil
		})
	})
}

// ReadAttr reads a file of one line.
func ReadAttr(root *os.Root, name string) (string, error) {
	b, err := root.ReadFile(name)
	return strings.TrimSpace(string(b)), err
}

func atRoot(root *os.Root, fn func(fd int) error) error {
	f, err := root.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(int(f.Fd()))
}
