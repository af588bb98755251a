// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

func device(name string, index int, mac string) *netlink.Bridge {
	d := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}
	if mac != "" {
		d.HardwareAddr = []byte{2, 0, 0, 0, 0, mac[0]}
	}
	return d
}

// Each case changes the device between Do and Restore. The mask that overlane
// wrote is 2, and the next device has it too, so that only the identity can
// tell them apart.
func TestRestoreKnowsItsDevice(t *testing.T) {
	const index = 1077
	tests := []struct {
		name   string
		meddle func(*bed)
		want   Outcome
		where  string // device whose mask is checked at the end
		mask   string
	}{
		{"as it was", func(b *bed) {}, Restored, "x0", "0"},
		{"deleted", func(b *bed) { b.del(b.b, "x0") }, Gone, "", ""},
		{"renamed", func(b *bed) { b.rename("x0", "x1") }, Restored, "x1", "0"},
		{"renamed, and its name given to another", func(b *bed) {
			b.rename("x0", "x1")
			b.add(b.b, device("x0", 0, "C"))
			b.set(b.b, "x0/queues/rx-0/rps_cpus", "2")
		}, Restored, "x0", "2"},
		{"same name, another index", func(b *bed) {
			b.del(b.b, "x0")
			b.add(b.b, device("x0", 0, "A"))
			b.set(b.b, "x0/queues/rx-0/rps_cpus", "2")
		}, Gone, "x0", "2"},
		{"same index, another device", func(b *bed) {
			b.del(b.b, "x0")
			b.add(b.b, device("y0", index, "B"))
			b.set(b.b, "y0/queues/rx-0/rps_cpus", "2")
		}, LeftAlone, "y0", "2"},
		{"recreated alike", func(b *bed) {
			b.del(b.b, "x0")
			b.add(b.b, device("x0", index, "A"))
		}, Untouched, "x0", "0"},
		{"changed by another program", func(b *bed) { b.set(b.b, "x0/queues/rx-0/rps_cpus", "3") }, LeftAlone, "x0", "3"},
		{"set back by another program", func(b *bed) { b.set(b.b, "x0/queues/rx-0/rps_cpus", "0") }, Untouched, "x0", "0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			l := b.lock()
			x0 := b.add(b.b, device("x0", index, "A"))
			_, err := l.Do(b, []plan.Step{{Setting: plan.RPSMask(x0, 0), By: plan.ByPipeline, Want: "2"}})
			b.must(err)
			b.must(l.Unlock()) // what follows knows only the journal
			tt.meddle(b)
			l = b.lock()
			rep, err := l.Restore(b)
			b.must(err)
			wantOutcomes(t, rep, tt.want, 1)
			if tt.where != "" {
				if v := b.get(b.b, tt.where+"/queues/rx-0/rps_cpus"); v != tt.mask {
					t.Errorf("mask of %s is %s, want %s", tt.where, v, tt.mask)
				}
			}
			b.wantNoJournal()
		})
	}
}

// unseen is a Namespaces that does not search.
type unseen struct{}

func (unseen) ByCookie(uint64) (*netns.Handle, error) { return nil, ErrUnseen }

func TestWhatIsNotSeenIsPassedOverAndNotTakenForGone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	rep, err := l.Do(unseen{}, b.steps())
	b.must(err)
	wantOutcomes(t, rep, Gone, len(b.steps()))
	_, err = l.Do(b, b.steps())
	b.must(err)
	rep, err = l.Restore(unseen{})
	b.must(err)
	wantOutcomes(t, rep, Kept, len(b.steps()))
	_, err = l.Restore(b)
	b.must(err)
	b.wantNoJournal()
}

