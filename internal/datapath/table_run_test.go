// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/table"
)

// next makes of what was seen before a frame what is to be seen after it. Only
// the tcx program counts packets and reasons: what XDP passes reaches it too,
// and is counted once.
func (b *bench) next(was seen, slot uint32, r oracle.Reason, segs uint64) seen {
	want := was
	want.Counters.Stock = maps.Clone(was.Counters.Stock)
	for stage := range want.Lanes {
		want.Lanes[stage] = maps.Clone(was.Lanes[stage])
	}
	if r == oracle.OK {
		want.Lanes[b.stage][laneOf(slot, b.stage, tableLanes)] += segs
	}
	ours := r == oracle.OK || r == oracle.FragmentUntracked
	switch {
	case b.stage == NIC:
		if ours {
			want.Counters.XDPOverlay++
		}
		if r == oracle.OK {
			want.Counters.XDPLane++
		}
	case r != oracle.NotOverlay:
		if ours {
			want.Counters.Overlay += segs
		}
		if r == oracle.OK {
			want.Counters.Steered += segs
		} else {
			want.Counters.Stock[string(r)]++
		}
	}
	return want
}

// Verdicts: tcx goes on with the next program; a lane of the nic stage without a
// thread, as those of these tests are, passes.
func (b *bench) verdict() uint32 {
	if b.stage == NIC {
		return xdpPass
	}
	return ^uint32(0)
}

const xdpRedirect = 4

func onEachHook(t *testing.T, f func(*testing.T, *bench)) {
	for _, stage := range []Stage{NIC, Tunnel} {
		t.Run(map[Stage]string{NIC: "xdp", Tunnel: "tcx"}[stage], func(t *testing.T) {
			f(t, newBench(t, stage))
		})
	}
}

func TestEveryPacketGoesToItsLaneOrTheStockPathAndIsCountedOnce(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		for _, c := range table.Cases() {
			var track oracle.Tracker
			if c.Before != nil {
				track.Classify(oracle.View{Data: c.Before, Whole: len(c.Before)}, table.Tunnels)
				b.run(t, c.Before, 1)
			}
			flow, r := track.Classify(oracle.View{Data: c.Frame, Whole: len(c.Frame)}, table.Tunnels)
			if r != c.Want {
				t.Errorf("%s: the oracle says %s, the table %s", c.Name, r, c.Want)
			}
			slot := b.slotOf(flow)
			was := b.look(t)
			b.forget(t, slot)
			if v := b.run(t, c.Frame, 1); v != b.verdict() {
				t.Errorf("%s: verdict %d, want %d", c.Name, v, b.verdict())
			}
			if diff := cmp.Diff(b.next(was, slot, c.Want, 1), b.look(t)); diff != "" {
				t.Errorf("%s: should end as %s (-want +got):\n%s", c.Name, c.Want, diff)
			}
			if c.Want == oracle.OK && b.owner(t, slot) != b.core {
				t.Errorf("%s: slot %d of the flow was not touched", c.Name, slot)
			}
		}
	})
}

// The compiled programs against the oracle, with what no table thinks of.
func TestProgramsAgreeWithTheOracleOnMutatedPackets(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		rnd := seeded(t)
		cases := table.Cases()
		was := b.look(t)
		for range 3000 {
			frame := table.Mutate(rnd, cases[rnd.IntN(len(cases))].Frame)
			if !b.takes(frame) {
				continue
			}
			flow, r := oracle.Classify(oracle.View{Data: frame, Whole: len(frame)}, table.Tunnels)
			if r == oracle.OK && flow.Fragment != oracle.Whole {
				continue // the program's memory of fragments is limited
			}
			slot := b.slotOf(flow)
			b.forget(t, slot)
			b.run(t, frame, 1)
			now := b.look(t)
			if diff := cmp.Diff(b.next(was, slot, r, 1), now); diff != "" {
				t.Fatalf("%x: reason %s (-want +got):\n%s", frame, r, diff)
			}
			was = now
		}
	})
}

func TestTheNamesOfReasonsAreThoseOfTheOracle(t *testing.T) {
	want := map[stagesOlReason]string{}
	for i, r := range oracle.Reasons {
		want[stagesOlReason(i)] = string(r)
	}
	if diff := cmp.Diff(want, reasonNames); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
