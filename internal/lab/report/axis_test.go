// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"testing"
)

func TestAxesHoldTheirValuesWithAReadableNumberOfTicks(t *testing.T) {
	const x0, x1 = 100, 500
	for name, xs := range map[string][]float64{
		"rates":      {556, 1850, 380},
		"one":        {5},
		"zero":       {0},
		"negative":   {-4, 10},
		"all below":  {-4, -2},
		"decades":    {3, 90000},
		"tiny":       {5e-324},
		"everything": {5e-324, math.MaxFloat64},
	} {
		for kind, a := range map[string]axis{"value": valueAxis(x0, x1, xs), "ratio": ratioAxis(x0, x1, xs)} {
			for _, x := range xs {
				if kind == "ratio" && x <= 0 {
					continue
				}
				if p := a.at(x); !(p >= x0-0.5 && p <= x1+0.5) {
					t.Errorf("%s axis of %s: %v lies at %v", kind, name, x, p)
				}
			}
			if n := len(a.ticks); n == 0 || n > 60 {
				t.Errorf("%s axis of %s: %d ticks", kind, name, n)
			}
		}
	}
}

func TestValueAxisStartsAtZeroUnlessItMust(t *testing.T) {
	if a := valueAxis(0, 1, []float64{90, 100}); a.lo != 0 || a.log {
		t.Errorf("got %+v", a)
	}
	if a := valueAxis(0, 1, []float64{1, 1000}); !a.log {
		t.Errorf("got %+v", a)
	}
}
