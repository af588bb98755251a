// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Name gives the namespace a name that must be free: a file at path, which is in the directory
// where ip-netns(8) looks, with the namespace mounted over it.
//
// The directory is made what ip-netns makes of it when it names its first: a shared mount of
// itself. Were that left to ip-netns, it would cover the name with a copy of its mount, and the
// one beneath could be neither seen nor removed.
func (h *Handle) Name(path string) error {
	if err := h.name(path); err != nil {
		return fmt.Errorf("name network namespace %s: %w", path, err)
	}
	return nil
}

func (h *Handle) name(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := share(dir); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	err = errors.Join(f.Close(), unix.Mount(fmt.Sprintf("/proc/self/fd/%d", h.FD()), path, "none", unix.MS_BIND, ""))
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// share makes a directory a shared mount, under the lock that ip-netns takes for it.
func share(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	err = unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// Not a mount yet.
	if err := unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
}
