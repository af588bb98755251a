// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/overlane/overlane/internal/printable"
)

const none = "–"

// scale says with how many decimals the values of one metric are written, the
// same for all variants, so that points align: three digits for the largest
// value, two for the smallest. The rounds of a series differ by more than that.
type scale int

func scaleOf(xs ...float64) scale {
	lo, hi := math.Inf(1), 0.0
	for _, x := range xs {
		if x = math.Abs(x); x > 0 {
			lo, hi = min(lo, x), max(hi, x)
		}
	}
	if hi == 0 {
		return 0
	}
	order := func(x float64) int { return int(math.Floor(math.Log10(x))) }
	return scale(min(max(2-order(hi), 1-order(lo), 0), 4))
}

func (s scale) format(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	return strconv.FormatFloat(x, 'f', int(s), 64)
}

// count writes a sum of events in at most five characters. It never rounds an
// event away: nonzero is never written as 0.
func count(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	if x < 10000 {
		return strconv.FormatFloat(math.Ceil(x), 'f', 0, 64)
	}
	for _, unit := range []string{"k", "M", "G", "T"} {
		x /= 1000
		switch {
		case x < 9.995:
			return strconv.FormatFloat(x, 'f', 2, 64) + unit
		case x < 99.95:
			return strconv.FormatFloat(x, 'f', 1, 64) + unit
		case x < 999.5 || unit == "T":
			return strconv.FormatFloat(x, 'f', 0, 64) + unit
		}
	}
	panic("unreachable")
}

// percent writes a share of 0..1. Neither end is reached by rounding: 100 %
// means all, 0 % means none.
func percent(x float64) string {
	switch {
	case math.IsNaN(x):
		return none
	case x > 0 && x < 0.01:
		return "<1%"
	case x > 0.99 && x < 1:
		return ">99%"
	}
	return fmt.Sprintf("%.0f%%", 100*x)
}

func width(s string) int { return utf8.RuneCountInString(s) }

// wrapCommand breaks a command line between its flags, so that each line stays
// readable and the whole can be pasted.
func wrapCommand(command string, w int) []string {
	var parts []string
	for word := range strings.FieldsSeq(command) {
		if n := len(parts); n > 0 && !strings.HasPrefix(word, "-") {
			parts[n-1] += " " + word
		} else {
			parts = append(parts, word)
		}
	}
	return printable.Fill(parts, w)
}
