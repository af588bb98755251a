// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// Clients that ask nothing, as many as there may be, are in nothing's way.
func TestOffMakesTheDaemonRestoreAndEndWithZero(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	before := masks(t, b)
	d, l := start(t, b)
	for range 16 {
		idle, err := net.Dial("unix", d.Folder()+"/control.sock")
		must(t, err)
		defer idle.Close()
	}
	r := d.Verb("off")
	if r.Code != 0 || !strings.Contains(r.Out, fmt.Sprint(d.PID)) || strings.Contains(r.Out, "did not answer") {
		t.Errorf("overlane off, with a daemon of pid %d: %s", d.PID, r)
	}
	// It has ended, not only promised to.
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", d.PID)); err == nil {
		t.Error("off came back before the daemon had ended")
	}
	if code := d.Exited().ExitCode(); code != 0 {
		t.Errorf("the daemon ended with %d", code)
	}
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	d.NothingLeft()
	for range 2 {
		if r := d.Verb("off"); r.Code != 0 {
			t.Errorf("overlane off, again: %s", r)
		}
	}
	l.GoesOn()
	left(t, d, l.Stop())
}

// A daemon that does nothing any more is ended, and what it has changed is restored.
func TestOffEndsADaemonThatHangs(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{Pods: 2})
	before := masks(t, b)
	d, l := start(t, b)
	d.Signal(unix.SIGSTOP)
	r := d.Verb("off")
	if r.Code != 0 || !strings.Contains(r.Out, fmt.Sprintf("(pid %d) did not answer and was ended with SIGKILL", d.PID)) {
		t.Errorf("overlane off, beside a daemon of pid %d that is stopped: %s", d.PID, r)
	}
	d.GoneBoth()
	if now := masks(t, b); now != before {
		t.Errorf("masks are %s, were %s", now, before)
	}
	d.NothingLeft()
	l.GoesOn()
	left(t, d, l.Stop())
}

func TestSeveralOffsAtOnceAllSucceed(t *testing.T) {
	b := lab(t, bed.Options{})
	d, l := start(t, b)
	results := make(chan rig.Result)
	for range 4 {
		go func() { results <- d.Verb("off") }()
	}
	for range 4 {
		if r := <-results; r.Code != 0 {
			t.Errorf("overlane off: %s", r)
		}
	}
	d.NothingLeft()
	left(t, d, l.Stop())
}

func TestOffWhereNothingEverRanChangesNothing(t *testing.T) {
	b := lab(t, bed.Options{})
	spec := rig.Spec{NS: b.Receiver().NS}
	state := t.TempDir() + "/state"
	if r := rig.Run(t, spec, "off", "--state-dir", state); r.Code != 0 {
		t.Errorf("overlane off: %s", r)
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("off made a state directory")
	}
}

func TestSecondDaemonIsToldOfTheFirst(t *testing.T) {
	b := lab(t, bed.Options{})
	d, l := start(t, b)
	set := masks(t, b)
	second := rig.Launch(t, rig.Spec{NS: d.NS, State: d.State, Config: forced})
	if code := second.Exited().ExitCode(); code != 1 {
		t.Errorf("the second daemon ended with %d, want 1", code)
	}
	second.GoneBoth()
	said := second.Log()
	if !strings.Contains(said, fmt.Sprintf("pid %d", d.PID)) || strings.Count(said, "\n") != 1 {
		t.Errorf("the second daemon, with one of pid %d, said:\n%s", d.PID, said)
	}
	if now := masks(t, b); now != set {
		t.Errorf("masks are %s, were %s", now, set)
	}
	if st := d.Acting(); st.PID != d.PID {
		t.Errorf("the daemon has pid %d, was %d", st.PID, d.PID)
	}
	ends(t, d)
	left(t, d, l.Stop())
}
