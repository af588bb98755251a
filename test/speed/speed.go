// SPDX-License-Identifier: Apache-2.0

// Package speed makes a run of tests short where go test has -short, as in `make test`: tests that take minutes
// are left out, of long tables a part runs, and of slow tests half, each time others.
package speed

import (
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Draw is the variable with the number that decides what a short run has: with the same number it has the same.
const Draw = "OVERLANE_TEST_DRAW"

var drawn, badDraw = draw()

func draw() (uint64, error) {
	text := os.Getenv(Draw)
	if text == "" {
		return uint64(rand.Uint32()), nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", Draw, err)
	}
	return n, nil
}

// Drawn is that number, by chance where the variable has none.
func Drawn() (uint64, error) { return drawn, badDraw }

// Long leaves a test out of a short run.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs minutes: make full")
	}
}

// Every tells of each row of a table in turn whether it runs: all do, and in a short run every nth, from one that
// chance chooses.
func Every(tb testing.TB, n int) (runs func() bool) {
	tb.Helper()
	i, first := 0, 0
	if testing.Short() {
		if badDraw != nil {
			tb.Fatal(badDraw)
		}
		tb.Logf("%s=%d", Draw, drawn)
		first = rand.New(rand.NewPCG(drawn, number(tb))).IntN(n)
	} else {
		n = 1
	}
	return func() bool {
		i++
		return (i-1)%n == first
	}
}

// OtherRun begins the reason of a test that Turn has left to another run.
const OtherRun = "left to another run: "

// Turn has half of the tests that call it come in a short run, by their names, and the other half with a number that is
// one more. Subtests come with their test: Every is for these. A test that -run names is never left.
func Turn(tb testing.TB) {
	tb.Helper()
	if !testing.Short() || strings.Contains(tb.Name(), "/") || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	if badDraw != nil {
		tb.Fatal(badDraw)
	}
	if (number(tb)+drawn)%2 != 0 {
		tb.Skipf("%seach has half of them (%s=%d)", OtherRun, Draw, drawn)
	}
}

// number is that of a test's name. With this function, the two halves of Turn take about as long as each other.
func number(tb testing.TB) uint64 { return uint64(crc32.ChecksumIEEE([]byte(tb.Name()))) }
