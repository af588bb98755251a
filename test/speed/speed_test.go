// SPDX-License-Identifier: Apache-2.0

package speed

import (
	"flag"
	"fmt"
	"testing"
)

// short makes this a short run of all tests, whose number may be changed.
func short(t *testing.T) {
	was := drawn
	t.Cleanup(func() { drawn = was })
	for name, value := range map[string]string{"test.short": "true", "test.run": ""} {
		was := flag.Lookup(name).Value.String()
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { flag.Set(name, was) })
	}
}

// A run is repeated by its number; other numbers have other rows.
func TestTheNumberDecidesWhichRowsRun(t *testing.T) {
	short(t)
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

// fake is a test that only calls Turn.
type fake struct {
	testing.TB
	name string
	left bool
}

func (f *fake) Helper()              {}
func (f *fake) Name() string         { return f.name }
func (f *fake) Skipf(string, ...any) { f.left = true }

// Two runs with numbers that follow each other have each test once, however often it calls Turn.
func TestTwoRunsHaveEachTestOnce(t *testing.T) {
	short(t)
	const tests = 100
	var first int
	for i := range tests {
		runs := 0
		for drawn = range uint64(2) {
			f := &fake{TB: t, name: fmt.Sprintf("Test%d", i)}
			for range 1 + i%3 {
				if Turn(f); f.left {
					break
				}
			}
			if !f.left {
				runs++
				first += int(1 - drawn)
			}
		}
		if runs != 1 {
			t.Errorf("test %d, which calls Turn %d times, runs %d times", i, 1+i%3, runs)
		}
	}
	if first < tests/3 || first > tests*2/3 {
		t.Errorf("of %d tests one run has %d", tests, first)
	}
}
