// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var costs = flag.Bool("costs", false, "tell what each program costs: on a machine whose time goes by instructions")

// priced is what a program has cost so far.
type priced struct {
	runs uint64
	time time.Duration
}

// prices are the programs of ours, by name.
func prices(t *testing.T) map[string]priced {
	t.Helper()
	all := map[string]priced{}
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it has gone
		}
		info, err := p.Info()
		if err == nil && strings.HasPrefix(info.Name, "ol_") {
			st, serr := p.Stats()
			if err = serr; err == nil {
				all[info.Name] = priced{runs: st.RunCount, time: st.Runtime}
			}
		}
		if err := errors.Join(err, p.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// price tells what programs cost in the time that do takes.
func price(t *testing.T, do func()) {
	t.Helper()
	if !*costs {
		do()
		return
	}
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	was := prices(t)
	do()
	for name, is := range prices(t) {
		if n := is.runs - was[name].runs; n > 0 {
			t.Logf("%-20s %8d times, %5d instructions each", name, n, int64(is.time-was[name].time)/int64(n))
		}
	}
}
