// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

// newContainer is a bed whose second namespace has its sysfs mounted read-only before anything else has, as
// a container runtime does it. It returns the container's own view of it.
func newContainer(t *testing.T) (*bed, *os.Root) {
	b := newBed(t)
	dir := t.TempDir()
	var view *os.Root
	b.must(b.b.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("sysfs", dir, "sysfs", unix.MS_RDONLY, ""))
		if err == nil {
			view, err = os.OpenRoot(dir)
		}
		return err
	}))
	t.Cleanup(func() { view.Close() })
	b.wantReadOnly(true)
	return b, view
}

func (b *bed) wantReadOnly(want bool) {
	b.t.Helper()
	root, err := b.b.Sysfs()
	b.must(err)
	defer root.Close()
	if got, err := netns.SysfsReadOnly(root); err != nil || got != want {
		b.t.Fatalf("the container's sysfs superblock is read-only: %t, %v", got, err)
	}
}

func TestMasksOfAContainerAreSetAndRestored(t *testing.T) {
	b, view := newContainer(t)
	before := b.snapshot()
	l := b.lock()
	windows := 0
	fault = func(point string) {
		if point != "superblock:after" {
			return
		}
		windows++
		if err := view.WriteFile("class/net/vb/queues/rx-0/rps_cpus", []byte("1"), 0); !errors.Is(err, unix.EROFS) {
			t.Errorf("the container writes its mask, with %v", err)
		}
	}
	defer func() { fault = nil }()
	rep, err := l.Do(b, b.steps())
	b.must(err)
	wantOutcomes(t, rep, Applied, len(b.steps()))
	b.wantReadOnly(true)
	if n := len(l.Entries()); n != len(b.steps()) {
		t.Errorf("%d entries for %d settings", n, len(b.steps()))
	}
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, len(b.steps()))
	b.wantSnapshot(before)
	b.wantReadOnly(true)
	b.wantNoJournal()
	if windows != 2 {
		t.Errorf("the superblock was made writable %d times, want once for each direction", windows)
	}
}

// One process is killed at any point, between two switches of the superblock as well.
func TestContainersSuperblockAfterKillAtAnyPoint(t *testing.T) {
	b, _ := newContainer(t)
	before := b.snapshot()
	steps := []plan.Step{b.steps()[0], b.steps()[2]}
	for _, guardian := range []bool{true, false} {
		eachFault(b, script{Plans: [][]plan.Step{steps}, Guardian: guardian}, func(*daemon) {
			if !guardian {
				f := NewFinder()
				defer f.Close()
				l, err := b.open().Lock()
				b.must(err)
				_, err = l.Restore(f)
				b.must(errors.Join(err, l.Unlock()))
			}
			b.wantReadOnly(true)
			b.wantSnapshot(before)
			b.wantNoJournal()
		})
	}
}

// A foreign program opens a file for writing as soon as it can: the superblock cannot be made read-only again
// before that is closed.
func TestSuperblockThatIsBusyStaysInTheJournal(t *testing.T) {
	b, _ := newContainer(t)
	l := b.lock()
	root, err := b.b.Sysfs()
	b.must(err)
	defer root.Close()
	var held *os.File
	fault = func(point string) {
		if point == "superblock:after" && held == nil {
			held, err = root.OpenFile("class/net/vb/tx_queue_len", os.O_WRONLY, 0)
			b.must(err)
		}
	}
	defer func() { fault = nil }()
	rep, err := l.Do(b, b.steps()[2:3])
	b.must(err)
	if rep.Count(Applied) != 1 || rep.Count(Kept) != 1 || !strings.Contains(rep.Results[1].String(), "open for writing") {
		t.Fatalf("%v", rep.Results)
	}
	rep, err = l.Restore(b)
	b.must(err)
	if left := rep.Left(); left == nil || !strings.Contains(left.Error(), "sysfs superblock") {
		t.Errorf("left is %v", left)
	}
	b.must(held.Close())
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, 1)
	b.wantReadOnly(true)
	b.wantNoJournal()
}

// The journal's file cannot say that the superblock is read-only again, nor, later, that it is made writable to restore.
func TestAContainersSuperblockOnAFullDisk(t *testing.T) {
	b, _ := newContainer(t)
	b.state = tinyDisk(t, 2)
	before := b.snapshot()
	l := b.lock()
	rep, err := l.Do(b, b.steps())
	b.must(err)
	wantOutcomes(t, rep, Applied, len(b.steps()))
	if err := l.Sync(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	b.wantReadOnly(true)
	b.must(l.j.f.Close()) // it takes nothing more
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, len(b.steps()))
	b.wantSnapshot(before)
	b.wantReadOnly(true)
	b.must(l.Unlock())
	b.wantNoJournal()
}

// What one device refuses is no matter of the others'.
func TestEachDeviceByItself(t *testing.T) {
	b, _ := newContainer(t)
	before := b.snapshot()
	l := b.lock()
	steps := b.steps()
	steps[1].Want = "nonsense" // the second of va's
	rep, err := l.DoEach(b, steps)
	b.must(err)
	for _, r := range rep.Results {
		want := Applied
		if r.Name == "va" {
			want = Refused
		}
		if r.Outcome != want || want == Refused && !strings.Contains(r.Reason, "invalid argument") {
			t.Errorf("%s", r)
		}
	}
	if rep.Count(Refused) != 2 || len(rep.Results) != len(steps) {
		t.Errorf("%v", rep.Results)
	}
	if slices.ContainsFunc(l.Entries(), func(e Entry) bool { return e.Name == "va" || e.Kind == plan.Superblock }) {
		t.Errorf("journal holds %+v", l.Entries())
	}
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
	b.wantNoJournal()
}
