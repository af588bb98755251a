// SPDX-License-Identifier: Apache-2.0

// Package speed makes a run of tests short where go test has -short, as in `make test`: tests that take minutes
// are left out, of long tables a part runs, and of slow tests half, each time others.
package speed

import (
	"flag"
	"hash/maphash"
	"math/rand/v2"
	"strings"
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

// turn is another one in each run.
var turn = maphash.MakeSeed()

// Turn leaves half of the tests that call it out of a short run, by chance. Subtests come with their test: Every is
// for these. A test that -run names is never left.
func Turn(tb testing.TB) {
	tb.Helper()
	if !testing.Short() || strings.Contains(tb.Name(), "/") || flag.Lookup("test.run").Value.String() != "" {
		return
	}
	if maphash.String(turn, tb.Name())%2 == 0 {
		tb.Skip(OtherRun + "chance takes half of these")
	}
}
