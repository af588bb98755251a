// SPDX-License-Identifier: Apache-2.0

package manycore

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/overlane/overlane/test/mutants/worktree"
	"github.com/overlane/overlane/test/speed"
	"github.com/overlane/overlane/test/vm"
)

var (
	orders    = flag.String("orders", ".", "what to run of test/e2e/order, as of -test.run")
	lanes     = flag.String("lanes", "", "cores that the product may use for lanes, as 0-3 (empty: all)")
	unguarded = flag.Bool("unguarded", false, "with the order guard compiled out: what the tests see then")
	volume    = flag.Int("volume", 1, "times as many packets and lane changes in each of its runs")
)

// stretch is what test/e2e/order tells of a stretch of traffic.
type stretch struct {
	Name, Placed   string
	Polled         string
	Sent, Received uint64
	Late, Twice    uint64
	Lost           int64
	Drops          map[string]uint64
	Helped         uint64
	Changes, Seen  uint64
	Second         float64
	Seconds        int
	machine        Machine
	queues         int
}

var told = regexp.MustCompile(`(?m)row of order: (\{.*\})$`)

// drops names the counters that are not zero.
func (s *stretch) drops() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.Drops)) {
		if s.Drops[k] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", k, s.Drops[k]))
		}
	}
	return strings.Join(parts, ", ")
}

func tableOf(all []stretch) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kernel\tvCPUs\tqueues\trun\tNIC on\tlanes\treceived\tlate\ttwice\tlost\thelped\tlane changes\tsecond choice\tflows there\tdrops")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f %% of %d\t%d\t%s\n", s.machine.Kernel, s.machine.CPUs, s.queues, s.Name, s.Polled, s.Placed,
			s.Received, s.Late, s.Twice, s.Lost, s.Helped, s.Changes, 100*s.Second, s.Seen, s.Seconds, s.drops())
	}
	_ = w.Flush() // to memory
	return b.String()
}

// orderly runs tests of test/e2e/order in a machine, and returns what they tell.
func orderly(t *testing.T, b *Bench, m Machine, queues int, lanes string, args ...string) (all []stretch) {
	t.Helper()
	if lanes == "" {
		lanes = fmt.Sprintf("0-%d", m.CPUs-1)
	}
	// Less than the plain overlay takes, which is 88000 packets a second at an instruction in a nanosecond:
	// more is another load.
	pace := 60_000 * m.Rate
	ctx, cancel := patient(t)
	defer cancel()
	r, err := b.Run(ctx, m, t.ArtifactDir(), Command{"order", append([]string{
		"-test.v", "-test.timeout=24h", "-e2e.all", "-e2e.machine", "-e2e.queues=" + strconv.Itoa(queues), "-e2e.cores=" + lanes, fmt.Sprintf("-e2e.rate=%d", pace), "-e2e.limit=15s"}, args...)})
	if r == nil {
		t.Fatal(err)
	}
	if err != nil && !*unguarded {
		t.Error(err)
	}
	t.Logf("%s: %.0f s", m, r.Wall.Seconds())
	for _, o := range r.Outcomes {
		for _, line := range told.FindAllStringSubmatch(o.Output, -1) {
			s := stretch{machine: m, queues: queues}
			if err := json.Unmarshal([]byte(line[1]), &s); err != nil {
				t.Errorf("%v: %s", err, line[1])
			}
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		t.Error("no traffic was checked")
	}
	return all
}

// tellers has the tests of order, and the program that they start.
func tellers(t *testing.T, line vm.Line) *Bench {
	t.Helper()
	b := bench(t, line)
	dir := t.TempDir()
	product := filepath.Join(dir, "overlane_resteer")
	if *unguarded {
		withoutGuard(t, product)
	} else {
		vm.Build(t, product, "build", "-tags=resteer", "github.com/overlane/overlane/cmd/overlane")
	}
	b.Started = []string{product}
	tests := filepath.Join(dir, "order")
	vm.Build(t, tests, "test", "-c", "github.com/overlane/overlane/test/e2e/order")
	b.Programs = map[string]string{"order": tests}
	return b
}

// Packets arrive in order and once, and drops are counted, on many cores: the end-to-end tests of
// order, in machines that have these.
func TestOrder(t *testing.T) {
	ms := machines(t)
	b := tellers(t, ms[0].Kernel)
	var all []stretch
	for _, m := range ms {
		t.Run(fmt.Sprintf("%d", m.CPUs), func(t *testing.T) {
			some := orderly(t, b, m, *queues, *lanes, "-test.run="+*orders, fmt.Sprintf("-e2e.broken=%t", *unguarded), fmt.Sprintf("-e2e.volume=%d", *volume))
			if *unguarded && !slices.ContainsFunc(some, func(s stretch) bool { return s.Late > 0 }) {
				t.Error("nothing is late without the guard")
			}
			all = append(all, some...)
		})
	}
	text := tableOf(all)
	fmt.Print(text)
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "order.txt"), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// One row of it for each full run: a NIC with four queues, each polled by a core of its own, and several lanes
// for each stage on five others.
func TestOrderOnNineCores(t *testing.T) {
	speed.Long(t)
	if err := Lacks(t.Context(), cacheDir()); err != nil {
		t.Skip(err)
	}
	newest := vm.Lines[len(vm.Lines)-1]
	m := Machine{Kernel: newest, CPUs: 9, Rate: *rate, Quantum: *quantum, Pause: *pause}
	some := orderly(t, tellers(t, newest), m, 4, "", "-test.run=^TestOrder$/^bridged-thread$/^resteered-tc-thread-bridged-64-lossy$")
	t.Logf("\n%s", tableOf(some))
	for _, s := range some {
		if s.Seconds == 0 {
			t.Errorf("%s: no flow was seen on its second choice", s.Name)
		}
		for stage := range strings.SplitSeq(s.Placed, " · ") {
			if !strings.Contains(stage, ",") {
				t.Errorf("%s: lanes %s: each stage is to have several", s.Name, s.Placed)
			}
		}
	}
}

// withoutGuard puts a program in a program's place whose flows change lanes whenever they like.
func withoutGuard(t *testing.T, program string) {
	t.Helper()
	root, err := worktree.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := worktree.New(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Remove()
	if _, err := c.Regenerate(t.Context(), "OL_MUTANT_NO_GUARD"); err != nil {
		t.Fatal(err)
	}
	vm.Build(t, program, "build", "-C="+c.Dir, "-tags=resteer", "github.com/overlane/overlane/cmd/overlane")
}
