// SPDX-License-Identifier: Apache-2.0

// Package speed makes a run of tests short where go test has -short, as in `make test`: tests that take minutes
// are left out, of long tables a part runs, and of slow tests half, each time others.
package speed

import (
	"flag"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
)

// Long leaves a test out of a short run.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs minutes: make full")
	}
}

// Every tells of each row of a table in turn whether it runs: all do, and in a short run every nth, from one that
// chance chooses.
func Every(n int) (runs func() bool) {
	i, first := 0, 0
	if testing.Short() {
		first = rand.IntN(n)
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

// turns are the calls of Turn; first is which half of them runs.
var (
	turns atomic.Int32
	first = rand.Int32N(2)
)

// Turn has every second test that calls it come in a short run: chance chooses which half. Subtests come with their
// test: Every is for these. A test that -run names is never left.
func Turn(tb testing.TB) {
	tb.Helper()
	if !testing.Short() || strings.Contains(tb.Name(), "/") || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	if turns.Add(1)%2 == first {
		tb.Skip(OtherRun + "each has every second one")
	}
}
