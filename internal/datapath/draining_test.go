// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// holding is a node of one core, with packets at a lane, in the core's hands and at a resequencer.
type holding struct {
	ring, backlog, merge uint32
	straight             bool // no flow goes through a resequencer
}

func (h *holding) Cores() ([]Core, error) {
	return []Core{{LaneQueue: h.ring, Queue: h.backlog, Full: h.backlog > 0}}, nil
}
func (h *holding) Merges() bool                       { return !h.straight }
func (h *holding) Resequenced() (uint64, bool, error) { return 7, h.merge > 0, nil }

// watched is a drain of such a node. A core is idle when so many looks find the same.
type watched struct {
	*testing.T
	Draining
	at  holding
	now time.Time
}

func (w *watched) drained(sent uint64, rings bool, looks int) (drained bool) {
	w.Helper()
	for range looks {
		if w.Still(w.now, sent) {
			var err error
			if drained, err = w.Handled(&w.at, rings, func(int) bool { return false }); err != nil {
				w.Fatal(err)
			}
		}
	}
	return drained
}

const aRound = quietLooks + 3

// A packet is followed from a lane to a core, to a resequencer and to a core again.
func TestFlowsAreDrainedWhenTheirLastPacketHasLeft(t *testing.T) {
	w := &watched{T: t, at: holding{ring: 1}, now: time.Unix(1_800_000_000, 0)}
	left := func(what string) {
		t.Helper()
		if w.drained(7, true, 2*aRound) {
			t.Errorf("they are drained, and %s", what)
		}
	}
	left("a moment ago a packet was sent to a lane")
	w.now = w.now.Add(Settled)
	left("a lane holds a packet")
	w.at = holding{backlog: 1}
	left("a core has one")
	w.at = holding{merge: 1}
	left("a resequencer holds one")
	w.at = holding{backlog: 1}
	left("a core has one that a resequencer had")
	w.at = holding{}
	if !w.drained(7, true, aRound) {
		t.Error("they are not drained, and nothing is left")
	}
	if w.drained(8, true, 2*aRound) {
		t.Error("they are drained, and one is sent to a lane again")
	}
	if err := w.Reason(ErrFlowsOut); !errors.Is(err, ErrFlowsOut) || !strings.HasSuffix(err.Error(), "packets are sent to lanes") {
		t.Errorf("it says %q", err)
	}
}

// What a core has in its hands may be on its way to a resequencer, or from there: each takes a round.
func TestADrainTakesARoundInFrontOfResequencersAndOneBehind(t *testing.T) {
	for straight, rounds := range map[bool]int{true: 1, false: 2} {
		w := &watched{T: t, at: holding{straight: straight}, now: time.Unix(1_800_000_000, 0)}
		w.drained(7, true, 1)
		w.now = w.now.Add(Settled)
		looks := 0
		for !w.drained(7, true, 1) {
			looks++
		}
		if got := (looks + 1) / (quietLooks + 1); got != rounds {
			t.Errorf("without resequencers %t: %d looks, want %d rounds", straight, looks+1, rounds)
		}
	}
}

// Frames in rings of lanes that no flow of theirs goes to do not count.
func TestADrainLooksAtRingsWhereFlowsGoThere(t *testing.T) {
	w := &watched{T: t, at: holding{ring: 1}, now: time.Unix(1_800_000_000, 0)}
	w.drained(7, false, 1)
	w.now = w.now.Add(Settled)
	if !w.drained(7, false, 2*aRound) {
		t.Error("they are not drained, and what a ring holds is no packet of theirs")
	}
}
