// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"
)

// holding is a node of one core, with packets at a lane, in the core's hands and at a resequencer.
type holding struct{ ring, backlog, merge uint32 }

func (h *holding) Cores() ([]Core, error) {
	return []Core{{LaneQueue: h.ring, Queue: h.backlog, Full: h.backlog > 0}}, nil
}
func (h *holding) Merged(lost bool) (bool, error) { return h.merge == 0 || lost, nil }

// pass has all go one place further.
func (h *holding) pass() { h.ring, h.backlog, h.merge = 0, h.ring, h.merge+h.backlog }

// A packet that lanes hold comes to a resequencer last: flows are drained when it has left that, too.
func TestFlowsAreDrainedWhenTheirLastPacketHasLeft(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	at := &holding{ring: 1}
	var g Draining
	look := func(sent uint64, rings bool) (drained bool) {
		t.Helper()
		// A core is idle when so many looks find the same.
		for range quietLooks + 3 {
			if g.Still(now, sent) {
				var err error
				if drained, err = g.Handled(now, at, rings, func(int) bool { return false }); err != nil {
					t.Fatal(err)
				}
			}
		}
		return drained
	}
	if look(7, true) {
		t.Error("they are drained, and a moment ago a packet was sent to a lane")
	}
	now = now.Add(Settled)
	for range 3 {
		if look(7, true) {
			t.Errorf("they are drained, and a packet is left: %+v", *at)
		}
		at.pass()
	}
	at.merge = 0
	if !look(7, true) {
		t.Error("they are not drained, and nothing is left")
	}
	if look(8, true) {
		t.Error("they are drained, and one is sent to a lane again")
	}
	at.ring = 1
	now = now.Add(Settled)
	if !look(8, false) {
		t.Error("they are not drained, and what a ring holds is no packet of theirs")
	}
	at.merge = 1
	if look(8, false) {
		t.Error("they are drained, and a packet waits for another")
	}
	now = now.Add(lostAfter)
	if !look(8, false) {
		t.Error("they are not drained, and what has not come out is lost")
	}
}
