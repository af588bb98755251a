// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/overlane/overlane/internal/netns"
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

// The address of a variable of the kernel is looked up in /proc/kallsyms, which tells it to none but
// a process with CAP_SYSLOG; the daemon has not. (Functions are found by their types.)
func TestNoObjectAsksForAddressesOfTheKernel(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"aggregate": loadAggregate, "branches": loadBranches, "merge": loadMerge, "priority": loadPriority,
		"stages": loadStages, "sync": loadSync, "trace": loadTrace, "underlay": loadUnderlay,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for typ, err := range spec.Types.All() {
			if err != nil {
				t.Fatal(err)
			}
			if v, ok := typ.(*btf.Var); ok && v.Linkage == btf.ExternVar {
				t.Errorf("object %s asks for the address of %s", name, v.Name)
			}
		}
	}
}

// A namespace that does not show the setting is not one in which backlogs have no room.
func TestRoomOfBacklogsIsTheMachines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	want, err := readBacklog()
	if err != nil {
		want = 1000
	}
	if got := backlogRoom(); got != want {
		t.Errorf("room for %d packets, want %d", got, want)
	}
	err = ns.Do(func() error {
		if _, err := readBacklog(); err == nil {
			t.Error("any namespace shows the setting")
		}
		if got := backlogRoom(); got == 0 {
			t.Error("no room in another namespace")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEveryObjectLoadsAndTheSamplerRuns(t *testing.T) {
	d := load(t)
	sampled(t, d)
	if err := errors.Join(d.needBranches(), d.needXDP()); err != nil {
		t.Fatal(err)
	}
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
	a, err := d.LoadAggregation()
	if err != nil {
		t.Fatal(err)
	}
	if c, err := a.Counters(); err != nil || c != (AggregateCounters{}) {
		t.Errorf("aggregated before any packet: %+v, %v", c, err)
	}
	if err := a.Close(); err != nil {
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

// What runs on cores that are set apart is not to be interrupted.
func TestSparedCoresAreNotSampled(t *testing.T) {
	d := load(t)
	all := len(d.sample.events)
	for _, spared := range [][]int{{0}, {0}, nil} { // the second time as after a core came online
		if err := d.Resample(spared...); err != nil {
			t.Fatal(err)
		}
		if got := len(d.sample.events); got != all-len(spared) {
			t.Errorf("%d cores are sampled beside the spared %v, of %d", got, spared, all)
		}
	}
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
