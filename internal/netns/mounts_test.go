// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMountsAreThoseOfNetworkNamespaces(t *testing.T) {
	const info = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:4 net:[4026532001] /run/netns/a\040b rw shared:2 - nsfs nsfs rw
31 22 0:4 mnt:[4026532002] /run/snapd/ns/x.mnt rw - nsfs nsfs rw
32 22 0:25 net:[4026532003] /tmp/fake rw - tmpfs tmpfs rw
33 22 0:4 net:[4026532004] /srv/exec-root/netns/1-abc rw - nsfs nsfs rw
broken
`
	want := []Mount{{"self", "/run/netns/a b", 4026532001}, {"self", "/srv/exec-root/netns/1-abc", 4026532004}}
	if got := parseMounts("self", info); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// mounted gives a namespace a name in a directory of the test's.
func mounted(t *testing.T, h *Handle) Mount {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(h.FD()), path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return Mount{"self", path, h.Inode()}
}

func TestOfMountOpensWhatTheListNames(t *testing.T) {
	h := newNS(t)
	m := mounted(t, h)
	list, err := Mounts("self")
	if err != nil || !slices.Contains(list, m) {
		t.Fatalf("%+v is not in the list: %v", m, err)
	}
	got, err := OfMount(m)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if got.Inode() != h.Inode() {
		t.Errorf("opened namespace %d, want %d", got.Inode(), h.Inode())
	}
}

// What stands where a namespace was mounted may have been put there by an unprivileged user, to have
// root wait in it or open it.
func TestNothingButANamespaceIsOpened(t *testing.T) {
	h := newNS(t)
	m := mounted(t, h)
	dir := filepath.Dir(m.Point)
	fifo, link, through := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "through")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.Symlink(m.Point, link), os.Symlink(dir, through)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		fifo: fs.ErrNotExist, link: fs.ErrNotExist, through + "/ns": fs.ErrNotExist, dir + "/none": fs.ErrNotExist,
		"/proc/thread-self/ns/net": fs.ErrNotExist,
	} {
		got, err := OfMount(Mount{"self", path, h.Inode()})
		if err == nil {
			got.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := OfMount(Mount{"self", m.Point, h.Inode() + 1}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another inode: %v", err)
	}
	// The list names it, and something is over it.
	if err := unix.Mount(fifo, m.Point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(m.Point, unix.MNT_DETACH)
	if _, err := OfMount(m); !errors.Is(err, ErrHidden) {
		t.Errorf("under a FIFO: %v", err)
	}
	if _, err := OfPath(fifo); err == nil || !strings.Contains(err.Error(), "is not a namespace") {
		t.Errorf("OfPath of a FIFO: %v", err)
	}
}
