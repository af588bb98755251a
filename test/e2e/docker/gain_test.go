// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/test/e2e/rig"
)

// rounds is the variable with the number of rounds that `make docker-bench` measures.
const rounds = "OVERLANE_DOCKER_BENCH"

// abstains is a daemon of which no mechanism acts for so long.
const abstains = 10 * time.Second

// One UDP flow of 64 bytes from an ordinary sender (UDP_SEGMENT) that sends what it can, to an
// application that reads, both on a core that does not poll the NIC. The daemon, without a
// configuration, acts by itself. What it gains is measured by `make docker-bench`.
func TestDefaultActsBesideASaturatedCore(t *testing.T) {
	count, span := 1, 200*time.Millisecond
	if text := os.Getenv(rounds); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s: %q is no number of rounds", rounds, text)
		}
		count, span = n, 3*time.Second
	}
	s := engines(t)
	l := startLoad(t, s)
	l.check(t)
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		t.Fatal(err)
	}
	rec := report.New(report.Meta{Scenario: "udp-docker", NIC: string(s.bed.NIC), NAPI: s.bed.Polling(),
		Kernel: unix.ByteSliceToString(kernel.Release[:]), Cores: runtime.NumCPU(), Rounds: count, Seconds: span.Seconds(),
		Command: "make docker-bench"})
	for round := range count {
		values := l.measure(span, nil)
		rec.Add(report.Overlay, round, values)
		d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS})
		begin := time.Now()
		acts := false
		rig.Until(t, "a mechanism acts", func() (bool, string) {
			st := peek(t, d)
			c := st.Counters
			acts = c.AggregatedPackets+c.SteeredPackets > 10000
			// A round in which none does counts, too.
			return acts || count > 1 && time.Since(begin) > abstains, fmt.Sprintf("%+v\n%+v", st.Mechanisms, c)
		})
		if acts {
			t.Logf("round %d: a mechanism acts after %s", round+1, time.Since(begin).Round(100*time.Millisecond))
		} else {
			t.Logf("round %d: none acts: %+v", round+1, peek(t, d).Mechanisms)
		}
		if count > 1 {
			time.Sleep(time.Second) // what came before has gone through
		}
		values = l.measure(span, d)
		rec.Add("auto", round, values)
		ends(t, d)
	}
	l.goesOn()
	sent, last := l.end()
	t.Logf("sent %d; %+v", sent, last)
	var table bytes.Buffer
	if err := rec.Finish().Table(&table); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
}

func peek(t testing.TB, d *rig.Daemon) control.Status {
	t.Helper()
	st, err := d.Peek()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// measure is what the reader read for a while, beside a daemon if there is one.
func (l *load) measure(span time.Duration, d *rig.Daemon) map[string]float64 {
	l.t.Helper()
	var before, after control.Counters
	if d != nil {
		before = peek(l.t, d).Counters
	}
	a := l.to.counters()
	time.Sleep(span)
	b := l.to.counters()
	values := map[string]float64{
		report.KPPS:      float64(b.Received-a.Received) / 1000 / (b.At - a.At).Seconds(),
		report.Reordered: float64(b.Late - a.Late),
		report.Dropped:   float64(b.Missing - a.Missing),
		report.Lost:      float64(b.Overflow - a.Overflow),
	}
	if d != nil {
		after = peek(l.t, d).Counters
		share := func(of, all uint64) float64 { return float64(of) / float64(max(all, of, 1)) }
		values[report.Acted] = max(
			share(after.AggregatedPackets-before.AggregatedPackets, after.CountedPackets-before.CountedPackets),
			share(after.SteeredPackets-before.SteeredPackets, after.OverlayPackets-before.OverlayPackets))
	}
	return values
}
