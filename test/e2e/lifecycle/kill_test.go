// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// killed asserts that the daemon ended by SIGKILL.
func killed(t *testing.T, st *os.ProcessState) {
	t.Helper()
	if w, ok := st.Sys().(syscall.WaitStatus); !ok || !w.Signaled() || w.Signal() != unix.SIGKILL {
		t.Fatalf("the daemon ended otherwise: %s", st)
	}
}

// killBoth leaves no process to restore: the guardian gets no chance to notice.
func killBoth(t *testing.T, d *rig.Daemon) {
	t.Helper()
	d.StopGuardian()
	d.Signal(unix.SIGKILL)
	killed(t, d.Exited())
	d.KillStopped()
	d.GoneBoth()
}

func TestGuardianRestoresAfterKill(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	before := masks(t, b)
	d, l := start(t, b)
	at := time.Now()
	d.Signal(unix.SIGKILL)
	killed(t, d.Exited())
	d.GoneBoth()
	// 1 s is promised; on a machine that has nothing else to do it is a
	// tenth of that. A test can only tell that it comes.
	t.Logf("restored %s after the kill", time.Since(at).Round(time.Millisecond))
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	l.GoesOn()
	left(t, d, l.Stop()) // flows are drained before programs and masks go
}

func TestOffRestoresAfterDaemonAndGuardianAreKilled(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	before := masks(t, b)
	d, l := start(t, b)
	set := masks(t, b)
	killBoth(t, d)
	l.GoesOn()
	share := l.Share()
	t.Logf("%.1f %% of the datagrams arrive with both killed", 100*share)
	if share < 0.8 {
		t.Error("fewer than 80 %")
	}
	if now := masks(t, b); now != set {
		t.Errorf("masks are %s with both killed, were %s", now, set)
	}
	if r := d.Verb("off"); r.Code != 0 {
		t.Errorf("overlane off: %s", r)
	}
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	d.NothingLeft()
	l.GoesOn()
	overtaken(t, l.Stop(), 3)
}

func TestNextRunRestoresAfterDaemonAndGuardianAreKilled(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	before := masks(t, b)
	d, l := start(t, b)
	killBoth(t, d)
	l.GoesOn()
	next := rig.Start(t, rig.Spec{NS: d.NS, State: d.State, Config: "pipeline: off\nmetrics: off\n"})
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s while the next daemon runs, were %s", now, before)
	}
	next.Signal(unix.SIGTERM)
	if code := next.Exited().ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	next.GoneBoth()
	next.NothingLeft()
	l.GoesOn()
	overtaken(t, l.Stop(), 3)
}

// Without its net a daemon does not go on.
func TestDaemonWithoutGuardianRestoresAndEnds(t *testing.T) {
	b := lab(t, bed.Options{})
	before := masks(t, b)
	d, l := start(t, b)
	if err := unix.Kill(d.Guardian(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := d.Exited().ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	d.NothingLeft()
	left(t, d, l.Stop())
}
