// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"strconv"
)

// Axes end here: beyond, the arithmetic of a drawing overflows.
const tiniest, largest = 1e-100, 1e100

// axis maps values onto pixels from x0 to x1; what lies outside is drawn at the
// nearer end.
type axis struct {
	x0, x1 float64
	lo, hi float64
	log    bool
	ticks  []float64
}

func (a axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	v = min(max(v, lo), hi)
	if a.log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(v)
	}
	return a.x0 + (a.x1-a.x0)*(v-lo)/(hi-lo)
}

// maxTicks is more than an axis ever needs, and a bound whatever the values.
const maxTicks = 12

// logFrom is the ratio of largest to smallest value from which a linear axis
// would press the small ones into its first pixels.
const logFrom = 40

// valueAxis starts at zero, so that lengths can be compared; values that span
// decades get a logarithmic axis instead.
func valueAxis(x0, x1 float64, xs []float64) axis {
	lo, hi := 0.0, 0.0
	least := math.Inf(1)
	for _, x := range xs {
		x = min(max(x, -largest), largest)
		if math.Abs(x) < tiniest {
			x = 0
		}
		lo, hi, least = min(lo, x), max(hi, x), min(least, x)
	}
	if least > 0 && hi > logFrom*least {
		return logAxis(x0, x1, least, hi, []float64{1, 3})
	}
	if lo == hi {
		hi = 1
	}
	// A latency can come out below zero when two clocks disagree.
	a := axis{x0: x0, x1: x1, lo: lo * 1.03, hi: hi * 1.03}
	step := niceStep((hi - lo) / 5)
	for i := range maxTicks {
		if t := (math.Ceil(a.lo/step) + float64(i)) * step; t <= a.hi {
			a.ticks = append(a.ticks, t)
		}
	}
	return a
}

// ratioAxis is logarithmic, so that twice and half lie equally far from 1.
func ratioAxis(x0, x1 float64, xs []float64) axis {
	lo, hi := 0.8, 1.25
	for _, x := range xs {
		if x > 0 {
			lo, hi = max(min(lo, x), tiniest), min(max(hi, x), largest)
		}
	}
	switch span := hi / lo; {
	case span < 1.8:
		return logAxis(x0, x1, lo, hi, []float64{1, 1.1, 1.2, 1.3, 1.4, 1.5, 7, 8, 9})
	case span < 4:
		return logAxis(x0, x1, lo, hi, []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9})
	case span < 12:
		return logAxis(x0, x1, lo, hi, []float64{1, 1.5, 2, 3, 5, 7})
	case span < 100:
		return logAxis(x0, x1, lo, hi, []float64{1, 2, 5})
	}
	return logAxis(x0, x1, lo, hi, []float64{1})
}

// logAxis puts ticks at the given digits of every decade it covers.
func logAxis(x0, x1, lo, hi float64, digits []float64) axis {
	room := math.Pow(hi/lo, 0.03)
	a := axis{x0: x0, x1: x1, lo: lo / room, hi: hi * room, log: true}
	first, last := math.Floor(math.Log10(a.lo)), math.Floor(math.Log10(a.hi))
	every := max(1, math.Ceil((last-first)/maxTicks))
	for i := range maxTicks + 1 {
		for _, d := range digits {
			t := d * math.Pow(10, first+float64(i)*every)
			if t >= a.lo && t <= a.hi {
				a.ticks = append(a.ticks, t)
			}
		}
	}
	return a
}

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(x float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5} {
		if x <= m*p {
			return m * p
		}
	}
	return 10 * p
}

func tickLabel(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
