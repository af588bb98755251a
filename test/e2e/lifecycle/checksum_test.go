// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/snmp"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// leaveChecksums has the other end of the receiver's NIC leave checksums to the receiver, as a veth does by default, or not.
func leaveChecksums(t *testing.T, b *bed.Bed, on bool) {
	t.Helper()
	must(t, b.Sender().NS.Do(func() error { return ethtool.SetFeature(b.Sender().Wire, "tx-checksum-ip-generic", on) }))
	if on {
		t.Cleanup(func() { leaveChecksums(t, b, false) })
	}
}

// corrupt is how many packets were dropped for a wrong checksum where the overlay's end.
func corrupt(t *testing.T, b *bed.Bed) (n uint64) {
	t.Helper()
	places := []*netns.Handle{b.Receiver().NS}
	for _, p := range b.Receiver().Pods {
		places = append(places, p.NS)
	}
	for _, ns := range places {
		c, err := snmp.Read(ns)
		must(t, err)
		n += c.BadChecksums()
	}
	return n
}

// leftOver is a word of the reason.
const leftOver = "leaves checksums to the receiver"

// Where senders leave checksums to the receiver, a program on the NIC would send on what is dropped as corrupt then. When
// that begins, while one acts, no packet is lost, and what remains acts without; when it ends, it is as before.
func TestSendersThatLeaveChecksums(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, config, mechanism string
		state                   control.MechanismState // what it is meanwhile
		acts, without           func(control.Status) bool
	}{
		{"tier xdp", strings.Replace(forced, "tier: tc", "tier: xdp", 1), "pipeline", control.Active,
			func(st control.Status) bool { return laneOf(st, "nic") > 1000 },
			func(st control.Status) bool {
				return laneOf(st, "tunnel")+laneOf(st, "pod") > 1000 && laneOf(st, "nic") == 0
			}},
		{"micro-flows", microflows("1Mbit") + "tier: xdp\n", "microflows", control.Active,
			func(st control.Status) bool { return laneOf(st, "nic") > 1000 },
			func(st control.Status) bool { return laneOf(st, "tunnel") > 1000 && laneOf(st, "nic") == 0 }},
		{"priority", strings.Replace(prioritised, "name: ssh, proto: tcp, port: 22", fmt.Sprintf("name: first, proto: udp, port: %d", traffic.BasePort), 1), "priority", control.Standby,
			func(st control.Status) bool { return st.Counters.BulkLane > 1000 },
			func(control.Status) bool { return true }},
		{"express", expresses, "express", control.Standby,
			func(st control.Status) bool { return st.Counters.ExpressPackets > 1000 },
			func(control.Status) bool { return true }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{})
			check(t, b)
			was := corrupt(t, b)
			nl := rig.In(t, b.Receiver().NS)
			defer nl.Close()
			attached := func() bool {
				l, err := nl.LinkByName(b.Receiver().Wire)
				must(t, err)
				return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
			}
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: tc.config})
			l := rig.StartLoad(t, b, 2)
			until := func(what string, on bool, state control.MechanismState, acts func(control.Status) bool) {
				t.Helper()
				rig.Until(t, what, func() (bool, string) {
					st := d.Status()
					m := mechanismOf(t, st, tc.mechanism)
					return attached() == on && m.State == state && strings.Contains(m.Reason, leftOver) != on && acts(st), fmt.Sprintf("%+v\n%s", st, d.Log())
				})
			}
			until("it acts on the NIC", true, control.Active, tc.acts)
			leaveChecksums(t, b, true)
			until("what remains acts", false, tc.state, tc.without)
			if tc.mechanism != "express" { // which says it of its paths
				saysManual(t, d, b.Receiver().Wire, leftOver)
			}
			l.GoesOn()
			leaveChecksums(t, b, false)
			if tc.state == control.Standby { // the pipeline that is in place stays as it is
				until("it acts again", true, control.Active, func(control.Status) bool { return true })
			}
			l.GoesOn()
			l.Stop()
			if n := corrupt(t, b); n != was || strings.Contains(d.Log(), "level=ERROR") {
				t.Errorf("%d packets were dropped as corrupt; the log:\n%s", n-was, d.Log())
			}
			ends(t, d)
		})
	}
}

// By itself priority is not tried where that would lose what senders leave to the receiver.
func TestSendersThatLeaveChecksumsAreToldOf(t *testing.T) {
	b := lab(t, bed.Options{})
	leaveChecksums(t, b, true)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "metrics: off\n"})
	rig.Until(t, "status says that priority is not tried", func() (bool, string) {
		m := mechanismOf(t, d.Status(), "priority")
		return m.State == control.Standby && strings.Contains(m.Reason, "no trial can show") && strings.Contains(m.Reason, leftOver), m.Reason
	})
	ends(t, d)
	text, _ := planned(t, b, "metrics: off\nexpress: forced\nmicroflows: {mode: forced, udp-order: none}\n", d.State)
	if n := strings.Count(text, leftOver); n < 3 {
		t.Errorf("plan says it %d times, not of priority, micro-flows and express:\n%s", n, text)
	}
}
