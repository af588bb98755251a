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
	drained := func(g stagesOlMerging, limit time.Duration) bool {
		t.Helper()
		g.Key, g.Generation = 1, g.Generation+1
		if err := d.SetMergeDevice(1); err != nil {
			t.Fatal(err)
		}
		if err := d.stages.OlMergings.Put(at, g); err != nil {
			t.Fatal(err)
		}
		err := o.Drain(limit)
		if err != nil && !errors.Is(err, ErrFlowsOut) {
			t.Fatal(err)
		}
		return err == nil
	}
	const soon, late = lostAfter / 2, time.Minute
	if drained(stagesOlMerging{Entered: 7, Left: 7, Held: 1}, 2*lostAfter) {
		t.Error("they are drained, and a packet waits for another")
	}
	if drained(stagesOlMerging{Entered: 7, Left: 6}, soon) {
		t.Error("they are drained, and a packet has not come out")
	}
	if !drained(stagesOlMerging{Entered: 7, Left: 6}, late) {
		t.Error("they are not drained, and what has not come out is lost")
	}
	for _, g := range []stagesOlMerging{{Entered: 7, Left: 7}, {Entered: 7, Left: 5, Refused: 2}, {Entered: 7, Generation: 1}} {
		if !drained(g, soon) {
			t.Errorf("they are not drained, and nothing is left: %+v", g)
		}
	}
}
