// SPDX-License-Identifier: Apache-2.0

// Package order holds the pipeline to its first promise: whatever it does to
// flows, while it does it, packets of a flow arrive in the order in which they
// were sent, each once, and every one that does not arrive is counted
// somewhere.
//
// Real traffic goes through a bed of the lab while the product is started,
// re-steers, is switched off and on, loses cores and is stopped. The judge is
// the lab's checker, which shares nothing with the product.
//
// As it stands the package is short enough for every CI run. The long version
// covers every combination:
//
//	go test ./test/e2e/order -e2e.volume 10 -timeout 3h
package order

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/overlane/overlane/internal/apply"
)

var (
	volume = flag.Int("e2e.volume", 1, "times as many packets in each run; from 10 on, every combination is run")
	binary = flag.String("e2e.binary", "", "overlane program to test (default: built from this tree)")
)

// guardianVerb makes this program the guardian of a daemon that runs in a test.
const guardianVerb = "guardian"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == guardianVerb {
		os.Exit(guardian(os.Args[2:]))
	}
	flag.Parse()
	code := m.Run()
	removeBuilt()
	os.Exit(code)
}

func guardian(args []string) int {
	flags := flag.NewFlagSet(guardianVerb, flag.ContinueOnError)
	dir := flags.String("state-dir", "", "")
	cookie := flags.Uint64("netns-cookie", 0, "")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := apply.RunGuardian(*dir, *cookie, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces and loads BPF programs")
	}
}
