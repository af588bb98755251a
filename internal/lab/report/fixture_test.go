// SPDX-License-Identifier: Apache-2.0

package report

import (
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sameNumber takes missing values as equal and forgives the last digits.
var sameNumber = cmp.Comparer(func(a, b Number) bool {
	return a.Missing() && b.Missing() || math.Abs(float64(a-b)) <= 1e-12
})

// golden compares text with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

// wobble is a fixed, uneven factor around 1, different for every i and salt.
func wobble(i, salt int) float64 { return 1 + float64((i*i*7+i*(salt*salt+3)+salt*53)%23-11)/100 }

// udpSeries has every kind of row that a table can show: plain, generator-bound,
// with missing rounds, not run, and an abstention with its reason.
func udpSeries(rounds int) Result {
	rec := New(Meta{
		Scenario: "udp-one", NIC: "thread", NAPI: "nice -20", Rounds: rounds, Seconds: 3,
		Machine: Machine{Kernel: "6.18.44", Cores: 2, Roles: "receive 0, lanes 1, applications 1, sender 1, generator 1"},
		Command: "overlane lab run udp-one --variants host,overlay,overlay-xdp,rps,rps-best,threaded,pipeline,pipeline-xdp,aggregate --rounds 25 --seconds 3",
	})
	variants := []struct {
		name  string
		gain  float64
		extra map[string]float64
	}{
		{"host", 3.4, map[string]float64{GeneratorIdle: 0.021}},
		{"overlay", 1, map[string]float64{LoadOf(0): 1, LoadOf(1): 0.04}},
		{"overlay-xdp", 0.97, nil},
		{"rps", 0.9, nil},
		{"rps-best", 1.17, nil},
		{"threaded", 0, nil},
		{"pipeline", 1.22, map[string]float64{Acted: 0.997, LaneChanges: 51, LoadOf(0): 0.62, LoadOf(10): 0.998}},
		{"pipeline-xdp", 1.33, map[string]float64{Acted: 1, LaneChanges: 48}},
		{"aggregate", 1.01, map[string]float64{Acted: 0.12, LaneChanges: 0}},
	}
	for i := range rounds {
		machine := []float64{380, 380, 610, 400}[i%4] // the two speeds of a shared machine
		for salt, v := range variants {
			if v.gain == 0 {
				continue
			}
			if v.name == "rps" && (i == 2 || i == 6) {
				rec.Add(v.name, i, nil)
				continue
			}
			kpps := machine * v.gain * wobble(i, salt)
			values := map[string]float64{
				KPPS: kpps, CPUPerMpkt: 1000 / kpps * wobble(i, salt+3), Reordered: 0,
				Dropped: math.Round(900 * kpps), GeneratorIdle: 0.34 * wobble(i, salt+5),
			}
			maps.Copy(values, v.extra)
			rec.Add(v.name, i, values)
		}
	}
	rec.Note("threaded", "nic mode thread polls the wire by a thread already; run with --nic softirq")
	rec.Note("aggregate", "88% of the packets carry no inner UDP checksum")
	return rec.Finish()
}

func latencySeries(rounds int) Result {
	rec := New(Meta{
		Scenario: "latency-busy", NIC: "softirq", Machine: Machine{Kernel: "6.12.57", Cores: 4}, Rounds: rounds, Seconds: 2.5,
		Command: "overlane lab run latency-busy --nic softirq --variants overlay,pipeline,priority",
	})
	for i := range rounds {
		for salt, v := range []struct {
			name  string
			gain  float64
			acted bool
		}{{"overlay", 1, false}, {"pipeline", 0.97, true}, {"priority", 0.09, true}} {
			values := map[string]float64{
				P50: 118 * v.gain * wobble(i, salt), P99: 1400 * v.gain * wobble(i, salt+7), P999: 5200 * v.gain * wobble(i, salt+9),
				BulkKPPS: 450 * wobble(i, salt+2), CPUPerMpkt: 2.6 * wobble(i, salt+4), Reordered: 0, Dropped: 3,
			}
			if v.acted {
				values[Acted], values[LaneChanges] = 1, 12
			}
			rec.Add(v.name, i, values)
		}
	}
	return rec.Finish()
}

// tcpSeries is small enough to check by hand: the ratios are 1.1, 1.2, 1.3.
func tcpSeries() Result {
	rec := New(Meta{Scenario: "tcp-one", NIC: "thread", NAPI: "fifo 1", Machine: Machine{Kernel: "6.18.44", Cores: 2}, Rounds: 4, Seconds: 1})
	for i, x := range []float64{5, 4, 10, 6} {
		rec.Add("overlay", i, map[string]float64{Gbps: x, Retransmits: float64(i)})
	}
	for i, x := range []float64{5.5, 4.8, 13} {
		rec.Add("pipeline", i, map[string]float64{Gbps: x, Retransmits: 0, Acted: 1})
	}
	rec.Add("pipeline", 3, map[string]float64{Gbps: math.NaN(), Retransmits: 7, Acted: 1})
	return rec.Finish()
}
