// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

// expressBed lets time pass in windows.
type expressBed struct {
	t   *testing.T
	x   Express
	now time.Time
}

func newExpressBed(t *testing.T) *expressBed { return &expressBed{t: t, now: time.Unix(1000, 0)} }

const expressStep = 100 * time.Millisecond

// passes takes windows until so long has passed, or the state is another.
func (b *expressBed) passes(d time.Duration, w ExpressWindow) Decision {
	was := b.x.Last().State
	for end := b.now.Add(d); b.now.Before(end) && b.x.Last().State == was; {
		b.now = b.now.Add(expressStep)
		b.x.Step(b.now, w)
	}
	return b.x.Last()
}

func (b *expressBed) is(s State, why string) {
	b.t.Helper()
	if d := b.x.Last(); d.State != s || !strings.Contains(d.Reason, why) {
		b.t.Fatalf("%v: %q, want %v: %q", d.State, d.Reason, s, why)
	}
}

var busyTunnels = ExpressWindow{Saturated: 1, Paths: 1}

// placed brings it as far as its program's being on the NICs.
func (b *expressBed) placed() {
	b.t.Helper()
	b.passes(time.Hour, busyTunnels)
	b.is(Parked, "datagrams come out")
	b.now = b.now.Add(CensusFor)
	b.x.Counted(b.now, 100_000, 100_000)
	b.is(Parked, "measured")
	b.now = b.now.Add(measuredFor)
	if !b.x.Over(b.now) {
		b.t.Fatal("it is measured for longer than a second")
	}
	b.x.Measured(b.now)
	b.is(Active, "")
}

func TestExpressStaysAwayWhereNothingCouldBeGained(t *testing.T) {
	for _, tt := range []struct {
		w   ExpressWindow
		why string
	}{
		{ExpressWindow{Saturated: 1}, "no express path is open"},
		{ExpressWindow{Paths: 1, Saturated: shortFrom / 2}, "no core is short of time"},
		{ExpressWindow{Paths: 1, Saturated: 1, Unsettled: true}, "another mechanism"},
	} {
		b := newExpressBed(t)
		b.passes(time.Minute, tt.w)
		b.is(Standby, tt.why)
	}
}

// With TCP only no program comes near a NIC.
func TestExpressStaysAwayFromTCP(t *testing.T) {
	b := newExpressBed(t)
	for range 3 {
		b.passes(time.Hour, busyTunnels)
		b.is(Parked, "")
		b.now = b.now.Add(CensusFor)
		b.x.Counted(b.now, 100_000, 100)
		b.is(Standby, "fewer than 10000 datagrams a second")
		was := b.now
		b.passes(time.Hour, busyTunnels)
		if waited := b.now.Sub(was); waited < expressPause {
			t.Fatalf("it is looked again after %v", waited)
		}
		b.now = b.now.Add(CensusFor)
		b.x.Counted(b.now, 1_000_000, 50_000)
		b.is(Standby, "5 % of the tunnels' packets are datagrams")
	}
}

func TestExpressGoesWhenHardlyAFrameTakesIt(t *testing.T) {
	b := newExpressBed(t)
	b.placed()
	taken := ExpressWindow{Saturated: 1, Paths: 1, Overlay: 10_000, Straight: 9_000}
	b.passes(time.Hour, taken)
	b.is(Active, "")
	var pauses []time.Duration
	for range 7 {
		was := b.now
		b.passes(time.Hour, ExpressWindow{Saturated: 1, Paths: 1, Overlay: 10_000, Straight: 100})
		b.is(Standby, "hardly a frame went straight")
		if took := b.now.Sub(was); took < expressIdle || took > expressIdle+2*time.Second {
			t.Fatalf("it went after %v", took)
		}
		was = b.now
		b.placed()
		pauses = append(pauses, b.now.Sub(was).Truncate(10*time.Second))
	}
	want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute}
	for i := range want {
		if pauses[i] != want[i] && pauses[i] != want[i]-10*time.Second && pauses[i] != want[i]+10*time.Second {
			t.Fatalf("looked again after %v, want %v", pauses, want)
		}
	}
	// Few frames of few are as few.
	b.passes(time.Hour, ExpressWindow{Saturated: 1, Paths: 1, Overlay: 10, Straight: 10})
	b.is(Standby, "hardly a frame went straight")
}

// A clock that jumps back keeps nothing waiting, and nothing in place.
func TestExpressHandlesAClockThatJumps(t *testing.T) {
	b := newExpressBed(t)
	b.passes(time.Hour, busyTunnels)
	b.x.Counted(b.now, 0, 0)
	b.now = b.now.Add(-time.Hour)
	b.placed()
	b.now = b.now.Add(-time.Hour)
	b.passes(time.Minute, ExpressWindow{Overlay: 10_000})
	b.is(Standby, "hardly a frame")
}

// In the windows without it its program is on the NIC as well: what that costs only what came before
// tells.
func TestVerdictsAreHeldAgainstWhatCameBefore(t *testing.T) {
	for _, tt := range []struct {
		without float64
		acts    bool
	}{{0, true}, {90_000, true}, {150_000, false}} {
		j, now := NewJudge(Terms{Goal: Goodput}, 1), time.Unix(1000, 0)
		s := Situation{Layout: "x", Rate: 100_000, Without: tt.without}
		acts, w := false, Window{}
		for range 1000 {
			var why string
			acts, why = j.Step(now, s, w)
			if !j.Trying() {
				if acts != tt.acts || !acts && !strings.Contains(why, "before its program came") {
					t.Fatalf("without %v: %t, %q", tt.without, acts, why)
				}
				break
			}
			now = now.Add(50 * time.Millisecond)
			w = Window{Elapsed: 50 * time.Millisecond, Frames: 2500}
			if acts {
				w.Frames, w.Acted = 5000, 1
			}
		}
		if j.Trying() {
			t.Fatal("no verdict")
		}
		if j.Stale(now, s) {
			t.Error("a new verdict is stale")
		}
		if got := j.Stale(now.Add(time.Hour), s); got != tt.acts {
			t.Errorf("without %v: after an hour it is stale: %t", tt.without, got)
		}
	}
}
