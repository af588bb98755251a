// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/plan"
)

func entry(i int) Entry {
	return Entry{
		Setting: plan.RPSMask(plan.Target{NetnsCookie: 7, Ifindex: i + 1, Name: fmt.Sprintf("d%d", i)}, 0),
		Inode:   4026531840, First: "0", Wrote: "2",
	}
}

func open(t *testing.T, state string) (*Dir, *journal) {
	t.Helper()
	d, err := Open(state, 7)
	if err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.close(); d.Close() })
	return d, j
}

// Whatever part of the last record a crash has left, the records before it
// are there, and the next one does not run into the rest of it.
func TestTornRecordIsAsIfNeverWritten(t *testing.T) {
	state := t.TempDir()
	d, j := open(t, state)
	for i := range 2 {
		if err := j.add([]Entry{entry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	sound := j.size
	long := entry(2)
	long.Kept = strings.Repeat("longer than the record that comes next ", 10)
	if err := j.add([]Entry{long}); err != nil {
		t.Fatal(err)
	}
	whole, err := d.root.ReadFile(journalName)
	if err != nil {
		t.Fatal(err)
	}
	for cut := sound; cut < int64(len(whole)); cut++ {
		if err := d.root.WriteFile(journalName, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		_, j := open(t, state)
		if len(j.entries) != 2 || j.damaged != 0 || j.size != sound {
			t.Fatalf("cut at %d: %d entries, %d damaged, size %d", cut, len(j.entries), j.damaged, j.size)
		}
		if err := j.add([]Entry{entry(3)}); err != nil {
			t.Fatal(err)
		}
		_, j = open(t, state)
		if len(j.entries) != 3 || j.damaged != 0 || j.entries[2] != entry(3) {
			t.Fatalf("cut at %d, then added: %+v, %d damaged", cut, j.entries, j.damaged)
		}
	}
}

func TestDamagedRecordDoesNotHideTheOthers(t *testing.T) {
	state := t.TempDir()
	d, j := open(t, state)
	if err := j.add([]Entry{entry(0), entry(1), entry(2)}); err != nil {
		t.Fatal(err)
	}
	whole, err := d.root.ReadFile(journalName)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Replace(whole, []byte(`"device":"d1"`), []byte(`"device":"d9"`), 1)
	if err := d.root.WriteFile(journalName, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	_, j = open(t, state)
	if len(j.entries) != 2 || j.damaged != 1 {
		t.Fatalf("%d entries, %d damaged", len(j.entries), j.damaged)
	}
}

func TestForeignJournalIsRefusedOrDropped(t *testing.T) {
	tests := []struct {
		name string
		head header
		says string // "" if the journal is dropped
	}{
		{"newer version", header{Version: journalVersion + 1, Netns: 7}, "overlane off"},
		{"other namespace", header{Version: journalVersion, Netns: 8}, "namespace 8"},
		{"earlier boot", header{Version: journalVersion, Netns: 7, Boot: "yesterday"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Open(t.TempDir(), 7)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			e := entry(0)
			var text []byte
			for _, r := range []record{{Header: &tt.head}, {Entry: &e}} {
				line, err := encode(r)
				if err != nil {
					t.Fatal(err)
				}
				text = append(text, line...)
			}
			if err := d.root.WriteFile(journalName, text, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := d.Lock()
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("error %v does not say %q", err, tt.says)
				}
				now, err := d.root.ReadFile(journalName)
				if err != nil || !bytes.Equal(now, text) {
					t.Fatal("a refused journal was changed")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Unlock()
			if len(l.Entries()) != 0 {
				t.Fatalf("entries of an earlier boot: %+v", l.Entries())
			}
		})
	}
}

func TestJournalSurvivesBeingRemovedUnderneath(t *testing.T) {
	state := t.TempDir()
	d, j := open(t, state)
	if err := j.add([]Entry{entry(0)}); err != nil {
		t.Fatal(err)
	}
	if err := d.root.Remove(journalName); err != nil {
		t.Fatal(err)
	}
	// One that cannot be written again takes nothing more, however often that is tried.
	if err := d.root.Mkdir(rewriteName, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := j.add([]Entry{entry(2)}); err == nil || len(j.entries) != 1 {
			t.Fatalf("added to a journal that is gone: %v, %d entries", err, len(j.entries))
		}
	}
	if err := d.root.Remove(rewriteName); err != nil {
		t.Fatal(err)
	}
	if err := j.add([]Entry{entry(1)}); err != nil {
		t.Fatal(err)
	}
	if _, j = open(t, state); len(j.entries) != 2 {
		t.Fatalf("%d entries on disk, want 2", len(j.entries))
	}
}

func TestStateDirectoryOpenToOthersIsRefused(t *testing.T) {
	state := t.TempDir()
	if err := os.Mkdir(filepath.Join(state, "7"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(state, "7"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(state, 7); err == nil || !strings.Contains(err.Error(), "chmod") {
		t.Fatalf("%v", err)
	}
}

// tinyDisk is a file system of the given number of pages that no other
// process sees and that ends with the test.
func tinyDisk(t *testing.T, pages int) string {
	t.Helper()
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		err = unix.FsconfigSetString(fsfd, "size", fmt.Sprint(pages*os.Getpagesize()))
	}
	if err == nil {
		err = unix.FsconfigCreate(fsfd)
	}
	if err != nil {
		t.Fatal(err)
	}
	mnt, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fsfd)
	t.Cleanup(func() { unix.Close(mnt) })
	return fmt.Sprintf("/proc/self/fd/%d", mnt)
}

// The way to a state directory may lead by symlinks, as /var/run does. What stands in place of its files is an error that
// names it, and what would mend it; it is neither followed nor waited for.
func TestWhatStandsInPlaceOfTheStateIsNamed(t *testing.T) {
	link := func(to string) func(string) error { return func(path string) error { return os.Symlink(to, path) } }
	for _, name := range []string{lockName, journalName} {
		for what, put := range map[string]func(path string) error{
			"is a symlink to /etc/hosts, and none is followed": link("/etc/hosts"),
			"is a symlink to /none/journal":                    link("/none/journal"),
			"is a symlink to other":                            link("other"),
			"is in the way and is no regular file: remove it":  func(path string) error { return unix.Mkfifo(path, 0o600) },
		} {
			state := t.TempDir()
			path := filepath.Join(state, "7", name)
			if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), put(path)); err != nil {
				t.Fatal(err)
			}
			d, err := Open(state, 7)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Lock(); err == nil || !strings.Contains(err.Error(), path+" "+what) {
				t.Errorf("%s: %v, want %s", name, err, what)
			}
			if _, err := d.Entries(); name == journalName && (err == nil || !strings.Contains(err.Error(), path+" "+what)) {
				t.Errorf("reading: %v, want %s", err, what)
			}
			if name == lockName && d.Holder() != 0 {
				t.Error("it has a holder")
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}

	state := t.TempDir()
	if err := errors.Join(os.Mkdir(state+"/run", 0o700), os.Symlink("run", state+"/var"), os.Symlink("none", state+"/lost")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/var", "/var/overlane"} {
		d, err := Open(state+dir, 7)
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.Lock()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.Unlock(), d.Close()); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{"/lost", "/lost/overlane"} {
		if _, err := Open(state+dir, 7); err == nil || !strings.Contains(err.Error(), state+"/lost is a symlink to none, where no directory is: make one") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestNoJournalNoChange(t *testing.T) {
	b := newBed(t)
	// One page for the pid in the lock, one for the filler or the journal.
	b.state = tinyDisk(t, 2)
	before := b.snapshot()
	l := b.lock()
	b.must(os.WriteFile(b.state+"/filler", make([]byte, os.Getpagesize()), 0o600))
	_, err := l.Do(b, b.steps())
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Fatalf("Do on a full disk: %v", err)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
	b.must(os.Remove(b.state + "/filler"))
	_, err = l.Do(b, b.steps())
	b.must(err)
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
}

// A disk that becomes full in the middle of a record must leave the records
// before it whole, and must not be in the way of restoring.
func TestJournalThatFillsTheDiskStillRestores(t *testing.T) {
	b := newBed(t)
	b.state = tinyDisk(t, 2)
	before := b.snapshot()
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	for i := 0; err == nil; i++ {
		if i > 100 {
			t.Fatal("the disk does not become full")
		}
		applied := b.snapshot()
		steps := b.other()
		if i%2 == 1 {
			steps = b.steps()
		}
		if _, err = l.Do(b, steps); err != nil {
			b.wantSnapshot(applied)
			onDisk, err := l.dir.Entries()
			b.must(err)
			if !slices.Equal(onDisk, l.Entries()) {
				t.Errorf("on disk\n%+v\nwant\n%+v", onDisk, l.Entries())
			}
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	b.must(l.Unlock())
	l = b.lock()
	rep, err := l.Restore(b)
	b.must(err)
	if rep.Damaged != 0 {
		t.Errorf("%d damaged records", rep.Damaged)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
}

// What is taken back while the disk is full is done with. The file names it until there is room, or until the next
// owner has seen that it has its first value.
func TestAFullDiskKeepsNothingFromBeingTakenBack(t *testing.T) {
	for _, crash := range []bool{false, true} {
		b := newBed(t)
		b.state = tinyDisk(t, 3)
		before := b.snapshot()
		l := b.lock()
		steps := b.steps()
		for i := range steps[3:] {
			steps[3+i].By = plan.ByAggregation
		}
		_, err := l.Do(b, steps)
		b.must(err)
		filler := b.state + "/filler"
		b.must(os.WriteFile(filler, make([]byte, os.Getpagesize()), 0o600))
		restore := func() {
			t.Helper()
			rep, err := l.RestoreIf(b, func(e Entry) bool { return e.By == plan.ByPipeline })
			b.must(err)
			wantOutcomes(t, rep, Restored, 3)
			onDisk, err := l.dir.Entries()
			b.must(err)
			if err := l.Sync(); !errors.Is(err, syscall.ENOSPC) || len(l.Entries()) != len(steps)-3 || len(onDisk) != len(steps) {
				t.Errorf("%v; %d settings are changed, and the file has %d", err, len(l.Entries()), len(onDisk))
			}
		}
		restore()
		// The rest of the file's page has room for a change.
		_, err = l.Do(b, steps[:3])
		b.must(err)
		restore()
		if crash {
			_, _ = l.j.close(), l.f.Close()
			l = b.lock()
			rep, err := l.Restore(b)
			b.must(err)
			if rep.Count(Untouched) != 3 || rep.Count(Restored) != len(steps)-3 {
				t.Errorf("%v", rep.Results)
			}
		} else {
			b.must(os.Remove(filler))
			b.must(l.Sync())
			onDisk, err := l.dir.Entries()
			b.must(err)
			if !slices.Equal(onDisk, l.Entries()) {
				t.Errorf("on disk\n%+v\nwant\n%+v", onDisk, l.Entries())
			}
			_, err = l.Restore(b)
			b.must(err)
		}
		b.wantSnapshot(before)
		b.wantNoJournal()
	}
}

func FuzzDecode(f *testing.F) {
	e := entry(0)
	line, err := encode(record{Entry: &e})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add(append(line, line[:20]...))
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := decode(data, 7)
		if err != nil {
			return
		}
		if st.size > int64(len(data)) {
			t.Fatalf("sound up to %d of %d", st.size, len(data))
		}
		for _, e := range st.entries {
			if e.Validate() != nil {
				t.Fatalf("invalid entry %+v", e)
			}
		}
	})
}

// What a daemon has found out is there for the next one, and replaced as a whole.
func TestAFileOfTheFolderIsReplacedAsAWhole(t *testing.T) {
	d, err := Open(t.TempDir(), 7)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.ReadFile("known"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
	for _, text := range []string{"a long text", "short"} {
		if err := d.WriteFile("known", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := d.ReadFile("known"); err != nil || string(got) != text {
			t.Errorf("%q, %v, want %q", got, err, text)
		}
	}
	left, err := os.ReadDir(d.path)
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}
