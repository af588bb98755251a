// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"math"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/test/speed"
	"github.com/overlane/overlane/test/wire"
)

func TestBisectFindsTheHighestThatIsGood(t *testing.T) {
	for _, edge := range []float64{0, 1, 333, 999, 2000} {
		tried := 0
		got, err := bisect(0, 1000, 0.01, func(x float64) (bool, error) {
			tried++
			return x <= edge, nil
		})
		if want := min(edge, 1000); err != nil || got > want || want-got > 10 || tried > 8 {
			t.Errorf("edge at %g: %g after %d tries (%v)", edge, got, tried, err)
		}
	}
	broken := errors.New("broken")
	if _, err := bisect(0, 1, 0.1, func(float64) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("an error became %v", err)
	}
}

// A path that loses something at any rate has no rate without loss.
func TestARateWithLossIsNotLossFree(t *testing.T) {
	speed.Long(t)
	e := newEnv(t, bed.Options{}, Config{Scenario: "streamline", Length: short})
	loss, err := wire.DropEvery(e.bed.Receiver().Overlay, bed.Tunnel, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer loss.Close()
	e.saturation = 20e3
	got, err := measureStreamline(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if x := got[report.LossFreeKPPS]; x != 0 {
		t.Errorf("%g kpps pass for free of loss", x)
	}
	if got[report.Dropped] == 0 || !(got[report.P50] > 0) || math.IsNaN(got[report.P99]) {
		t.Errorf("the flow itself: %v", got)
	}
}

func TestOvertakingIsASharePerMode(t *testing.T) {
	for _, tc := range []struct {
		sum         control.Counters
		batch, sync float64
	}{
		{control.Counters{}, 0, 0},
		{control.Counters{LatencyPackets: 100}, 1, 0},
		{control.Counters{LatencyPackets: 60, BulkPackets: 40}, 0.6, 0},
		{control.Counters{LatencyPackets: 100, LatencyHeld: 20, LatencyExcess: 30, ShortCut: 40, Bridged: 10}, 0.5, 0.4},
		{control.Counters{LatencyPackets: 10, LatencyHeld: 11, ShortCut: 1}, 0, 0},
	} {
		for mode, want := range map[string]float64{"batch": tc.batch, "sync": tc.sync} {
			d := daemon{sum: tc.sum}
			if got := d.overtook(mode)[report.Acted]; math.Abs(got-want) > 1e-9 {
				t.Errorf("%+v in mode %s: %g, want %g", tc.sum, mode, got, want)
			}
		}
	}
}
