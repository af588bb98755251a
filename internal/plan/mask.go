// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/overlane/overlane/internal/config"
)

// Mask spells a set of cores as the kernel's CPU mask files take it: hex,
// with a comma between words of 32 bits. No cores is "0".
func Mask(cores []int) string {
	var set big.Int
	for _, c := range cores {
		set.SetBit(&set, c, 1)
	}
	return spell(&set)
}

func spell(set *big.Int) string {
	digits := set.Text(16)
	for i := len(digits) - 8; i > 0; i -= 8 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// canonicalMask drops what spellings of one mask differ in. What is no mask
// is returned as it is, so that it equals nothing but itself.
func canonicalMask(value string) string {
	var set big.Int
	for word := range strings.SplitSeq(value, ",") {
		n, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return value
		}
		set.Lsh(&set, 32).Add(&set, new(big.Int).SetUint64(n))
	}
	return spell(&set)
}

// coreList spells cores as people and cpusets do: "1", "2-5,7".
func coreList(cores []int) string {
	return config.CPUList(slices.Compact(slices.Sorted(slices.Values(cores)))).String()
}

func coresText(cores []int) string {
	if len(cores) == 1 {
		return "core " + coreList(cores)
	}
	return "cores " + coreList(cores)
}
