// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestSmallSeriesByHand(t *testing.T) {
	r := tcpSeries()
	v, _ := r.Variant("overlay")
	m := v.Metrics[Gbps]
	if m.Median != 5.5 || m.Min != 4 || m.Max != 10 || m.Missing != 0 {
		t.Errorf("overlay: %+v", m)
	}
	if got := float64(m.Spread()); math.Abs(got-6/5.5) > 1e-12 {
		t.Errorf("spread = %v, want %v", got, 6/5.5)
	}
	if sum := v.Metrics[Retransmits].Sum(); sum != 6 {
		t.Errorf("retransmits sum to %v, want 6", sum)
	}
	q, ok := r.Ratio("pipeline", Gbps)
	if !ok {
		t.Fatal("no ratio of pipeline to overlay")
	}
	want := Ratio{
		Variant: "pipeline", Metric: Gbps, Vs: "overlay", Median: 1.2, CI95: [2]Number{1.1, 1.3},
		Pairs: 3, Missing: 1, Runs: []Number{1.1, 1.2, 1.3, Number(nan)},
	}
	if diff := cmp.Diff(want, q, sameNumber); diff != "" {
		t.Errorf("ratio (-want +got):\n%s", diff)
	}
	if _, ok := r.Ratio("pipeline", Retransmits); ok {
		t.Error("a ratio of event counts, whose healthy value is zero")
	}
}

