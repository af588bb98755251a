// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedianIsTheMiddleOrTheMeanOfTheMiddleTwo(t *testing.T) {
	for _, tc := range []struct {
		xs   []float64
		want float64
	}{
		{[]float64{4}, 4},
		{[]float64{1, 2}, 1.5},
		{[]float64{1, 2, 30}, 2},
		{[]float64{1, 2, 4, 30}, 3},
	} {
		if got := Median(tc.xs); got != tc.want {
			t.Errorf("Median(%v) = %v, want %v", tc.xs, got, tc.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestBootstrapByHand(t *testing.T) {
	for _, tc := range []struct {
		name   string
		xs     []float64
		lo, hi float64
	}{
		{"one value has no spread", []float64{1.2}, 1.2, 1.2},
		{"equal values have no spread", []float64{3, 3, 3, 3}, 3, 3},
		// The median of three draws is an extreme with probability 7/27, far above 2.5 %.
		{"three values give their range", []float64{1, 2, 9}, 1, 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lo, hi := bootstrap(tc.xs)
			if lo != tc.lo || hi != tc.hi {
				t.Errorf("got [%v, %v], want [%v, %v]", lo, hi, tc.lo, tc.hi)
			}
		})
	}
}

// For n odd the distribution of the resampled median is known: it is at most
// the k-th value when at least (n+1)/2 of n draws are, each with chance k/n.
func TestBootstrapFollowsTheExactDistribution(t *testing.T) {
	for _, n := range []int{7, 25, 41} {
		xs := make([]float64, n)
		for i := range xs {
			xs[i] = float64(i + 1)
		}
		atMost := func(k int) float64 {
			p, sum := float64(k)/float64(n), 0.0
			for j := (n + 1) / 2; j <= n; j++ {
				lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
				sum += math.Exp(lg(n)-lg(j)-lg(n-j)) * math.Pow(p, float64(j)) * math.Pow(1-p, float64(n-j))
			}
			return sum
		}
		// 10000 resamples know a tail of 2.5 % to within 0.5 percentage points.
		lo, hi := bootstrap(xs)
		if below, upTo := atMost(int(lo)-1), atMost(int(lo)); below > 0.030 || upTo < 0.020 {
			t.Errorf("n=%d: lower end %v, but the tails there are %.4f and %.4f", n, lo, below, upTo)
		}
		if below, upTo := atMost(int(hi)-1), atMost(int(hi)); below > 0.980 || upTo < 0.970 {
			t.Errorf("n=%d: upper end %v, but the tails there are %.4f and %.4f", n, hi, below, upTo)
		}
	}
}

// Six values have 46656 resamples, few enough to look at all of them.
func TestBootstrapOfAnEvenNumberFollowsAllResamples(t *testing.T) {
	xs := []float64{1, 2, 4, 8, 16, 32}
	var all []float64
	for code := range 46656 {
		var draw []float64
		for range xs {
			draw = append(draw, xs[code%6])
			code /= 6
		}
		slices.Sort(draw)
		all = append(all, (draw[2]+draw[3])/2)
	}
	slices.Sort(all)
	at := func(share float64) float64 { return all[int(share*float64(len(all)))] }
	for _, end := range []float64{0.025, 0.975} {
		if at(end-0.005) != at(end+0.005) {
			t.Fatalf("bad example: the distribution jumps near %v", end)
		}
	}
	lo, hi := bootstrap(xs)
	if lo != at(0.025) || hi != at(0.975) {
		t.Errorf("got [%v, %v], all resamples say [%v, %v]", lo, hi, at(0.025), at(0.975))
	}
}

func TestIntervalsDoNotDependOnWhatElseRan(t *testing.T) {
	values := map[string][]float64{
		"overlay":  {400, 610, 390, 380, 600, 410, 395},
		"rps":      {380, 600, 300, 390, 610, 400, 399},
		"pipeline": {480, 700, 500, 410, 720, 520, 460},
	}
	series := func(order ...string) Result {
		rec := New(Meta{Scenario: "udp-one", Rounds: 7})
		for i := range 7 {
			for _, v := range order {
				rec.Add(v, i, map[string]float64{KPPS: values[v][i]})
			}
		}
		return rec.Finish()
	}
	want, ok := series("overlay", "pipeline").Ratio("pipeline", KPPS)
	if !ok {
		t.Fatal("no ratio")
	}
	for _, order := range [][]string{{"overlay", "pipeline"}, {"pipeline", "rps", "overlay"}} {
		got, _ := series(order...).Ratio("pipeline", KPPS)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with %v (-want +got):\n%s", order, diff)
		}
	}
	// By the exact distribution the ends are the second and the sixth of seven.
	if diff := cmp.Diff([2]Number{700.0 / 610, 520.0 / 410}, want.CI95, sameNumber); diff != "" {
		t.Errorf("interval (-want +got):\n%s", diff)
	}
}

func TestRatiosArePairedWithinRounds(t *testing.T) {
	// The machine doubles its speed half-way. Unpaired medians would say 1.
	rec := New(Meta{Scenario: "udp-one", Rounds: 4})
	for i, x := range []float64{100, 100, 200, 200} {
		rec.Add("overlay", i, map[string]float64{KPPS: x})
		rec.Add("pipeline", i, map[string]float64{KPPS: 1.25 * x, Acted: 1})
	}
	q, _ := rec.Finish().Ratio("pipeline", KPPS)
	if q.Median != 1.25 || q.CI95 != [2]Number{1.25, 1.25} || q.Pairs != 4 {
		t.Errorf("got %+v", q)
	}
}

func TestRoundsWithoutBothValuesAreDroppedAndCounted(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name           string
		runs, ref      []Number
		pairs, missing int
	}{
		{"complete", []Number{1, 2}, []Number{1, 1}, 2, 0},
		{"variant lacks one", []Number{1, Number(nan)}, []Number{1, 1}, 1, 1},
		{"reference lacks another", []Number{1, Number(nan), 3}, []Number{Number(nan), 1, 1}, 1, 2},
		{"reference is zero", []Number{1, 2}, []Number{0, 1}, 1, 1},
		{"both are zero", []Number{0}, []Number{0}, 0, 1},
		{"a quotient beyond any number", []Number{1e300, 2}, []Number{1e-300, 1}, 1, 1},
		{"a variant at zero is a value", []Number{0}, []Number{1}, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ratios, usable := pair(tc.runs, tc.ref)
			missing := 0
			for _, q := range ratios {
				if q.Missing() {
					missing++
				}
			}
			if len(usable) != tc.pairs || missing != tc.missing {
				t.Errorf("%d pairs and %d missing, want %d and %d", len(usable), missing, tc.pairs, tc.missing)
			}
		})
	}
}
