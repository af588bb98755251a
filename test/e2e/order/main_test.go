// SPDX-License-Identifier: Apache-2.0

// Package order holds the pipeline to its first promise: whatever it does to
// flows, while it does it, packets of a flow arrive in the order in which they
// were sent, each once, and every one that does not arrive is counted
// somewhere.
//
// Real traffic goes through a bed of the lab while the real program is started,
// re-steers, is switched off and on, loses cores and is stopped, on cores that
// stall now and then. The judge is the lab's checker, which shares nothing with
// the program.
//
// As it stands the package is short enough for every CI run. The long version has
// ten times the packets and lane changes; the last one covers every combination, in
// hours:
//
//	go test ./test/e2e/order -e2e.volume 10 -timeout 1h
//	go test ./test/e2e/order -e2e.volume 10 -e2e.all -timeout 4h
//
// On machines with more cores (test/manycore) it takes more queues, and other cores for lanes.
package order

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

var (
	volume   = flag.Int("e2e.volume", 1, "times as many packets and lane changes in each run")
	complete = flag.Bool("e2e.all", false, "run every combination")
	rate     = flag.Int("e2e.rate", 150_000, "packets in a second of all flows together, where they are paced")
	queues   = flag.Int("e2e.queues", 1, "queues of the NIC, each fed by a core of its own")
	machine  = flag.Bool("e2e.machine", false, "the machine is the tests' own: cores may be taken offline")
	broken   = flag.Bool("e2e.broken", false, "run what loses order, too, which the tests are to notice")
	lanes    = flag.String("e2e.cores", "", "cores that the product may use (empty: those that the bed has for it)")
)

// tooLong only decides when a run of volume 1 has failed: it takes seconds, and some tens on a busy machine.
var tooLong time.Duration

// given are the cores of -e2e.cores.
var given config.CPUList

func TestMain(m *testing.M) {
	flag.DurationVar(&tooLong, "e2e.limit", 5*time.Minute, "by when a run of volume 1 has had enough packets and lane changes; if shorter than a minute, twice as long for all else")
	flag.Parse()
	if tooLong < time.Minute {
		rig.Patience = 2 * tooLong
	}
	var err error
	if given, err = config.ParseCPUList(*lanes); err != nil {
		fmt.Fprintln(os.Stderr, "-e2e.cores:", err)
		os.Exit(2)
	}
	rig.Main(m)
}

// steered are the cores that the product may use.
func steered(b *bed.Bed) config.CPUList {
	if len(given) > 0 {
		return given
	}
	return b.PlaceCores().Steer
}
