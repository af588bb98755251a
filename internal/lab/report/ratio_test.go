// SPDX-License-Identifier: Apache-2.0

package report

import "testing"

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
