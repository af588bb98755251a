// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mask spells a set of cores as the kernel's CPU mask files take it: hex,
// with a comma between words of 32 bits. No cores is "0".
func Mask(cores []int) string {
	if len(cores) == 0 {
		return "0"
	}
	words := make([]uint32, slices.Max(cores)/32+1)
	for _, c := range cores {
		words[len(words)-1-c/32] |= 1 << (c % 32)
	}
	var b strings.Builder
	for i, w := range words {
		if i == 0 {
			fmt.Fprintf(&b, "%x", w)
		} else {
			fmt.Fprintf(&b, ",%08x", w)
		}
	}
	return b.String()
}

// canonicalMask drops what spellings of one mask differ in. What is no mask
// is returned as it is, so that it equals nothing but itself.
func canonicalMask(value string) string {
	var hex strings.Builder
	for i, word := range strings.Split(strings.ToLower(value), ",") {
		if _, err := strconv.ParseUint(word, 16, 32); err != nil {
			return value
		}
		if i > 0 {
			hex.WriteString(strings.Repeat("0", 8-len(word)))
		}
		hex.WriteString(word)
	}
	digits := strings.TrimLeft(hex.String(), "0")
	if digits == "" {
		return "0"
	}
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%8 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// coreList spells cores as people and cpusets do: "1", "2-5,7".
func coreList(cores []int) string {
	cores = slices.Compact(slices.Sorted(slices.Values(cores)))
	var parts []string
	for i := 0; i < len(cores); {
		j := i
		for j+1 < len(cores) && cores[j+1] == cores[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(cores[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", cores[i], cores[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

func coresText(cores []int) string {
	if len(cores) == 1 {
		return "core " + coreList(cores)
	}
	return "cores " + coreList(cores)
}

// parseCoreList reads what coreList writes.
func parseCoreList(s string) ([]int, error) {
	var cores []int
	if s == "" {
		return nil, nil
	}
	for _, part := range strings.Split(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(lo, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("core list %q: %w", s, err)
		}
		last := first
		if isRange {
			if last, err = strconv.ParseUint(hi, 10, 16); err != nil {
				return nil, fmt.Errorf("core list %q: %w", s, err)
			}
		}
		if last < first {
			return nil, fmt.Errorf("core list %q: %d-%d runs backwards", s, first, last)
		}
		for c := first; c <= last; c++ {
			cores = append(cores, int(c))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(cores))), nil
}
