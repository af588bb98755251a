// SPDX-License-Identifier: Apache-2.0

package datapath

import "testing"

// While bulk makes way, only what its lane's thread brings hops to other cores.
func TestLatencyTrafficStaysWhereTheNICIsPolled(t *testing.T) {
	b := newBench(t, Tunnel)
	frame := flowOf(1)
	slot := b.slotOf(classify(t, frame))
	for _, x := range []struct {
		demoted uint8
		want    int
	}{{0, laneOf(slot, Tunnel, tableLanes)}, {1, LaneLocal}, {0, laneOf(slot, Tunnel, tableLanes)}} {
		if err := b.stages.OlPrios.Put(uint32(b.core), priorityOlPrio{Demoted: x.demoted}); err != nil {
			t.Fatal(err)
		}
		if got := b.laneTaken(t, frame); got != x.want {
			t.Errorf("demoted %d: lane %d, want %d", x.demoted, got, x.want)
		}
	}
}
