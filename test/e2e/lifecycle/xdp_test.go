// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// queues sets how many the receiver's NIC has. A veth whose other end sends by more refuses XDP
// programs, with ENOSPC, of which nothing knew.
func queues(t *testing.T, b *bed.Bed, n string) {
	t.Helper()
	must(t, b.Receiver().NS.Do(func() error {
		out, err := exec.Command("ethtool", "-L", b.Receiver().Wire, "rx", n).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

// What the kernel says for it.
const refusal = "XDP expects number of rx queues"

// A driver that refuses XDP, with whatever number, ends nothing: the NIC is left alone, once, with the
// kernel's reason, and what remains acts behind the NIC's stage.
func TestADriverThatRefusesXDPEndsNothing(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, config, mechanism string
		state                   control.MechanismState
		words                   string // of the mechanism's reason
		acts                    func(control.Status) bool
	}{
		{"tier xdp", strings.Replace(forced, "tier: tc", "tier: xdp", 1), "pipeline", control.Active, "the NIC's stage stays where it is",
			func(st control.Status) bool {
				return laneOf(st, "tunnel")+laneOf(st, "pod") > 1000 && laneOf(st, "nic") == 0
			}},
		{"micro-flows", microflows("1Mbit"), "microflows", control.Active, "flows are cut behind the NIC's stage",
			func(st control.Status) bool { return st.Counters.Splits > 0 && laneOf(st, "tunnel") > 1000 }},
		{"priority", prioritised, "priority", control.Standby, "no underlay takes its program",
			func(control.Status) bool { return true }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{Queues: 2})
			queues(t, b, "1")
			check(t, b)
			if tc.state == control.Active { // where its driver says so at the start, that is known
				queues(t, b, "2")
			}
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: tc.config})
			if tc.state == control.Active {
				queues(t, b, "1")
			}
			l := rig.StartLoad(t, b, 2)
			rig.Until(t, "what remains acts", func() (bool, string) {
				st := d.Status()
				m := mechanismOf(t, st, tc.mechanism)
				return m.State == tc.state && strings.Contains(m.Reason, tc.words) && strings.Contains(m.Reason, refusal) && tc.acts(st), fmt.Sprintf("%+v\n%s", st, d.Log())
			})
			saysManual(t, d, b.Receiver().Wire, refusal)
			l.GoesOn()
			d.Says("left without an XDP program")
			if n := strings.Count(d.Log(), "left without an XDP program"); n != 1 || strings.Contains(d.Log(), "level=ERROR") {
				t.Errorf("the log says %d times that the NIC is left alone:\n%s", n, d.Log())
			}
			ends(t, d)
			l.Stop()
		})
	}
}

// A NIC whose driver leaves the first buffer of frames empty is left by whatever has a program there, and what remains
// acts behind the NIC's stage. veth fills it, so the test counts such frames in the program's place.
func TestANICWhoseHeadersXDPDoesNotSeeIsLeft(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, config, mechanism string
		state                   control.MechanismState
		words                   string                    // of the mechanism's reason then
		before, after           func(control.Status) bool // that it acts on the NIC, and then without
	}{
		{"tier xdp", strings.Replace(forced, "tier: tc", "tier: xdp", 1), "pipeline", control.Active, "the NIC's stage stays where it is",
			func(st control.Status) bool { return laneOf(st, "nic") > 1000 },
			func(st control.Status) bool {
				return laneOf(st, "tunnel")+laneOf(st, "pod") > 1000 && laneOf(st, "nic") == 0
			}},
		{"micro-flows", microflows("1Mbit") + "tier: xdp\n", "microflows", control.Active, "flows are cut behind the NIC's stage",
			func(st control.Status) bool { return laneOf(st, "nic") > 1000 },
			func(st control.Status) bool { return laneOf(st, "tunnel") > 1000 }},
		{"priority", prioritised, "priority", control.Standby, "no underlay takes its program",
			func(st control.Status) bool { return st.Counters.BulkPackets > 0 },
			func(control.Status) bool { return true }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{NIC: bed.Softirq})
			check(t, b)
			nl := rig.In(t, b.Receiver().NS)
			defer nl.Close()
			nic := func() (index uint32, attached bool) {
				l, err := nl.LinkByName(b.Receiver().Wire)
				must(t, err)
				x := l.Attrs().Xdp
				return uint32(l.Attrs().Index), x != nil && x.Attached
			}
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: tc.config})
			l := rig.StartLoad(t, b, 2)
			rig.Until(t, "it acts on the NIC", func() (bool, string) {
				_, attached := nic()
				st := d.Status()
				return attached && tc.before(st), fmt.Sprintf("%+v\n%s", st, d.Log())
			})
			index, _ := nic()
			m, err := rig.MapOf(d.PID, "ol_headless")
			must(t, err)
			defer m.Close()
			must(t, m.Put(index, uint32(1<<31)))
			rig.Until(t, "what remains acts", func() (bool, string) {
				_, attached := nic()
				st := d.Status()
				m := mechanismOf(t, st, tc.mechanism)
				return !attached && m.State == tc.state && strings.Contains(m.Reason, tc.words) && strings.Contains(m.Reason, unread) && tc.after(st), fmt.Sprintf("program: %t\n%+v\n%s", attached, st, d.Log())
			})
			saysManual(t, d, b.Receiver().Wire, unread)
			// As at the end of priority: threads that are given back after the program have hung igb.
			back, off := strings.Index(d.Log(), `"setting restored" setting=threaded`), strings.Index(d.Log(), `"program detached"`)
			if tc.mechanism == "priority" && (threaded(t, b) || back < 0 || off < back) {
				t.Errorf("threads poll the NIC: %t; the log:\n%s", threaded(t, b), d.Log())
			}
			l.GoesOn()
			if strings.Contains(d.Log(), "level=ERROR") {
				t.Errorf("the log:\n%s", d.Log())
			}
			ends(t, d)
			l.Stop()
		})
	}
}

