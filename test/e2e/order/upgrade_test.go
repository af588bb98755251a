// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// An upgrade, a downgrade and an upgrade again, as a service manager does them: one version is
// told to end, and the other is started where it was. Traffic does not notice.
func TestUpgradeAndDowngradeUnderTraffic(t *testing.T) {
	speed.Turn(t)
	rig.NeedCores(t, 2)
	this, next := rig.Program(t), rig.Program(t, "next")
	b := rig.Lab(t, bed.Options{})
	residue.Check(t, rig.Scope(b))
	s := stall(t)
	tr := send(t, b, 8, paced)
	state := ""
	for i, program := range []string{this, next, this, next} {
		p := &product{bed: b, by: tc, cores: steered(b)}
		p.Daemon = rig.Start(t, rig.Spec{NS: b.Receiver().NS, State: state, Program: program, Config: p.config(config.ModeForced, p.cores)})
		state = p.State
		if err := p.await("the pipeline acts", mechanisms[tc].acts); err != nil {
			t.Fatal(err)
		}
		st, err := p.status()
		if err != nil {
			t.Fatal(err)
		}
		if later := program == next; (st.Version == "next") != later {
			t.Fatalf("version %s acts, the later one: %t", st.Version, later)
		}
		// The other one keeps out for as long as this one is there.
		other := rig.Launch(t, rig.Spec{NS: p.NS, State: state, Program: map[string]string{this: next, next: this}[program], Config: p.config(config.ModeForced, p.cores)})
		other.GoneBoth() // and has said all that it will
		if code := other.Exited().ExitCode(); code != 1 || !strings.Contains(other.Log(), fmt.Sprintf("pid %d", p.PID)) {
			t.Errorf("beside version %s with pid %d the other one ended with %d:\n%s", st.Version, p.PID, code, other.Log())
		}
		arrived(t, tr, uint64(i+1)*30_000)
		if err := p.await("it still acts", mechanisms[tc].acts); err != nil {
			t.Fatal(err)
		}
		if err := p.end(); err != nil {
			t.Fatal(err)
		}
		p.GoneBoth()
		p.NothingLeft()
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
	tr.judge(t, nil)
}

// arrived waits until so many packets have.
func arrived(t *testing.T, tr *stream, n uint64) {
	t.Helper()
	rig.Until(t, fmt.Sprintf("%d packets arrive", n), func() (bool, string) {
		got, err := tr.received()
		if err != nil {
			t.Fatal(err)
		}
		return got >= n, fmt.Sprint(got)
	})
}

// What a version leaves behind that was killed with its guardian, a later one restores. An
// earlier one that does not know how says which version does, and changes nothing.
func TestVersionsInheritFromEachOther(t *testing.T) {
	rig.NeedCores(t, 2)
	this, next := rig.Program(t), rig.Program(t, "next")
	b := rig.Lab(t, bed.Options{})
	residue.Check(t, rig.Scope(b))
	idle := "pipeline: off\nmetrics: off\n"
	// The masks of either stage: one may be left out.
	masks := func() string {
		rx := b.Receiver()
		return rig.Mask(t, rx.Overlay, bed.Tunnel) + rig.Mask(t, rx.Pods[0].NS, bed.PodDev)
	}
	send(t, b, 8, paced)
	leave := func(program string) *rig.Daemon {
		p := &product{bed: b, by: tc, cores: steered(b)}
		p.Daemon = rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: program, Config: p.config(config.ModeForced, p.cores)})
		if err := p.await("the pipeline acts", func(st control.Status) bool { return mechanisms[tc].acts(st) && masks() != "" }); err != nil {
			t.Fatal(err)
		}
		p.StopGuardian()
		p.Signal(unix.SIGKILL)
		p.Exited()
		p.KillStopped()
		p.GoneBoth()
		if masks() == "" {
			t.Fatal("with both killed, the masks are as they were")
		}
		return p.Daemon
	}
	comes := func(d *rig.Daemon, program string) {
		t.Helper()
		successor := rig.Start(t, rig.Spec{NS: d.NS, State: d.State, Program: program, Config: idle})
		if m := masks(); m != "" {
			t.Errorf("masks are %s still", m)
		}
		successor.Signal(unix.SIGTERM)
		if code := successor.Exited().ExitCode(); code != 0 {
			t.Errorf("the successor ended with %d", code)
		}
		successor.GoneBoth()
		successor.NothingLeft()
	}

	comes(leave(this), next)

	d := leave(next)
	set := masks()
	early := rig.Launch(t, rig.Spec{NS: d.NS, State: d.State, Program: this, Config: idle})
	early.GoneBoth() // and has said all that it will
	if code := early.Exited().ExitCode(); code != 1 || !strings.Contains(early.Log(), "`overlane off` of the newer one") {
		t.Errorf("the earlier version ended with %d:\n%s", code, early.Log())
	}
	if r := rig.Run(t, rig.Spec{NS: d.NS, Program: this}, "off", "--state-dir", d.State); r.Code == 0 {
		t.Errorf("off of the earlier version says that it is done: %s", r)
	}
	if m := masks(); m != set {
		t.Errorf("masks are %q, were %q: they were not the earlier version's to change", m, set)
	}
	if r := rig.Run(t, rig.Spec{NS: d.NS, Program: next}, "off", "--state-dir", d.State); r.Code != 0 {
		t.Errorf("off of the version that left it: %s", r)
	}
	if m := masks(); m != "" {
		t.Errorf("masks are %s still", m)
	}
	comes(d, this)
}
