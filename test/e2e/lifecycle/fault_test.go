// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// A daemon built with fault points kills itself at the n-th, between any two
// steps of what it changes and of what it takes back. The process that comes next
// restores: the guardian, off, or the next daemon, in turn.
func TestKillBetweenAnyTwoSteps(t *testing.T) {
	b := lab(t, bed.Options{})
	before := masks(t, b)
	faulty := rig.Program(t, "faults")
	successors := []struct {
		name     string
		takeOver func(*testing.T, *rig.Daemon)
	}{
		{"guardian", func(*testing.T, *rig.Daemon) {}},
		{"off", func(t *testing.T, d *rig.Daemon) {
			if r := d.Verb("off"); r.Code != 0 {
				t.Errorf("overlane off: %s", r)
			}
		}},
		{"next daemon", func(t *testing.T, d *rig.Daemon) {
			next := rig.Start(t, rig.Spec{NS: d.NS, State: d.State, Config: "pipeline: off\nmetrics: off\n"})
			next.Signal(unix.SIGTERM)
			if code := next.Exited().ExitCode(); code != 0 {
				t.Errorf("the next daemon ended with %d", code)
			}
		}},
	}
	points, turn := 0, speed.Every(t, 4)
	for n := 1; ; n++ {
		died := false
		for i, next := range successors {
			if i > 0 && !turn() { // the first tells that no step is left
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", n, next.name), func(t *testing.T) {
				d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: faulty, Config: forced,
					Env: []string{fmt.Sprintf("OVERLANE_FAULT=%d", n)}})
				if next.name != "guardian" {
					d.StopGuardian()
				}
				l := rig.StartLoad(t, b, 4) // from here on it acts
				if died = dies(t, d); died {
					next.takeOver(t, d)
				}
				d.NothingLeft()
				if now := masks(t, b); now != before {
					t.Errorf("masks are %s, were %s", now, before)
				}
				l.GoesOn()
				overtaken(t, l.Stop(), 3)
			})
			if !died {
				break
			}
		}
		if !died {
			break
		}
		points = n
	}
	// The journal, two masks, and all of it back: fewer mean that there are
	// steps without points between them.
	if points < 10 {
		t.Errorf("only %d points at which a daemon can be killed", points)
	}
}

// dies runs a daemon through its life, and reports whether it was killed before
// it had come to its end. Then only its successor is left.
func dies(t *testing.T, d *rig.Daemon) bool {
	t.Helper()
	if d.ActsOrEnds() {
		d.Signal(unix.SIGTERM)
	}
	st := d.Exited()
	if !st.Success() {
		killed(t, st)
		d.KillStopped()
	}
	d.GoneBoth()
	return !st.Success()
}
