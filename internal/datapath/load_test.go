// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

func load(t testing.TB) *Datapath {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs")
	}
	d, err := Load()
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%v\n%+v", err, ve)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestEveryObjectLoadsAndTheSamplerRuns(t *testing.T) {
	d := load(t)
	sampled(t, d)
	p, err := d.LoadPriority()
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.LoadShortcuts()
	if err != nil {
		t.Fatal(errors.Join(err, p.Close()))
	}
	if err := errors.Join(s.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	r, err := d.LoadResequencer(time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	if ways, err := r.Ways(); err != nil || ways != [Ways]uint64{} {
		t.Errorf("ways before any packet: %v, %v", ways, err)
	}
	a, err := d.LoadAggregation()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.Counters(); err != nil || c != (AggregateCounters{}) {
		t.Errorf("aggregated before any packet: %+v, %v", c, err)
	}
	if err := errors.Join(a.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

func TestSamplingStartsAnewOnTheCoresThatAreOnline(t *testing.T) {
	d := load(t)
	before := len(d.sample.events)
	if err := d.Resample(); err != nil {
		t.Fatal(err)
	}
	if got := len(d.sample.events); got != before || !d.sample.on {
		t.Errorf("%d events, on %v; were %d", got, d.sample.on, before)
	}
	sampled(t, d)
	if err := errors.Join(d.Sample(false), d.Resample()); err != nil {
		t.Fatal(err)
	}
	if d.sample.on {
		t.Error("sampling that was off is on")
	}
	if err := d.Sample(true); err != nil {
		t.Fatal(err)
	}
	sampled(t, d)
}

// sampled waits until every core with an event was looked at once more.
func sampled(t *testing.T, d *Datapath) {
	t.Helper()
	begin, err := d.Cores()
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		now, err := d.Cores()
		if err != nil {
			t.Fatal(err)
		}
		fresh := 0
		for i := range now {
			if now[i].Samples[0] > begin[i].Samples[0] {
				fresh++
			}
		}
		if fresh == len(d.sample.events) {
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("samples come from %d cores, not from all %d", fresh, len(d.sample.events))
		}
	}
}
