// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
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

// On a NIC whose driver counts what it has sent as well, a mechanism that lets the NIC be polled more often brings
// no more frames than came.
func TestWorkThatPollsClaimIsNoFrames(t *testing.T) {
	const claimed, came = 10_000, 4000
	at := time.Unix(1000, 0)
	window := func(came, only uint64) governor.Window {
		var m Meter
		m.Begin(Totals{At: at})
		stage := func(n uint64) [datapath.Stages]uint64 { return [datapath.Stages]uint64{datapath.NIC: n} }
		return m.Window(Totals{
			At: at.Add(time.Second), All: stage(only), Busy: stage(only / 2), NS: stage(only / 2 * 400), Came: came, Polled: claimed,
			Waited: only * 1000, Queued: only * 400,
		}, false)
	}
	for name, tt := range map[string]struct {
		came, only uint64
		want       governor.Window
	}{
		"as many as came":               {claimed, claimed, governor.Window{Frames: claimed, Cost: 400, Wait: 2400}},
		"more than came":                {came, claimed, governor.Window{Frames: came, Cost: 1000, Wait: 3000}},
		"more than came, on some cores": {came, claimed / 2, governor.Window{Frames: came / 2, Cost: 1000, Wait: 3000}},
		"a NIC that joins frames":       {2 * claimed, claimed, governor.Window{Frames: claimed, Cost: 400, Wait: 2400}},
		"a NIC that tells it later":     {0, claimed, governor.Window{Frames: claimed, Cost: 400, Wait: 2400}},
	} {
		tt.want.Elapsed = time.Second
		if got := window(tt.came, tt.only); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
