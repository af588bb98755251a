// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// The bootstrap, fixed so that any reader can recompute an interval from runs.csv.
const (
	Seed      = 1
	Resamples = 10000
)

var nan = math.NaN()

// Median of sorted values; NaN of none.
func Median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return nan
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// bootstrap returns the 95 % percentile interval of the median of sorted
// values: of all resampled medians, 2.5 % lie outside at each end.
func bootstrap(sorted []float64) (lo, hi float64) {
	n := len(sorted)
	if n == 0 {
		return nan, nan
	}
	src := rand.NewPCG(Seed, 0)
	medians := make([]float64, Resamples)
	drawn := make([]int, n)
	for i := range medians {
		clear(drawn)
		for range n {
			// The sequence must outlive library versions, hence no rand.IntN.
			k, _ := bits.Mul64(src.Uint64(), uint64(n))
			drawn[k]++
		}
		// The values are sorted, so a resample is sorted by counting.
		medians[i] = (nth(sorted, drawn, (n-1)/2) + nth(sorted, drawn, n/2)) / 2
	}
	slices.Sort(medians)
	const tail = Resamples * 25 / 1000
	return medians[tail], medians[Resamples-1-tail]
}

// nth is the value at position i of the multiset that holds drawn[k] copies of
// sorted[k].
func nth(sorted []float64, drawn []int, i int) float64 {
	for k, d := range drawn {
		if i -= d; i < 0 {
			return sorted[k]
		}
	}
	return nan
}

// pair divides two series round by round. A round counts only when both have a
// value and the reference is not zero; the others are counted, not guessed.
func pair(runs, ref []Number) (ratios []Number, usable []float64) {
	ratios = make([]Number, len(runs))
	for i := range runs {
		q := float64(runs[i]) / float64(ref[i])
		if math.IsInf(q, 0) { // the reference is zero, or as good as
			q = nan
		}
		ratios[i] = Number(q)
		if !math.IsNaN(q) {
			usable = append(usable, q)
		}
	}
	slices.Sort(usable)
	return ratios, usable
}

// present returns the values of a series that are not missing, sorted.
func present(runs []Number) []float64 {
	var xs []float64
	for _, r := range runs {
		if !r.Missing() {
			xs = append(xs, float64(r))
		}
	}
	slices.Sort(xs)
	return xs
}
