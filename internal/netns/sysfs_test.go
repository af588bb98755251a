// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a container runtime leaves: /sys mounted read-only, before any other sysfs of the namespace.
func TestSysfsThatAContainerHasReadOnly(t *testing.T) {
	h, dir := newNS(t), t.TempDir()
	const mask = "class/net/lo/queues/rx-0/rps_cpus"
	err := h.Do(func() error { // a thread of its own, which ends with its mount namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("sysfs", dir, "sysfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")); err != nil {
			return err
		}
		root, err := h.Sysfs()
		if err != nil {
			return err
		}
		defer root.Close()
		ours := func() error { return root.WriteFile(mask, []byte("1"), 0) }
		look := func(when string, readOnly bool) {
			t.Helper()
			if is, err := SysfsReadOnly(root); err != nil || is != readOnly {
				t.Errorf("%s: read-only %t, %v", when, is, err)
			}
			if err := ours(); errors.Is(err, unix.EROFS) != readOnly {
				t.Errorf("%s: written with %v", when, err)
			}
			if err := os.WriteFile(dir+"/"+mask, []byte("2"), 0); !errors.Is(err, unix.EROFS) {
				t.Errorf("%s: the container writes, with %v", when, err)
			}
			if options := mountOptions(t, dir); !strings.HasPrefix(options, "ro,") {
				t.Errorf("%s: the container's mount is %s", when, options)
			}
		}
		look("first", true)
		if err := ReconfigureSysfs(root, ""); err != nil {
			t.Error(err)
		}
		look("tried", true)
		if err := ReconfigureSysfs(root, "rw"); err != nil {
			t.Error(err)
		}
		look("switched", false)
		if err := ReconfigureSysfs(root, ""); err != nil {
			t.Error(err)
		}
		look("switched and tried", false)
		f, err := root.OpenFile(mask, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if err := ReconfigureSysfs(root, "ro"); !errors.Is(err, unix.EBUSY) {
			t.Errorf("with a file open for writing: %v", err)
		}
		if err := errors.Join(f.Close(), ReconfigureSysfs(root, "ro")); err != nil {
			t.Error(err)
		}
		look("switched back", true)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mountOptions are those of the mount, not of its superblock.
func mountOptions(t *testing.T, dir string) string {
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); fields[4] == dir {
			return fields[5]
		}
	}
	return "not there"
}
