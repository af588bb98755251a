// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
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

// orphan is what a guardian has of programs that are on a device.
func orphan(t *testing.T, d *Datapath) *OrphanedLinks {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	held := copies{}
	if err := d.HeldBy(held); err != nil {
		t.Fatal(err)
	}
	l, err := d.AttachPod(Device{Netns: ns, Ifindex: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	o, err := Adopt(held)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.End(0); err != nil {
			t.Error(err)
		}
	})
	return o
}

// A lane that has had its time and is not empty yet is emptied by refusing what comes, as the daemon does it.
func TestAGuardianEmptiesALaneThatStaysFull(t *testing.T) {
	d := load(t)
	o := orphan(t, d)
	full, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.d.trace.OlLaneLeft.Close(); err != nil {
		t.Fatal(err)
	}
	o.d.trace.OlLaneLeft = full // says that the lane holds a frame
	const room = 1000
	p := &Priority{d: d}
	if err := errors.Join(d.stages.OlPrios.Put(uint32(0), priorityOlPrio{Demoted: 1}), p.SetTuning(PriorityTuning{Room: room})); err != nil {
		t.Fatal(err)
	}
	// after is how much room there is when lanes were waited for so long. A machine that is slow may have waited
	// for something else still: then it is not known.
	after := func(limit time.Duration) (room uint32, known bool) {
		t.Helper()
		err := o.Drain(limit)
		if !errors.Is(err, ErrFlowsOut) {
			t.Fatalf("drained with bulk in a lane: %v", err)
		}
		var policy stagesOlPolicy
		if err := d.stages.OlPolicies.Lookup(uint32(0), &policy); err != nil {
			t.Fatal(err)
		}
		return policy.BulkRoom, strings.Contains(err.Error(), "bulk is in the lanes of 1 cores")
	}
	// As long as the machine takes no longer.
	for try := 0; ; try++ {
		begin := time.Now()
		got, known := after(emptyAfter / 2)
		if took := time.Since(begin); known && took < emptyAfter {
			if got != room {
				t.Errorf("after %v the lane has room for %d frames, want %d", took, got, room)
			}
			break
		}
		if try == 100 {
			t.Fatalf("a wait of %v takes %v or more", emptyAfter/2, emptyAfter)
		}
		if err := p.SetTuning(PriorityTuning{Room: room}); err != nil {
			t.Fatal(err)
		}
	}
	for limit := 2 * emptyAfter; ; limit *= 2 {
		if got, known := after(limit); known && got == 0 {
			break
		}
		if limit > 5*time.Second {
			t.Fatalf("after %v the lane has room still", limit)
		}
	}
}

// What is left at a resequencer of a flow that sends nothing is not overtaken by what it sends next:
// flows are drained only when that has come out, or is lost.
func TestFlowsAreNotDrainedWhileAResequencerHasTheirPackets(t *testing.T) {
	d := load(t)
	o := orphan(t, d)
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
