// SPDX-License-Identifier: Apache-2.0

package speed

import (
	"flag"
	"testing"
)

// A run is repeated by its number; other numbers have other rows.
func TestTheNumberDecidesWhichRowsRun(t *testing.T) {
	was, short := drawn, testing.Short()
	defer func() { drawn = was }()
	if !short {
		if err := flag.Set("test.short", "true"); err != nil {
			t.Fatal(err)
		}
		defer flag.Set("test.short", "false")
	}
	row := func(number uint64) int {
		drawn = number
		runs := Every(t, 3)
		for i := range 3 {
			if runs() {
				return i
			}
		}
		t.Fatalf("%s=%d has no row", Draw, number)
		return 0
	}
	seen := map[int]bool{}
	for number := range uint64(100) {
		first := row(number)
		if again := row(number); again != first {
			t.Fatalf("%s=%d has row %d, then row %d", Draw, number, first, again)
		}
		seen[first] = true
	}
	if len(seen) != 3 {
		t.Errorf("only these rows ever run: %v", seen)
	}
}