const unread = "leaves the first buffer of frames empty"

// An operator switches RPS on at the NIC, and off again. What a lane sends on has lost hash and queue, and goes to another
// core than what takes the stock path: meanwhile there are no lanes there, and status says why.
func TestWhereRPSMovesFramesThereAreNoLanes(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, config, mechanism string
		without                 control.MechanismState // what it is with RPS
		lanes                   func(*testing.T, *rig.Daemon) uint64
	}{
		{"tier xdp", strings.Replace(forced, "tier: tc", "tier: xdp", 1), "pipeline", control.Active,
			sentToLanes},
		{"priority", strings.Replace(prioritised, "pipeline: off", "pipeline: off\nmicroflows: {mode: off}\nexpress: off", 1), "priority", control.Standby,
			func(_ *testing.T, d *rig.Daemon) uint64 { return d.Status().Counters.BulkPackets }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{})
			rx := b.Receiver()
			t.Cleanup(func() { rig.SetQueue(t, rx.NS, rx.Wire, "rps_cpus", "0") })
			d := rig.Start(t, rig.Spec{NS: rx.NS, Config: tc.config})
			l := rig.StartSteady(t, b, 4)
			acts := func(what string) {
				t.Helper()
				was := tc.lanes(t, d)
				rig.Until(t, what, func() (bool, string) {
					st := d.Status()
					m := mechanismOf(t, st, tc.mechanism)
					return m.State == control.Active && tc.lanes(t, d) > was+1000 && !strings.Contains(m.Reason, "RPS"), fmt.Sprintf("%+v\n%s", st, d.Log())
				})
			}
			acts("frames go by lanes")
			rig.SetQueue(t, rx.NS, rx.Wire, "rps_cpus", "1")
			rig.Until(t, "frames go by no lane any more", func() (bool, string) {
				st := d.Status()
				m := mechanismOf(t, st, tc.mechanism)
				lanes := slices.ContainsFunc(st.Lanes, func(l control.Lane) bool { return l.Stage == "nic" })
				return m.State == tc.without && !lanes && strings.Contains(m.Reason, "RPS moves what "+rx.Wire), fmt.Sprintf("%+v\n%s", st, d.Log())
			})
			saysManual(t, d, rx.Wire, "RPS moves what")
			was := tc.lanes(t, d)
			l.GoesOn()
			if n := tc.lanes(t, d); n > was {
				t.Errorf("%d frames went by lanes all the same", n-was)
			}
			rig.SetQueue(t, rx.NS, rx.Wire, "rps_cpus", "0")
			if tc.mechanism == "priority" { // the pipeline that is in place stays as it is
				acts("frames go by lanes again")
			}
			// The kernel lets packets be overtaken where a mask comes or goes, and for a second lanes were there beside it.
			l.Stop()
			ends(t, d)
		})
	}
}

// sentToLanes is what the XDP program has sent to lanes. A status tells only of lanes that the layout has.
func sentToLanes(t *testing.T, d *rig.Daemon) (n uint64) {
	t.Helper()
	field, _ := reflect.TypeFor[datapath.Counters]().FieldByName("XDPLane")
	m, err := rig.MapOf(d.PID, "ol_counters")
	must(t, err)
	defer m.Close()
	var cores []uint64
	must(t, m.Lookup(uint32(field.Index[0]), &cores))
	for _, core := range cores {
		n += core
	}
	return n
}

// Beside priority, frames take the express path by priority's program, which is overlane's as well.
func TestExpressOpensBesidePriority(t *testing.T) {
	b := lab(t, bed.Options{})
	l := rig.StartSteady(t, b, 2)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised + "microflows: {mode: off}\nexpress: forced\n"})
	onPath(t, d)
	if st := d.Status(); st.Counters.BulkPackets == 0 || mechanismOf(t, st, "priority").State != control.Active {
		t.Errorf("priority: %+v", mechanismOf(t, st, "priority"))
	}
	ends(t, d)
	l.Stop()
}
