// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

func newNS(t *testing.T) *Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates a network namespace")
	}
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

func TestNewNamespaceIsNotTheCallers(t *testing.T) {
	h := newNS(t)
	cur, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer cur.Close()
	if h.Inode() == cur.Inode() {
		t.Fatal("a new namespace has the caller's inode")
	}
	a, err := h.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	b, err := cur.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Fatalf("both namespaces have cookie %d", a)
	}
}

func TestSysfsShowsTheNamespacesOwnDevices(t *testing.T) {
	h := newNS(t)
	root, err := h.Sysfs()
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	entries, err := fs.ReadDir(root.FS(), "class/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lo" {
			t.Fatalf("device %s in a new namespace", e.Name())
		}
	}
	if len(entries) == 0 {
		t.Fatal("no lo in the new namespace's sysfs")
	}
}

func TestOfPathRefusesWhatIsNoNamespace(t *testing.T) {
	if _, err := OfPath("/proc/self/status"); err == nil {
		t.Fatal("an ordinary file was taken for a namespace")
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// Were it opened, the test would hang.
	if _, err := OfPath(fifo); err == nil {
		t.Fatal("a FIFO was taken for a namespace")
	}
}

// When ip-netns names its first namespace, it mounts the directory over itself, and what has been
// mounted in it by others is covered.
func TestNameOutlivesIPNetns(t *testing.T) {
	h := newNS(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := h.Name(path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := h.Name(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name was given twice: %v", err)
	}
	if err := share(dir); err != nil { // as ip-netns does
		t.Fatal(err)
	}
	named, err := OfPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	if named.Inode() != h.Inode() {
		t.Error("the name is another namespace's")
	}
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Error("a mount is left beneath: ", err)
	}
}

// firstThread tells whether the process's first thread was used, as asked for on it, with no other
// thread to take over the work.
var firstThread bool

func init() { runtime.LockOSThread() } // so that TestMain runs on the first thread

func TestMain(m *testing.M) {
	procs := runtime.GOMAXPROCS(1)
	runtime.UnlockOSThread()
	_ = privilege.OnThread(func() error {
		firstThread = unix.Gettid() == unix.Getpid()
		return nil
	})
	runtime.GOMAXPROCS(procs)
	os.Exit(m.Run())
}

// The process's first thread never goes anywhere: it would stay there, and keep the namespace alive.
func TestTheFirstThreadStaysWhereItIs(t *testing.T) {
	if firstThread {
		t.Error("it was used")
	}
}

// A thread stays one and the same, in its namespace, and ends when it is closed.
func TestAThreadStaysInItsNamespace(t *testing.T) {
	h := newNS(t)
	thread, err := h.Thread()
	if err != nil {
		t.Fatal(err)
	}
	var tids [2]int
	for i := range tids {
		err := thread.Do(func() error {
			tids[i] = unix.Gettid()
			here, err := OfPath("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer here.Close()
			if here.Inode() != h.Inode() {
				t.Errorf("call %d is in another namespace", i)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if tids[0] != tids[1] || tids[0] == unix.Gettid() {
		t.Errorf("threads %v, this one is %d", tids, unix.Gettid())
	}
	if err := thread.Do(func() error { return fs.ErrExist }); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v", err)
	}
	thread.Close()
	ends(t, tids[0])
}

// ends waits for a thread of this process to end.
func ends(t *testing.T, tid int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); unix.Tgkill(os.Getpid(), tid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it goes on")
		}
	}
}

// One thread makes one visit after the other, and keeps none of the namespaces alive meanwhile. After one that
// failed it makes none any more.
func TestAThreadGoesHomeBetweenVisits(t *testing.T) {
	for len(resting) > 0 {
		<-resting // of tests before: for ever
	}
	home, err := Current()
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	visit := func(fails error) (tid int) {
		h := newNS(t)
		err := h.Visit(func() error {
			tid = unix.Gettid()
			here, err := Current()
			if err != nil {
				return err
			}
			defer here.Close()
			if here.Inode() != h.Inode() {
				t.Error("a visit is made elsewhere")
			}
			return fails
		})
		if !errors.Is(err, fails) {
			t.Errorf("error %v, not %v", err, fails)
		}
		return tid
	}
	first := visit(nil)
	rests, err := OfPath(fmt.Sprintf("/proc/self/task/%d/ns/net", first))
	if err != nil {
		t.Fatal(err)
	}
	defer rests.Close()
	if rests.Inode() != home.Inode() {
		t.Error("it does not rest where it came from")
	}
	if second := visit(fs.ErrExist); second != first {
		t.Errorf("threads %d and %d", first, second)
	}
	if third := visit(nil); third == first {
		t.Error("it goes on after a visit that failed")
	}
	ends(t, first)
}
