// SPDX-License-Identifier: Apache-2.0

package manycore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/test/vm"
)

var (
	cores        = flag.String("cores", "", "machines with so many vCPUs, separated by commas; without it nothing is emulated")
	kernel       = flag.String("kernel", "7.x", "the kernel of the machine: "+vm.Lines[0].String()+" or 7.x")
	nodes        = flag.Int("nodes", 1, "NUMA nodes")
	threads      = flag.Int("threads", 1, "siblings of a core (SMT)")
	rate         = flag.Int("rate", 1, "instructions in a nanosecond")
	quantum      = flag.Int("quantum", 1000, "instructions that a core may be ahead of others")
	pause        = flag.Int("pause", 30, "what PAUSE takes, in ns")
	send         = flag.Int("ipi", 0, "what it takes to send an interrupt to another core, in ns")
	wake         = flag.Int("wake", 0, "what it takes an idle core to wake, in ns")
	lines        = flag.String("lines", "100,100,25", "what cache lines take to come from another core, in instructions: one that it changed, one that it only has, one that is stored to; 0,0,0: nothing is kept of lines")
	queues       = flag.Int("queues", 1, "queues of the lab's NIC")
	rows         = flag.String("series", "", `what to run, as "udp-one --variants overlay,pipeline --rounds 1 --seconds 1"; several separated by semicolons`)
	uncalibrated = flag.Bool("uncalibrated", false, "print figures of machines that are not like real ones, too, which say so")
	again        = flag.Bool("again", false, "prove the gates again, though they are on record")
	limit        = flag.Duration("limit", time.Hour, "how long a machine may take")
)

// Without -cores the tests that emulate are not asked for: there is nothing to skip.
func TestMain(m *testing.M) {
	flag.Parse()
	if *cores == "" {
		left := "^(TestGates|TestSeries|TestOrder)$"
		if f := flag.Lookup("test.skip"); f.Value.String() != "" {
			left += "|" + f.Value.String()
		}
		if err := flag.Set("test.skip", left); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// machines are those that the arguments describe.
func machines(t *testing.T) (all []Machine) {
	t.Helper()
	line, err := KernelOf(*kernel)
	if err != nil {
		t.Fatal(err)
	}
	var move Lines
	if _, err := fmt.Sscanf(*lines, "%d,%d,%d", &move.Changed, &move.Clean, &move.Taken); err != nil {
		t.Fatalf("-lines: %v", err)
	}
	for _, n := range strings.Split(*cores, ",") {
		cpus, err := strconv.Atoi(strings.TrimSpace(n))
		if err != nil {
			t.Fatalf("-cores: %v", err)
		}
		m := Machine{Kernel: line, CPUs: cpus, Nodes: *nodes, Threads: *threads, Rate: *rate, Quantum: *quantum, Pause: *pause, Send: *send, Wake: *wake, Lines: move}
		if err := m.check(); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

func cacheDir() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	return filepath.Join(cache, "overlane-vm")
}

// bench has all that machines need, the programs as they are in the working tree.
func bench(t *testing.T, lines ...vm.Line) *Bench {
	t.Helper()
	say := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "manycore: "+format+"\n", args...) }
	begin := time.Now()
	e, err := Build(t.Context(), cacheDir(), say)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the emulator is there after %.0f s", time.Since(begin).Seconds())
	dir := t.TempDir()
	b := &Bench{Emulator: e, Kernels: map[vm.Line]*vm.Kernel{}, Init: filepath.Join(dir, "init"), Programs: map[string]string{}}
	for _, l := range lines {
		if b.Kernels[l], err = l.Kernel(t.Context(), cacheDir()); err != nil {
			t.Fatal(err)
		}
		if w := b.Kernels[l].Warning; w != "" {
			t.Logf("warning: %s", w)
		}
	}
	const root = "github.com/overlane/overlane/"
	vm.Build(t, b.Init, "build", root+"test/vm/init")
	for name, pkg := range map[string]string{"overlane": "cmd/overlane", "overlane-lab": "cmd/overlane-lab", "spin": "test/manycore/spin"} {
		b.Programs[name] = filepath.Join(dir, name)
		vm.Build(t, b.Programs[name], "build", root+pkg)
	}
	return b
}

// proven returns the gates of a machine: whether it is one, and whether it is like real ones.
func proven(t *testing.T, b *Bench, m Machine) (even, native Gates) {
	t.Helper()
	even, native = recorded(t, b, "even", m, b.Even), recorded(t, b, "native", m.Pair(), b.Native)
	t.Logf("%s:\n%s", m, append(slices.Clone(even), native...))
	return even, native
}

// recorded returns some gates, from the record if they were tried before.
func recorded(t *testing.T, b *Bench, which string, m Machine, try func(context.Context, Machine, string, func(string, ...any)) (Gates, error)) (gs Gates) {
	t.Helper()
	made := b.Emulator.Key
	if m.Lines != (Lines{}) {
		made += b.Emulator.Plugin
	}
	what := fmt.Sprint(which, m, made, b.Kernels[m.Kernel].Release, row, compared, native, taken, waking)
	record := filepath.Join(cacheDir(), "manycore-gates", fmt.Sprintf("%.8x.json", sha256.Sum256([]byte(what))))
	if data, err := os.ReadFile(record); err == nil && (!*again || fresh[record]) && json.Unmarshal(data, &gs) == nil {
		t.Log("on record: ", record)
		return gs
	}
	ctx, cancel := patient(t)
	defer cancel()
	gs, err := try(ctx, m, t.ArtifactDir(), t.Logf)
	if err != nil {
		t.Fatalf("%v\n%s", err, gs)
	}
	data, err := json.Marshal(gs)
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(record), 0o755), os.WriteFile(record, data, 0o644))
	}
	if err != nil {
		t.Error(err)
	}
	fresh[record] = true
	return gs
}

