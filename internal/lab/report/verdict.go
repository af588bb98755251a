// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
)

// MinRounds is the length from which a series counts.
const MinRounds = 25

// margin is how far an interval may reach past the limit of NotWorseThan.
const margin = 0.03

// Verdict is the outcome of a rule on a ratio.
type Verdict struct {
	Met    bool // the numbers satisfy the rule
	Counts bool // the series is one from which a figure may be taken

	// Abstained: the mechanism hardly acted. A comparison that is "not worse"
	// is then a statement about its judgement, not about its speed.
	Abstained bool

	// Why holds the rule, the numbers and whatever weakens them, in one line.
	Why string
}

// Holds reports a met rule on a series that counts.
func (v Verdict) Holds() bool { return v.Met && v.Counts }

func (v Verdict) String() string {
	switch {
	case !v.Met:
		return "not met: " + v.Why
	case !v.Counts:
		return "met, but does not count: " + v.Why
	case v.Abstained:
		return "abstention: " + v.Why
	}
	return "met: " + v.Why
}

// BetterThan judges "better than x": the median reaches x, and the interval
// ends on the good side of (1+x)/2. For metrics where lower is better x is below
// 1 and both comparisons turn round. A mechanism that abstained is not better.
func (r Ratio) BetterThan(x float64) Verdict {
	half := (1 + x) / 2
	var met bool
	var rule string
	switch DirectionOf(r.Metric) {
	case Lower:
		met = float64(r.Median) <= x && float64(r.CI95[1]) < half
		rule = fmt.Sprintf("median <= %.2f and upper end < %.3f", x, half)
	default:
		met = float64(r.Median) >= x && float64(r.CI95[0]) > half
		rule = fmt.Sprintf("median >= %.2f and lower end > %.3f", x, half)
	}
	return r.verdict(met && !r.Abstained, rule)
}

// NotWorseThan judges "not worse than x": the interval's bad end lies within
// 0.03 of x. For metrics where lower is better, x is an upper bound such as 1.10.
func (r Ratio) NotWorseThan(x float64) Verdict {
	if DirectionOf(r.Metric) == Lower {
		return r.verdict(float64(r.CI95[1]) < x+margin, fmt.Sprintf("upper end < %.2f", x+margin))
	}
	return r.verdict(float64(r.CI95[0]) > x-margin, fmt.Sprintf("lower end > %.2f", x-margin))
}

func (r Ratio) verdict(met bool, rule string) Verdict {
	v := Verdict{Met: met, Counts: r.Pairs >= MinRounds && r.Missing == 0, Abstained: r.Abstained}
	why := []string{fmt.Sprintf("%s %s of %s is %s; asked: %s", r.Variant, r.Metric, r.Vs, r.intervalTo(3), rule)}
	if r.Missing > 0 {
		why = append(why, fmt.Sprintf("%d of %d rounds missing", r.Missing, r.Missing+r.Pairs))
	}
	if n := r.Pairs + r.Missing; n < MinRounds {
		why = append(why, fmt.Sprintf("%d rounds, %d are asked", n, MinRounds))
	}
	if r.GeneratorBound {
		why = append(why, "generator-bound")
	}
	if r.Abstained {
		why = append(why, "the mechanism abstained")
	}
	v.Why = strings.Join(why, "; ")
	return v
}

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
	return r.intervalTo(decimals)
}

func (r Ratio) intervalTo(decimals int) string {
	return fmt.Sprintf("%.*f [%.*f, %.*f]", decimals, r.Median, decimals, r.CI95[0], decimals, r.CI95[1])
}
