// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/rules"
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
		{"out of memory", "fatal error: ", nil, starve},
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
			if !strings.Contains(d.Log(), tc.says) {
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

// starve leaves a daemon no memory beyond what it has, and has it ask for some.
func starve(t *testing.T, d *rig.Daemon) {
	t.Helper()
	// Not a byte more of what it may write to.
	must(t, unix.Prlimit(d.PID, unix.RLIMIT_DATA, &unix.Rlimit{Cur: 1, Max: 1}, nil))
	n := 0
	rig.Until(t, "the daemon finds no memory", func() (bool, string) {
		c, err := control.Dial(filepath.Join(d.Folder(), "control.sock"))
		if err != nil {
			return true, ""
		}
		defer c.Close()
		for err == nil {
			n++
			err = c.AddRule(t.Context(), rules.Rule{Name: fmt.Sprintf("rule-%d", n), Class: rules.Latency, Proto: 6, Port: uint16(n)})
		}
		return false, fmt.Sprintf("%d rules: %v", n, err)
	})
}