func patient(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.Context(), *limit, fmt.Errorf("not within %v", *limit))
}

// fresh are records of this run.
var fresh = map[string]bool{}

// Each machine does what is asked of it before its figures count.
func TestGates(t *testing.T) {
	ms := machines(t)
	b := bench(t, ms[0].Kernel)
	for _, m := range ms {
		t.Run(fmt.Sprintf("%d", m.CPUs), func(t *testing.T) {
			even, native := proven(t, b, m)
			if err := errors.Join(even.Err(), native.Err()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Rows of the lab in machines that have passed their gates.
func TestSeries(t *testing.T) {
	ms := machines(t)
	b := bench(t, ms[0].Kernel)
	for _, m := range ms {
		t.Run(fmt.Sprintf("%d", m.CPUs), func(t *testing.T) {
			even, native := proven(t, b, m)
			if err := even.Err(); err != nil {
				t.Fatalf("no figures of cores that are not equal or do not advance together: %v", err)
			}
			not := native.Err()
			if not != nil && !*uncalibrated {
				t.Fatalf("no figures of a machine that is not like a real one (-uncalibrated prints them all the same): %v", not)
			}
			for _, words := range strings.Split(cmp.Or(*rows, "udp-one --variants overlay,host,rps --rounds 1 --seconds 1"), ";") {
				args := append([]string{"run"}, strings.Fields(words)...)
				if *queues > 1 {
					args = append(args, "--queues", strconv.Itoa(*queues))
				}
				ctx, cancel := patient(t)
				r, err := b.Run(ctx, m, t.ArtifactDir(), Command{"overlane-lab", args})
				cancel()
				if err != nil {
					t.Error(err)
					continue
				}
				if not != nil {
					fmt.Printf("UNCALIBRATED: %v\n", not)
				}
				fmt.Printf("%s · simulated\n%s\n", m, r.Outcomes[0].Output)
				t.Log(r.Cost())
			}
		})
	}
}
