// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// hideMain is an ordinary user's process, in a user and a mount namespace that it has made: it mounts a network
// namespace that no process is in, and hides the mount under a FIFO or under a symbolic link to a file of root.
func hideMain(dir, target string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	cover := func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") }
	if err := cover(); err != nil {
		return err
	}
	h, err := netns.New()
	if err != nil {
		return err
	}
	point := filepath.Join(dir, "ns")
	cookie, err := h.Cookie()
	if err := errors.Join(err, os.WriteFile(point, nil, 0o444)); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", h.FD()), point, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	inode := h.Inode()
	if err := errors.Join(h.Close(), cover()); err != nil {
		return err
	}
	switch target {
	case "":
		err = unix.Mkfifo(point, 0o666)
	case "open":
		err = unix.Unmount(dir, 0)
	default:
		err = os.Symlink(target, point)
	}
	fmt.Println(cookie, inode)
	_, rerr := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, rerr)
}

// hide starts it, as a user with no right on this machine.
func hide(t *testing.T, target string) (cookie, inode uint64) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: looks into other users' mount namespaces")
	}
	cmd := exec.Command("/proc/self/exe", "hide", "/tmp", target) // /tmp of its own mount namespace
	cmd.Stderr = os.Stderr
	unprivileged := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
		UidMappings: unprivileged, GidMappings: unprivileged,
		Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if _, err := fmt.Fscan(out, &cookie, &inode); err != nil {
		t.Fatal(err)
	}
	return cookie, inode
}

// byCookie fails the test if the search does not end.
func byCookie(t *testing.T, f *Finder, cookie uint64) (err error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := f.ByCookie(cookie)
		done <- err
	}()
	select {
	case err = <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the search for a namespace hangs")
	}
	return err
}

func TestAnotherUsersMountsAreNotOpened(t *testing.T) {
	t.Run("in the open", func(t *testing.T) {
		cookie, _ := hide(t, "open")
		f := NewFinder()
		defer f.Close()
		if err := byCookie(t, f, cookie); err != nil {
			t.Error(err)
		}
	})
	t.Run("FIFO", func(t *testing.T) {
		cookie, inode := hide(t, "")
		f := NewFinder()
		defer f.Close()
		f.Hint(cookie, inode)
		if err := byCookie(t, f, cookie); !errors.Is(err, netns.ErrHidden) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("link", func(t *testing.T) {
		secret := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secret, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(watch)
		if _, err := unix.InotifyAddWatch(watch, secret, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
		cookie, inode := hide(t, secret)
		f := NewFinder()
		defer f.Close()
		f.Hint(cookie, inode)
		if err := byCookie(t, f, cookie); !errors.Is(err, netns.ErrHidden) {
			t.Errorf("error %v", err)
		}
		if n, _ := unix.Read(watch, make([]byte, 256)); n > 0 {
			t.Error("a file that only root may read was opened")
		}
	})
}

func TestWhatKeepsANamespaceFromBeingSeenIsMended(t *testing.T) {
	for _, tt := range []struct {
		blind error
		want  string
	}{
		{errOwnPIDs, "--pid host"},
		{fs.ErrPermission, "CAP_SYS_PTRACE"},
		{netns.ErrHidden, "unmount"},
	} {
		f := NewFinder()
		f.near, f.deep, f.blind = true, true, tt.blind
		if _, err := f.byCookie(1); !errors.Is(err, tt.blind) || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrNoNamespace) {
			t.Errorf("%v: %v", tt.blind, err)
		}
	}
}
