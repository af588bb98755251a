// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
)

// settings are what a bed's devices, and the machine's own, are set to. The
// BPF objects of daemons that run are not among them.
func settings(t *testing.T, b *bed.Bed) residue.Snapshot {
	t.Helper()
	s := rig.Scope(b)
	s.Prefixes = []string{"/"} // no object has such a name
	return residue.Take(t, s)
}

func unchanged(t *testing.T, b *bed.Bed, before residue.Snapshot, while string) {
	t.Helper()
	for _, line := range residue.Diff(before, settings(t, b)) {
		t.Errorf("%s: %s", while, line)
	}
}

// within asserts that a daemon speaks of no device outside of its own bed.
func within(t *testing.T, b *bed.Bed, st control.Status) {
	t.Helper()
	var own []uint64
	for _, name := range b.HostNames() {
		h, err := b.Namespace(name)
		if err != nil {
			t.Fatal(err)
		}
		cookie, err := h.Cookie()
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, cookie)
	}
	for _, dev := range st.Devices {
		if !slices.Contains(own, dev.Netns) {
			t.Errorf("status names a device of another lab: %+v", dev)
		}
	}
	if len(st.Devices) != 3 {
		t.Errorf("status names other devices than an underlay, a tunnel and a pod: %+v", st.Devices)
	}
}

// Two nodes on one machine share the state directory as well.
func TestTwoDaemonsTouchNeitherEachOtherNorTheMachine(t *testing.T) {
	a, b := lab(t, bed.Options{}), lab(t, bed.Options{Topology: bed.Nested})
	plainB := settings(t, b)
	da, la := start(t, a)
	unchanged(t, b, plainB, "a daemon in the first lab acts")

	actingA := settings(t, a)
	lb := rig.StartLoad(t, b, 4)
	db := rig.Start(t, rig.Spec{NS: b.Receiver().NS, State: da.State, Config: forced})
	within(t, b, db.Acting())
	unchanged(t, a, actingA, "a daemon in the second lab acts")
	within(t, a, da.Acting())

	actingB := settings(t, b)
	da.Signal(unix.SIGKILL)
	da.GoneBoth()
	unchanged(t, b, actingB, "the first daemon was killed")
	lb.GoesOn()
	within(t, b, db.Acting())

	plainA := settings(t, a)
	if r := db.Verb("off"); r.Code != 0 {
		t.Errorf("overlane off: %s", r)
	}
	unchanged(t, a, plainA, "the second daemon was switched off")
	db.NothingLeft()
	left(t, db, lb.Stop())
	overtaken(t, la.Stop(), 3)
}
