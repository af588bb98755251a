// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
)

func TestVerdictRules(t *testing.T) {
	q := func(metric string, median, lo, hi Number) Ratio {
		return Ratio{Variant: "pipeline", Vs: "overlay", Metric: metric, Median: median, CI95: [2]Number{lo, hi}, Pairs: 25}
	}
	for _, tc := range []struct {
		name string
		v    Verdict
		want bool
	}{
		{"better: at the limit", q(KPPS, 1.2, 1.11, 1.3).BetterThan(1.2), true},
		{"better: median short", q(KPPS, 1.19, 1.15, 1.3).BetterThan(1.2), false},
		{"better: interval reaches half-way", q(KPPS, 1.25, 1.1, 1.3).BetterThan(1.2), false},
		{"better, latency: at the limit", q(P99, 0.5, 0.4, 0.74).BetterThan(0.5), true},
		{"better, latency: median short", q(P99, 0.51, 0.4, 0.6).BetterThan(0.5), false},
		{"better, latency: interval reaches half-way", q(P99, 0.4, 0.3, 0.75).BetterThan(0.5), false},
		{"better, latency: a gain is not a higher ratio", q(P99, 1.5, 1.4, 1.6).BetterThan(1.2), false},
		{"not worse: within the margin", q(Gbps, 0.95, 0.945, 1).NotWorseThan(0.97), true},
		{"not worse: beyond it", q(Gbps, 0.99, 0.93, 1.1).NotWorseThan(0.97), false},
		{"not worse, latency: within the margin", q(P50, 1.05, 0.9, 1.12).NotWorseThan(1.10), true},
		{"not worse, latency: beyond it", q(P50, 1.0, 0.9, 1.14).NotWorseThan(1.10), false},
		{"no pairs: not better", q(KPPS, Number(nan), Number(nan), Number(nan)).BetterThan(0), false},
		{"no pairs: not as good either", q(P99, Number(nan), Number(nan), Number(nan)).NotWorseThan(9), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.v.Met != tc.want || tc.v.Holds() != tc.want {
				t.Errorf("met %v, want %v: %s", tc.v.Met, tc.want, tc.v)
			}
		})
	}
}

func TestVerdictSaysWhatWeakensIt(t *testing.T) {
	good := Ratio{Variant: "pipeline", Vs: "overlay", Metric: KPPS, Median: 1.3, CI95: [2]Number{1.25, 1.35}, Pairs: 25}
	for _, tc := range []struct {
		name               string
		weaken             func(*Ratio)
		says               string
		better, worseHolds bool
	}{
		{"sound", func(*Ratio) {}, "met: ", true, true},
		{"short", func(r *Ratio) { r.Pairs = 24 }, "24 rounds, 25 are asked", false, false},
		{"a round missing", func(r *Ratio) { r.Pairs, r.Missing = 29, 1 }, "1 of 30 rounds missing", false, false},
		{"abstained", func(r *Ratio) { r.Abstained = true }, "the mechanism abstained", false, true},
		{"generator-bound", func(r *Ratio) { r.GeneratorBound = true }, "generator-bound", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := good
			tc.weaken(&r)
			better, not := r.BetterThan(1.2), r.NotWorseThan(0.97)
			if better.Holds() != tc.better || not.Holds() != tc.worseHolds {
				t.Errorf("better %v, not worse %v, want %v and %v", better.Holds(), not.Holds(), tc.better, tc.worseHolds)
			}
			if not.Abstained != r.Abstained {
				t.Errorf("abstention lost: %s", not)
			}
			if !strings.Contains(better.String(), tc.says) {
				t.Errorf("%q does not say %q", better, tc.says)
			}
		})
	}
}

func TestSignNeedsEnoughPairsAndAnIntervalWithoutOne(t *testing.T) {
	for _, tc := range []struct {
		metric string
		pairs  int
		lo, hi Number
		want   int
	}{
		{KPPS, 6, 1.01, 1.2, 1},
		{KPPS, 6, 0.8, 0.99, -1},
		{KPPS, 6, 0.99, 1.2, 0},
		{KPPS, 5, 1.1, 1.2, 0},
		{P99, 6, 0.8, 0.9, 1},
		{P99, 6, 1.1, 1.2, -1},
	} {
		r := Ratio{Metric: tc.metric, Pairs: tc.pairs, CI95: [2]Number{tc.lo, tc.hi}}
		if got := r.sign(); got != tc.want {
			t.Errorf("%s [%v, %v] of %d pairs: %d, want %d", tc.metric, tc.lo, tc.hi, tc.pairs, got, tc.want)
		}
	}
}