func TestNothingGoesMissingSilently(t *testing.T) {
	rec := New(Meta{Scenario: "udp-one", Rounds: 3})
	for i := range 3 {
		rec.Add("overlay", i, map[string]float64{KPPS: 100, CPUPerMpkt: 2})
	}
	rec.Add("rps", 0, map[string]float64{KPPS: 90, CPUPerMpkt: math.Inf(1)})
	rec.Add("rps", 1, nil)
	rec.Add("rps", 2, map[string]float64{KPPS: 91, CPUPerMpkt: 2})
	rec.Add("pipeline", 0, nil)
	rec.Note("threaded", "needs nic mode softirq")
	r := rec.Finish()

	want := map[string][]string{
		"overlay": nil,
		"rps": {
			"cpu_s_per_mpkt missing in 2 of 3 rounds (1, 2)",
			"kpps missing in 1 of 3 rounds (2)",
		},
		"pipeline": {
			"abstention: acted was not reported, so nothing shows that the mechanism did anything",
			"gave no values in 3 of 3 rounds",
		},
		"threaded": {"needs nic mode softirq"},
	}
	got := make(map[string][]string)
	for _, v := range r.Variants {
		got[v.Name] = v.Notes
		if v.NotRun != (v.Name == "threaded") {
			t.Errorf("%s: NotRun = %v", v.Name, v.NotRun)
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestAnnouncedRoundsThatNeverCameAreMissing(t *testing.T) {
	rec := New(Meta{Scenario: "udp-one", Rounds: 25})
	for i := range 24 {
		rec.Add("overlay", i, map[string]float64{KPPS: 100})
		rec.Add("pipeline", i, map[string]float64{KPPS: 130, Acted: 1})
	}
	r := rec.Finish()
	q, _ := r.Ratio("pipeline", KPPS)
	if q.Pairs != 24 || q.Missing != 1 {
		t.Errorf("%d pairs, %d missing, want 24 and 1", q.Pairs, q.Missing)
	}
	if r.caution() == "" {
		t.Error("an interrupted series counts")
	}
}

func TestMarks(t *testing.T) {
	for _, tc := range []struct {
		name, variant string
		idle, acted   []float64
		bound, abst   bool
	}{
		{"idle enough", "overlay", []float64{.3, .3, .3}, nil, false, false},
		{"bound in one round of three", "overlay", []float64{.01, .3, .3}, nil, false, false},
		{"bound in the median", "overlay", []float64{.01, .04, .3}, nil, true, false},
		{"exactly at the limits", "pipeline", []float64{.05, .05, .05}, []float64{.5, .5, .5}, false, false},
		{"acted too little", "pipeline", nil, []float64{.9, .4, .4}, false, true},
		{"acted not told", "auto", nil, nil, false, true},
		{"acted never measured", "pipeline", nil, []float64{math.NaN(), math.NaN(), math.NaN()}, false, true},
		{"stock variants need not act", "rps-best", nil, []float64{0, 0, 0}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := New(Meta{Scenario: "udp-one", Rounds: 3})
			for i := range 3 {
				values := map[string]float64{KPPS: 1}
				if tc.idle != nil {
					values[GeneratorIdle] = tc.idle[i]
				}
				if tc.acted != nil {
					values[Acted] = tc.acted[i]
				}
				rec.Add(tc.variant, i, values)
			}
			v, _ := rec.Finish().Variant(tc.variant)
			if v.GeneratorBound != tc.bound || v.Abstained != tc.abst {
				t.Errorf("bound %v, abstained %v, want %v and %v", v.GeneratorBound, v.Abstained, tc.bound, tc.abst)
			}
			some := slices.ContainsFunc(tc.idle, func(x float64) bool { return x < MinGeneratorIdle })
			if told := strings.Contains(strings.Join(v.Notes, "\n"), "generator-bound"); told != some {
				t.Errorf("notes %q, rounds below the limit: %v", v.Notes, some)
			}
		})
	}
}

func TestRatioCarriesTheMarksOfBothSides(t *testing.T) {
	for _, bound := range []string{"overlay", "pipeline"} {
		rec := New(Meta{Scenario: "udp-one", Rounds: 1})
		for _, v := range []string{"overlay", "pipeline"} {
			idle := 0.3
			if v == bound {
				idle = 0.01
			}
			rec.Add(v, 0, map[string]float64{KPPS: 1, GeneratorIdle: idle, Acted: 0.1})
		}
		q, _ := rec.Finish().Ratio("pipeline", KPPS)
		if !q.GeneratorBound || !q.Abstained {
			t.Errorf("%s is bound: %+v", bound, q)
		}
	}
}

func TestReferences(t *testing.T) {
	ran := []string{"host", "overlay", "overlay-xdp", "rps", "rps-best", "pipeline"}
	for variant, want := range map[string][]string{
		"overlay":         nil,
		"overlay-xdp":     {"overlay"},
		"host":            {"overlay"},
		"rps-best":        {"overlay"},
		"threaded":        {"overlay"},
		"pipeline":        {"overlay", "overlay-xdp", "rps-best"},
		"pipeline-tc":     {"overlay", "rps-best"},
		"pipeline-xdp":    {"overlay", "overlay-xdp", "rps-best"},
		"pipeline-forced": {"overlay", "overlay-xdp", "rps-best"},
		"microflows":      {"overlay", "overlay-xdp"},
		"priority":        {"overlay", "overlay-xdp"},
		"express":         {"overlay", "overlay-xdp"},
		"aggregate":       {"overlay"},
		"auto-express":    {"overlay", "overlay-xdp"},
	} {
		if diff := cmp.Diff(want, references(variant, Overlay, ran)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", variant, diff)
		}
	}
	if got := references("pipeline", Overlay, []string{"pipeline", "rps"}); got != nil {
		t.Errorf("compared with %v, which did not run", got)
	}
	if diff := cmp.Diff([]string{"rps-best", "overlay-xdp"}, references("pipeline", RPSBest, ran)); diff != "" {
		t.Errorf("baseline rps-best (-want +got):\n%s", diff)
	}
}

func TestServersShowRequestsAndTheirLatency(t *testing.T) {
	for scenario, want := range map[string][]string{
		"memcached/1 client alone":  {RPS, Avg, P50, P99, P999, BulkKPPS},
		"web/10 clients under bulk": {RPS, Avg, P50, P99, P999, BulkGbps},
		"latency-rr/70%":            {RRP50, RRP99, RRP999, BulkKPPS},
		"latency-busy/70%":          {P50, P99, P999, Longest, BulkKPPS},
	} {
		if diff := cmp.Diff(want, MainMetrics(scenario)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", scenario, diff)
		}
	}
	for metric, want := range map[string]string{RPS: "req/s", Avg: "avg µs", RRP99: "rr p99 µs", BulkGbps: "bulk Gb/s"} {
		if got := label(metric); got != want {
			t.Errorf("%s is called %q, not %q", metric, got, want)
		}
	}
}

func TestDirections(t *testing.T) {
	for metric, want := range map[string]Direction{
		KPPS: Higher, Gbps: Higher, RPS: Higher, BulkKPPS: Higher, BulkGbps: Higher, "rps_bulk_kpps": Higher,
		P50: Lower, P99: Lower, P999: Lower, Avg: Lower, RRP50: Lower, RRP99: Lower, CPUPerMpkt: Lower, CPUPerGB: Lower,
		Reordered: Lower, Duplicated: Lower, Dropped: Lower, Retransmits: Lower, OFO: Lower, SACKReorder: Lower, Waited: Neutral, Lost: Lower, MissedSlots: Lower,
		Acted: Neutral, LaneChanges: Neutral, GeneratorIdle: Neutral, "offered_kpps": Neutral,
	} {
		if got := DirectionOf(metric); got != want {
			t.Errorf("%s: %v, want %v", metric, got, want)
		}
	}
}
