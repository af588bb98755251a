// SPDX-License-Identifier: Apache-2.0

package report

import "fmt"

// MinRounds is the length from which a series counts.
const MinRounds = 25

// minPairs is what an interval takes at least: of five pairs even the whole
// range covers the median in less than 95 % of all series.
const minPairs = 6

// sign sums a comparison up: +1 better, -1 worse, 0 when the interval holds 1
// or there are too few pairs to say.
func (r Ratio) sign() int {
	if r.Pairs < minPairs {
		return 0
	}
	s := 0
	switch {
	case r.CI95[0] > 1:
		s = 1
	case r.CI95[1] < 1:
		s = -1
	}
	if DirectionOf(r.Metric) == Lower {
		s = -s
	}
	return s
}

// interval writes the ratio as "1.21 [1.15, 1.28]".
func (r Ratio) interval() string {
	if r.Pairs == 0 {
		return none
	}
	decimals := 2
	switch {
	case r.Median < 0.0995:
		decimals = 3
	case r.Median >= 9.95:
		decimals = 1
	}
	return fmt.Sprintf("%.*f [%.*f, %.*f]", decimals, r.Median, decimals, r.CI95[0], decimals, r.CI95[1])
}
