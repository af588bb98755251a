// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"
)

// A flow that is to leave a lane that is full sends nothing to it: its packets are dropped and
// counted. When the lane does not show its end for too long, the flow has it back.
func TestARefusedPacketIsDroppedAndCounted(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		frame := flowOf(7)
		slot := b.slotOf(classify(t, frame))
		if err := b.Steer(b.core); err != nil { // all flows are to drain
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name    string
			since   time.Duration
			refused uint64
		}{
			{"a moment ago", 0, 1},
			{"too long ago", time.Second, 0},
		} {
			b.forget(t, slot)
			b.turn(t, slot, 0)
			now, err := Now()
			if err != nil {
				t.Fatal(err)
			}
			var cpu stagesOlCpu
			if err := b.stages.OlCpus.Lookup(uint32(b.core), &cpu); err != nil {
				t.Fatal(err)
			}
			// Of a poll that is to come, nothing has been handed on.
			held := stagesOlSlot{Seq: cpu.Seq + 1<<20, Used: 1, Turn: 1, Lane: 0, Refuses: 1, Held: uint32((now - uint64(tt.since)) / 1000)}
			if err := b.stages.OlSlots.Put(b.slotKey(slot), held); err != nil {
				t.Fatal(err)
			}
			was := b.look(t)
			verdict := b.run(t, frame, 1)
			after := b.look(t)
			want := b.verdict()
			if tt.refused > 0 {
				want = map[Stage]uint32{NIC: xdpDrop, Tunnel: 2}[b.stage] // TCX_DROP
			}
			if verdict != want {
				t.Errorf("refused since %s: verdict %d, want %d", tt.name, verdict, want)
			}
			if n := after.Counters.Refused - was.Counters.Refused; n != tt.refused {
				t.Errorf("refused since %s: %d counted, want %d", tt.name, n, tt.refused)
			}
			if n := after.Lanes[b.stage][0] - was.Lanes[b.stage][0]; n != 1-tt.refused {
				t.Errorf("refused since %s: its lane got %d packets, want %d", tt.name, n, 1-tt.refused)
			}
		}
	})
}
