// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// A window in which no packet came has lasted all the same: so it shows when a mechanism lets nothing
// through.
func TestWindowWithoutPackets(t *testing.T) {
	var m meter
	at := time.Unix(1000, 0)
	came := func(after time.Duration, frames uint64) totals {
		return totals{at: at.Add(after), frames: frames, all: [datapath.Stages]uint64{datapath.NIC: frames}}
	}
	if w := m.window(came(0, 500), false); w.Elapsed != 0 {
		t.Errorf("before anything was read a window lasted %v", w.Elapsed)
	}
	for i, frames := range []uint64{900, 900, 1000} {
		w := m.window(came(time.Duration(i+1)*time.Second, frames), false)
		if want := []uint64{400, 0, 100}[i]; w.Elapsed != time.Second || w.Frames != want {
			t.Errorf("window %d: %d packets in %v, not %d in a second", i, w.Frames, w.Elapsed, want)
		}
	}
}

// What waits in lanes when a window ends has not arrived, though it was taken from the NIC; it counts in the
// window in which it leaves them. A packet in a backlog is of as many frames as those that left it.
func TestWhatWaitsInALaneHasNotArrived(t *testing.T) {
	var m meter
	at := time.Unix(1000, 0)
	for i, s := range []struct{ frames, pod, skbs, ringed, want uint64 }{
		{frames: 1000, pod: 100},
		{frames: 11000, pod: 350, skbs: 50, want: 8000}, // 40 frames a packet
		{frames: 16000, pod: 600, ringed: 500, want: 5500},
		{frames: 17000, pod: 700, skbs: 200, want: 0},
		{frames: 18000, pod: 700, skbs: 180, want: 1000}, // none left: how many frames a packet has is not known
	} {
		at = at.Add(time.Second)
		w := m.window(totals{at: at, frames: s.frames, skbs: s.skbs, ringed: s.ringed,
			all: [datapath.Stages]uint64{datapath.NIC: s.frames, datapath.Pod: s.pod}}, false)
		if w.Frames != s.want {
			t.Errorf("window %d: %d frames arrived, not %d", i, w.Frames, s.want)
		}
	}
}
