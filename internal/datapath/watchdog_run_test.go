// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"
)

// A daemon that hangs is no reason to stay on a lane, nor is one that never said that it lives
// one to leave it.
func TestFlowsDrainWhenTheDaemonHangs(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		frame := flowOf(0)
		slot := b.slotOf(classify(t, frame))
		now, err := Now()
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name      string
			heartbeat uint64
			drained   bool
		}{
			{"never a heartbeat", 0, false},
			{"a moment ago", now - uint64(WatchdogTimeout) + uint64(time.Second), false},
			{"too long ago", now - uint64(WatchdogTimeout) - uint64(time.Second), true},
		} {
			b.policy.Heartbeat = tt.heartbeat
			if err := b.writePolicy(); err != nil {
				t.Fatal(err)
			}
			b.forget(t, slot)
			polledAt(t, b, now)
			b.run(t, frame, 1)
			var s stagesOlSlot
			if err := b.stages.OlSlots.Lookup(b.slotKey(slot), &s); err != nil {
				t.Fatal(err)
			}
			if drained := s.Lane == LaneLocal; drained != tt.drained {
				t.Errorf("%s: the flow is on lane %d", tt.name, s.Lane)
			}
		}
	})
}

// polledAt has the bench's core end a poll.
func polledAt(t *testing.T, b *bench, now uint64) {
	t.Helper()
	var cpu stagesOlCpu
	if err := b.stages.OlCpus.Lookup(uint32(b.core), &cpu); err != nil {
		t.Fatal(err)
	}
	cpu.Now = now
	if err := b.stages.OlCpus.Put(uint32(b.core), cpu); err != nil {
		t.Fatal(err)
	}
}
