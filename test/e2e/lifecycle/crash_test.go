// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// What Go's runtime ends a program with that panics, or finds no memory.
const crashed = 2

// A daemon that panics between any two steps, or finds no memory any more, leaves as little as
// one that is killed. It ends by itself, so what it defers still runs, in whatever state.
func TestADaemonThatCrashesIsRestored(t *testing.T) {
	b := lab(t, bed.Options{})
	before := masks(t, b)
	faulty := rig.Program(t, "faults")
	for _, tc := range []struct {
		name, says string
		env        []string
		provoke    func(*testing.T, *rig.Daemon)
	}{
		{"panic before the first mask", "panic: a fault at", []string{"OVERLANE_PANIC=2"}, nil},
		{"panic between two masks", "panic: a fault at", []string{"OVERLANE_PANIC=4"}, nil},
		{"panic on the way back", "panic: a fault at", []string{"OVERLANE_PANIC=8"}, func(_ *testing.T, d *rig.Daemon) { d.Signal(unix.SIGTERM) }},
		// What the runtime lacks first is by chance: a heap, its metadata, a table of its own.
		{"out of memory between two masks", `fatal error: .*memory`, []string{"OVERLANE_STARVE=4"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: faulty, Config: forced, Env: tc.env})
			l := rig.StartLoad(t, b, 4)
			if d.ActsOrEnds() && tc.provoke != nil {
				tc.provoke(t, d)
			}
			if code := d.Exited().ExitCode(); code != crashed {
				t.Errorf("exit code %d, want %d", code, crashed)
			}
			d.GoneBoth()
			if !regexp.MustCompile(tc.says).MatchString(d.Log()) {
				t.Errorf("the daemon does not say %q:\n%s", tc.says, d.Log())
			}
			d.NothingLeft()
			if now := masks(t, b); now != before {
				t.Errorf("masks are %s, were %s", now, before)
			}
			l.GoesOn()
			overtaken(t, l.Stop(), 3)
		})
	}
}
