// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/plan"
)

// fixture is a node without devices, whose kernel side is a counter.
type fixture struct {
	*Aggregate
	*mechanismtest.Host
	rate    float64
	express bool // frames go straight to pods
	fails   error
	program program
	learned int
	now     time.Time
}

// program is a Program.
type program struct {
	loaded, watching bool
	datapath.AggregateCounters
}

func (p *program) Attach(datapath.Device) (io.Closer, error) { return nil, errors.ErrUnsupported }

func (p *program) Watch(on bool) error { p.watching = on; return nil }

func (p *program) Counters() (datapath.AggregateCounters, error) { return p.AggregateCounters, nil }

func (p *program) Close() error { p.loaded = false; return nil }

func (f *fixture) Rate(time.Time) (float64, error) { return f.rate, nil }

func (f *fixture) Behind() float64 { return 2 }

func (f *fixture) SkipsTunnels() bool { return f.express }

func (f *fixture) HasLanes() bool { return false }

func (f *fixture) Relearn() { f.learned++ }

func (f *fixture) LoadAggregation() (Program, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	f.program = program{loaded: true}
	return &f.program, nil
}

func (f *fixture) SetApart(bool) (bool, error) { return false, nil }

func newFixture(mode governor.Mode) *fixture {
	f := &fixture{Host: mechanismtest.New(map[plan.Setting]string{}), rate: 1e5, now: time.Unix(1_800_000_000, 0)}
	f.Aggregate = New(f, mode)
	return f
}

// windows steps through so many of 100 ms. joined is the part of the packets that super-packets carry.
func (f *fixture) windows(t *testing.T, n int, joined float64) {
	t.Helper()
	for range n {
		f.now = f.now.Add(100 * time.Millisecond)
		const packets = 10_000
		f.program.Packets += packets
		f.program.Datagrams += uint64(joined * packets)
		f.program.Supers += uint64(joined * packets / 10)
		f.program.Follows += uint64(joined * packets)
		if err := f.Step(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) is(t *testing.T, loaded bool, state control.MechanismState, reason string) {
	t.Helper()
	if f.program.loaded != loaded || (f.dp != nil) != loaded {
		t.Errorf("its program is there: %t, and it says %t; want %t", f.program.loaded, (f.dp != nil), loaded)
	}
	if m := f.Report()[0]; m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %s, %s; want %s, %s", m.State, m.Reason, state, reason)
	}
}

// acts: the node of the fixture has no device that could join, which a status says.
func (f *fixture) acts(t *testing.T) {
	t.Helper()
	if !f.program.loaded || !(f.dp != nil) || f.State() != governor.Active {
		t.Errorf("its program is there: %t; it is %s", f.program.loaded, f.State())
	}
}

// needsRoot is for what asks the kernel which programs other users attached.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: lists BPF programs")
	}
}

func TestWithoutTrafficNothingIsLoaded(t *testing.T) {
	f := newFixture(governor.Auto)
	f.rate = 100
	f.windows(t, 50, 0)
	f.is(t, false, control.Standby, "")
}

// It is watched first whether datagrams come in a row.
func TestItIsWatchedBeforeAnythingIsJoined(t *testing.T) {
	needsRoot(t)
	f := newFixture(governor.Auto)
	f.windows(t, 1, 1)
	if f.State() != governor.Parked || !f.Report()[0].Trying || !f.program.watching {
		t.Errorf("it watches: %t, its program: %t", f.State() == governor.Parked, f.program.watching)
	}
	f.windows(t, 50, 1)
	f.acts(t)
	if f.State() == governor.Parked || f.program.watching {
		t.Errorf("it still watches: %t, its program: %t", f.State() == governor.Parked, f.program.watching)
	}
}

func TestAggregationIsTakenOffWhenPacketsStop(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 50, 1)
	f.rate = 0
	f.windows(t, 600, 0)
	f.is(t, false, control.Standby, "")
}

// While frames go straight to pods no tunnel sees them: that is no reason to end.
func TestExpressDoesNotEndAggregation(t *testing.T) {
	needsRoot(t)
	f := newFixture(governor.Auto)
	f.windows(t, 50, 1)
	f.rate, f.express = 0, true
	f.windows(t, 600, 0)
	f.acts(t)
}

func TestAProgramThatTheKernelRefusesIsTriedAgain(t *testing.T) {
	f := newFixture(governor.Forced)
	f.fails = errors.New("no memory")
	f.windows(t, 1, 0)
	f.is(t, false, control.Standby, "tried again every 10s: no memory")
	f.fails = nil
	f.windows(t, int(mechanism.RetryAfter/(100*time.Millisecond))-1, 0)
	f.is(t, false, control.Standby, "no memory")
	f.windows(t, 2, 0)
	if !(f.dp != nil) {
		t.Error("it was not tried again")
	}
}

func TestCountersOutliveTheProgram(t *testing.T) {
	f := newFixture(governor.Forced)
	f.windows(t, 3, 1)
	was, err := f.counters()
	if err != nil || was.Datagrams == 0 {
		t.Fatal(was, err)
	}
	if _, err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := f.counters(); now != was || err != nil {
		t.Errorf("%+v after it was stopped, %+v before: %v", now, was, err)
	}
}
