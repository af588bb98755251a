// SPDX-License-Identifier: Apache-2.0

// Package speed makes a run of tests short where go test has -short, as in `make test`: tests that take minutes
// are left out, of long tables a part runs, and of slow tests half, each time others.
package speed

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
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
		h := fnv.New64a()
		h.Write([]byte(tb.Name()))
		first = rand.New(rand.NewPCG(drawn, h.Sum64())).IntN(n)
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

// turns are the calls of Turn.
var turns atomic.Int32

// Turn has every second test that calls it come in a short run: chance chooses which half. Subtests come with their
// test: Every is for these. A test that -run names is never left.
func Turn(tb testing.TB) {
	tb.Helper()
	if !testing.Short() || strings.Contains(tb.Name(), "/") || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	if badDraw != nil {
		tb.Fatal(badDraw)
	}
	if uint64(turns.Add(1))%2 == drawn%2 {
		tb.Skipf("%seach has every second one (%s=%d)", OtherRun, Draw, drawn)
	}
}
