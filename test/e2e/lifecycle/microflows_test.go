// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// microflows is a configuration that splits flows, whatever order they come in, from
// a rate on.
func microflows(elephant string) string {
	return fmt.Sprintf("pipeline: off\nmetrics: off\nmicroflows: {mode: forced, elephant: %s, udp-order: none}\n", elephant)
}

// laneOf is the number of packets that went to a stage's lanes.
func laneOf(st control.Status, stage string) (n uint64) {
	for _, l := range st.Lanes {
		if l.Stage == stage {
			n += l.Packets
		}
	}
	return n
}

// tiers are where elephants are split: before the NIC's stage, and behind it.
var tiers = []struct{ tier, stage string }{{"xdp", "nic"}, {"tc", "tunnel"}}

// whole fails the test if datagrams of flows that were no longer split have come late since before, but for those that
// the wire may have overtaken, or twice.
func whole(t *testing.T, before, v rig.Verdict) {
	t.Helper()
	if late, may := v.Reordered-before.Reordered, v.Requeued-before.Requeued; late > may || v.Duplicated != 0 {
		t.Errorf("%d late once they were whole, of which the wire may have overtaken %d; %d twice", late, may, v.Duplicated)
	}
}

func TestElephantsAreSplitAndBecomeWholeAgain(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, at := range tiers {
		if !turn() {
			continue
		}
		t.Run(at.tier, func(t *testing.T) { splitAndWholeAgain(t, "tier: "+at.tier+"\n", at.stage) })
	}
}

func splitAndWholeAgain(t *testing.T, tier, stage string) {
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: microflows("1Mbit") + tier})
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "both flows are split, over the lane and the core that polls", func() (bool, string) {
		st := d.Status()
		c, lane := st.Counters, laneOf(st, stage)
		return c.Splits >= 2 && lane > 1000 && c.SplitPackets > lane+200, fmt.Sprintf("%+v, %d by the lane", c, lane)
	})
	// Too high for them: they become whole, and go on in order.
	d.Reload(microflows("10Gbit") + tier)
	var last uint64
	rig.Until(t, "no packet is split any more", func() (bool, string) {
		was := last
		l.GoesOn()
		last = d.Status().Counters.SplitPackets
		return was == last, fmt.Sprint(last - was)
	})
	before := l.Verdict()
	l.GoesOn()
	d.Signal(unix.SIGTERM)
	d.Exited()
	d.GoneBoth()
	whole(t, before, l.Stop())
}

// Each frame costs more while a program is on its NIC: it goes with what it is there for.
func TestTheProgramOnTheNICGoesWithMicroflows(t *testing.T) {
	b := lab(t, bed.Options{})
	nl := rig.In(t, b.Receiver().NS)
	defer nl.Close()
	attached := func() bool {
		l, err := nl.LinkByName(b.Receiver().Wire)
		if err != nil {
			t.Fatal(err)
		}
		x := l.Attrs().Xdp
		return x != nil && x.Attached
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: microflows("1Mbit") + "tier: xdp\n"})
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "both flows are split", func() (bool, string) {
		st := d.Status()
		return st.Counters.Splits >= 2 && laneOf(st, "nic") > 1000 && attached(), fmt.Sprintf("%+v", st.Counters)
	})
	d.Reload("pipeline: off\nmetrics: off\nmicroflows: {mode: off}\ntier: xdp\n")
	rig.Until(t, "the NIC has no program", func() (bool, string) { return !attached(), fmt.Sprintf("%+v", d.Status().Mechanism("microflows")) })
	before := l.Verdict()
	l.GoesOn()
	whole(t, before, l.Stop())
}

// Micro-flows are on their way through the lanes when the daemon is killed: nothing stays, and
// what comes after it comes whole, in order.
func TestMicroflowsAreTakenBackAfterAKill(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, at := range tiers {
		for _, end := range []struct {
			name string
			kill func(*testing.T, *rig.Daemon)
		}{
			{"the daemon", func(t *testing.T, d *rig.Daemon) {
				d.Signal(unix.SIGKILL)
				killed(t, d.Exited())
				d.GoneBoth()
			}},
			{"the guardian, too", func(t *testing.T, d *rig.Daemon) {
				killBoth(t, d)
				if r := d.Verb("off"); r.Code != 0 {
					t.Errorf("overlane off: %s", r)
				}
			}},
		} {
			if !turn() {
				continue
			}
			t.Run(at.tier+"/"+end.name, func(t *testing.T) {
				b := lab(t, bed.Options{})
				before := masks(t, b)
				d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: microflows("1Mbit") + "tier: " + at.tier + "\n"})
				l := rig.StartLoad(t, b, 2)
				rig.Until(t, "both flows are split", func() (bool, string) {
					st := d.Status()
					return st.Counters.Splits >= 2 && laneOf(st, at.stage) > 1000, fmt.Sprintf("%+v", st.Counters)
				})
				end.kill(t, d)
				d.NothingLeft()
				if now := masks(t, b); now != before {
					t.Errorf("masks are %s, were %s", now, before)
				}
				l.GoesOn()
				since := l.Verdict()
				l.GoesOn()
				whole(t, since, l.Stop())
			})
		}
	}
}

func TestFlowsThatAreNoElephantsStayWhole(t *testing.T) {
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: microflows("auto")})
	l := rig.StartLoad(t, b, 4)
	rig.Until(t, "the hook sees frames", func() (bool, string) {
		st := d.Status()
		return len(st.Lanes) > 0 && st.Mechanism("microflows").State == control.Active && st.Counters.OverlayPackets > 10000, fmt.Sprintf("%+v", st.Mechanisms)
	})
	l.GoesOn()
	if c := d.Status().Counters; c.Splits != 0 || c.SplitPackets != 0 {
		t.Errorf("flows were split %d times: %+v", c.Splits, c)
	}
	orderly(t, l.Stop())
}

// Priority's program takes the place of theirs as soon as there is a rule.
func TestMicroflowsMakeRoomForPriority(t *testing.T) {
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: microflows("1Mbit")})
	l := rig.StartLoad(t, b, 2)
	rig.Until(t, "flows are split", func() (bool, string) {
		c := d.Status().Counters
		return c.Splits >= 2, fmt.Sprintf("%+v", c)
	})
	if r := d.Verb("prio", "add", "ssh", "proto", "tcp", "port", "22"); r.Code != 0 {
		t.Fatalf("prio add: %s", r)
	}
	rig.Until(t, "priority sees frames, and micro-flows stand by", func() (bool, string) {
		st := d.Status()
		return st.Counters.BulkPackets > 1000 && st.Mechanism("microflows").State == control.Standby, fmt.Sprintf("%+v", st.Mechanisms)
	})
	l.GoesOn()
	if v := l.Stop(); v.Duplicated != 0 {
		t.Errorf("%d twice", v.Duplicated)
	}
}
