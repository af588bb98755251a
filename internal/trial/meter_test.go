// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
)

// A window in which no packet came has lasted all the same: so it shows when a mechanism lets nothing
// through.
func TestWindowWithoutPackets(t *testing.T) {
	var m Meter
	at := time.Unix(1000, 0)
	came := func(after time.Duration, frames uint64) Totals {
		return Totals{At: at.Add(after), All: [datapath.Stages]uint64{datapath.NIC: frames}}
	}
	if w := m.Window(came(0, 500), false); w.Elapsed != 0 {
		t.Errorf("before anything was read a window lasted %v", w.Elapsed)
	}
	for i, frames := range []uint64{900, 900, 1000} {
		w := m.Window(came(time.Duration(i+1)*time.Second, frames), false)
		if want := []uint64{400, 0, 100}[i]; w.Elapsed != time.Second || w.Frames != want {
			t.Errorf("window %d: %d packets in %v, not %d in a second", i, w.Frames, w.Elapsed, want)
		}
	}
}
