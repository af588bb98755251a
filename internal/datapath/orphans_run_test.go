// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
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
	drain := func(limit, seen time.Duration, g stagesOlMerging) error {
		t.Helper()
		now, err := Now()
		if err != nil {
			t.Fatal(err)
		}
		g.Key, g.Generation, g.Seen = 1, 1, now-uint64(seen)
		if err := errors.Join(d.SetMergeDevice(1), d.stages.OlMergings.Put(at, g)); err != nil {
			t.Fatal(err)
		}
		return o.Drain(limit)
	}
	// Of a flow that goes on coming: however slow the machine is, nothing of it is lost meanwhile.
	for _, g := range []stagesOlMerging{{Entered: 7, Left: 6, Held: 1}, {Entered: 7, Left: 6}} {
		const why = "a resequencer holds packets"
		// A machine that is slow may wait for something else still.
		for limit := 100 * time.Millisecond; ; limit *= 2 {
			err := drain(limit, -time.Hour, g)
			if errors.Is(err, ErrFlowsOut) && strings.Contains(err.Error(), why) {
				break
			}
			if !errors.Is(err, ErrFlowsOut) || limit > time.Minute {
				t.Fatalf("drained with %+v: %v, want that %s", g, err, why)
			}
		}
	}
	for _, g := range []stagesOlMerging{{Entered: 7, Left: 6}, {Entered: 7, Left: 5, Refused: 2}} {
		if err := drain(time.Minute, 0, g); err != nil {
			t.Errorf("they are not drained, and what has not come out is lost: %+v: %v", g, err)
		}
	}
	for seen, want := range map[time.Duration]uint64{0: 5, mergingGone: 0} {
		if err := errors.Join(drain(time.Minute, seen, stagesOlMerging{Entered: 5, Left: 5}), d.SetMergeDevice(1)); err != nil {
			t.Fatal(err)
		}
		if entered, _, err := d.Resequenced(); err != nil || entered != want {
			t.Errorf("%d packets count as sent, of a flow that came %v ago: %v; want %d", entered, seen, err, want)
		}
	}
}