// The journal is looked up by names as well: it follows those of devices that are told by index and address.
func TestTheJournalFollowsNames(t *testing.T) {
	const index = 77
	b := newBed(t)
	l := b.lock()
	x0 := b.add(b.b, device("x0", index, "A"))
	id, stop := startThread(t)
	defer stop()
	mask, thread := plan.RPSMask(x0, 0), plan.Thread(x0, id)
	_, err := l.Do(b, []plan.Step{
		{Setting: mask, By: plan.ByPipeline, Want: "2"},
		{Setting: thread, By: plan.ByPipeline, Want: "policy=batch prio=0 nice=10 cores=0"},
	})
	b.must(err)
	sysfs, err := b.b.Sysfs()
	b.must(err)
	defer sysfs.Close()
	follow := func(name string) {
		t.Helper()
		b.must(l.Rename(b, func(at plan.Target) string { return name }))
		for _, s := range []*plan.Setting{&mask, &thread} {
			if s.Name = name; Ours(l.Entries())[*s].Wrote == "" {
				t.Errorf("%s: journal %+v", s, l.Entries())
			}
		}
		if DeviceGone(sysfs, x0) {
			t.Error("a device that is renamed is gone")
		}
	}
	b.rename("x0", "x1")
	follow("x1")
	rep, err := l.Do(b, []plan.Step{{Setting: mask, By: plan.ByPipeline, Want: "1"}})
	b.must(err)
	wantOutcomes(t, rep, Applied, 1)
	b.rename("x1", "x0")
	follow("x0")

	b.del(b.b, "x0")
	if !DeviceGone(sysfs, x0) {
		t.Error("a device that was deleted is not gone")
	}
	b.add(b.b, device("y0", index, "B"))
	b.must(l.Rename(b, func(plan.Target) string { return "y0" }))
	if Ours(l.Entries())[mask].Wrote == "" {
		t.Errorf("another device has got the entry: %+v", l.Entries())
	}
	rep, err = l.Restore(b)
	b.must(err)
	if got := outcome(t, rep, mask); got.Outcome != LeftAlone {
		t.Errorf("%+v", got)
	}
}

func (b *bed) rename(from, to string) {
	b.t.Helper()
	b.must(b.b.Do(func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		return netlink.LinkSetName(l, to)
	}))
}

// darkness is a Namespaces that cannot see.
type darkness struct{}

func (darkness) ByCookie(uint64) (*netns.Handle, error) { return nil, errTest }

func TestWhatCannotBeRestoredStaysWithTheReason(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	rep, err := l.Restore(darkness{})
	b.must(err) // the journal has them: a daemon that cannot bring one back goes on
	wantOutcomes(t, rep, Kept, len(b.steps()))
	if rep.Left() == nil {
		t.Fatal("the report says of nothing that it is left")
	}
	b.must(l.Unlock())

	entries, err := b.open().Entries()
	b.must(err)
	if len(entries) != len(b.steps()) {
		t.Fatalf("%d entries left of %d", len(entries), len(b.steps()))
	}
	for i, e := range entries {
		if e.Setting != b.steps()[i].Setting || !strings.Contains(e.Kept, "test") {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
	l = b.lock()
	_, err = l.Restore(darkness{})
	b.must(err)
	rep, err = l.Do(b, b.other())
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, len(b.other()))
	rep, err = l.DoEach(b, b.other())
	b.must(err)
	wantOutcomes(t, rep, Refused, len(b.other()))
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestRestoreOfSomeLeavesTheOthers(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	rep, err := l.RestoreIf(b, func(e Entry) bool { return e.Name == "va" })
	b.must(err)
	wantOutcomes(t, rep, Restored, 2)
	if n := len(l.Entries()); n != len(b.steps())-2 {
		t.Errorf("%d entries left", n)
	}
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, len(b.steps())-2)
	b.wantSnapshot(before)
}

func TestForgetDropsDevicesThatHaveGone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	gone := b.target(b.b, "vb")
	b.must(l.Forget(func(e Entry) bool { return e.Target == gone }))
	b.must(l.Unlock())
	entries, err := b.open().Entries()
	b.must(err)
	for _, e := range entries {
		if e.Target == gone {
			t.Errorf("%s is still in the journal", e.Setting)
		}
	}
	if len(entries) != len(b.steps())-2 {
		t.Errorf("%d entries left", len(entries))
	}
}

