// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// copies is a holder.
type copies map[string][]int

func (c copies) Hold(name string, fd int) (func() error, error) {
	held, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	c[name] = append(c[name], held)
	return func() error { return nil }, err
}

// What is left at a resequencer of a flow that sends nothing is not overtaken by what it sends next:
// flows are drained only when that has come out, or is lost.
func TestFlowsAreNotDrainedWhileAResequencerHasTheirPackets(t *testing.T) {
	d := load(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	held := copies{}
	if err := d.HeldBy(held); err != nil {
		t.Fatal(err)
	}
	l, err := d.AttachPod(Device{Netns: ns, Ifindex: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o, err := Adopt(held)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := o.End(0); err != nil {
			t.Error(err)
		}
	}()
	const at = uint32(stagesOlLimitOL_MERGES) - 1
	drained := func(limit time.Duration, seen time.Duration, g stagesOlMerging) bool {
		t.Helper()
		now, err := Now()
		if err != nil {
			t.Fatal(err)
		}
		g.Key, g.Generation, g.Seen = 1, 1, now-uint64(seen)
		if err := errors.Join(d.SetMergeDevice(1), d.stages.OlMergings.Put(at, g)); err != nil {
			t.Fatal(err)
		}
		err = o.Drain(limit)
		if err != nil && !errors.Is(err, ErrFlowsOut) {
			t.Fatal(err)
		}
		return err == nil
	}
	if drained(300*time.Millisecond, 0, stagesOlMerging{Entered: 7, Left: 6, Held: 1}) {
		t.Error("they are drained, and a packet waits for another")
	}
	if drained(lostAfter/2, 0, stagesOlMerging{Entered: 7, Left: 6}) {
		t.Error("they are drained, and a packet has not come out")
	}
	for _, g := range []stagesOlMerging{{Entered: 7, Left: 6}, {Entered: 7, Left: 5, Refused: 2}} {
		if !drained(time.Minute, 0, g) {
			t.Errorf("they are not drained, and what has not come out is lost: %+v", g)
		}
	}
	for seen, want := range map[time.Duration]uint64{0: 5, mergingGone: 0} {
		drained(time.Minute, seen, stagesOlMerging{Entered: 5, Left: 5})
		if err := d.SetMergeDevice(1); err != nil {
			t.Fatal(err)
		}
		if entered, _, err := d.Resequenced(); err != nil || entered != want {
			t.Errorf("%d packets count as sent, of a flow that came %v ago: %v; want %d", entered, seen, err, want)
		}
	}
}