func TestRestoreFindsUnnamedNamespacesByItself(t *testing.T) {
	for _, hinted := range []bool{true, false} {
		b := newBed(t)
		before := b.snapshot()
		l := b.lock()
		_, err := l.Do(b, b.steps())
		b.must(err)
		f := NewFinder()
		var ns Namespaces = f
		if !hinted {
			ns = struct{ Namespaces }{f} // hides Hint
		}
		rep, err := l.Restore(ns)
		b.must(err)
		wantOutcomes(t, rep, Restored, len(b.steps()))
		b.must(f.Close())
		b.wantSnapshot(before)
		b.must(l.Unlock())
	}
}

func TestNamespaceThatIsGoneIsDone(t *testing.T) {
	if own, _ := os.Readlink("/proc/self/ns/pid"); own != "pid:[4026531836]" {
		t.Skip("needs the initial pid namespace: elsewhere, nothing is surely gone")
	}
	b := newBed(t)
	l := b.lock()
	h := b.netns()
	x0 := b.add(h, device("x0", 0, ""))
	_, err := l.Do(b, []plan.Step{{Setting: plan.RPSMask(x0, 0), By: plan.ByPipeline, Want: "2"}})
	b.must(err)
	b.must(h.Close())
	delete(b.cookie, h)
	f := NewFinder()
	defer f.Close()
	rep, err := l.Restore(f)
	b.must(err)
	wantOutcomes(t, rep, Gone, 1)
	b.wantNoJournal()
	if _, err := NewFinder().ByCookie(x0.NetnsCookie); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("%v", err)
	}
}

// A process that may not be inspected hides no namespace that others are in: a daemon that looks from
// another one than its own still knows what is gone. (Here the first process may be such a one, or not.)
func TestADaemonInAnotherNamespaceKnowsWhatIsGone(t *testing.T) {
	b := newBed(t)
	const never = 1 << 62 // a cookie that no namespace has
	b.must(b.a.Do(func() error {
		if _, err := NewFinder().ByCookie(never); !errors.Is(err, ErrNoNamespace) {
			t.Errorf("error %v", err)
		}
		return nil
	}))
}

// The kernel answers with EINVAL for a device that is being unregistered: the file of another attribute that does so
// stands for it. Any other error says nothing of the device.
func TestADeviceThatIsBeingUnregisteredIsGone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a file")
	}
	dir := t.TempDir()
	x0 := plan.Target{NetnsCookie: 1, Ifindex: 5, Name: "x0"}
	index := filepath.Join(dir, "class/net/x0/ifindex")
	root, err := os.OpenRoot(dir)
	if err := errors.Join(err, os.MkdirAll(index, 0o700)); err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if DeviceGone(root, x0) {
		t.Error("a device whose index cannot be read is gone")
	}
	if err := errors.Join(os.Remove(index), os.WriteFile(index, nil, 0o600), unix.Mount("/sys/class/net/lo/speed", index, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(index, unix.MNT_DETACH)
	if !DeviceGone(root, x0) {
		t.Error("a device that is being unregistered is there")
	}
}

// A FIFO tells when the index is read for the first time. Until that read ends, something else takes its place.
func TestADeviceWhoseIndexCannotBeReadAgainIsNotGone(t *testing.T) {
	h, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	dir := t.TempDir()
	index := filepath.Join(dir, "class/net/x0/ifindex")
	root, err := os.OpenRoot(dir)
	if err := errors.Join(err, os.MkdirAll(filepath.Dir(index), 0o700), unix.Mkfifo(index, 0o600)); err != nil {
		t.Fatal(err)
	}
	k := newKernel(&bed{cookie: map[*netns.Handle]uint64{h: 1}})
	k.sysfs[1] = root
	defer k.close()
	swapped := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(index, os.O_WRONLY, 0)
		if err == nil {
			_, w := f.WriteString("5\n")
			err = errors.Join(os.Remove(index), os.Mkdir(index, 0o700), w, f.Close())
		}
		swapped <- err
	}()
	_, err = k.device(plan.Target{NetnsCookie: 1, Ifindex: 5, Name: "x0"}, "")
	if err := <-swapped; err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EISDIR) || certainlyGone(err) {
		t.Errorf("%v, want that it is not known", err)
	}
}
