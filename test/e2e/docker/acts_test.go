// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// bare engines leave netfilter alone. With Docker's own rules connections are tracked where the
// tunnel's packets come in, which express would pass by.
var bare = []string{"--iptables=false"}

const alone = "metrics: off\nmicroflows: {mode: off}\n"

// Each mechanism acts between containers, takes nothing from their traffic, and leaves nothing.
func TestMechanismsActBetweenContainers(t *testing.T) {
	turn := speed.Every(t, 3)
	for _, tt := range []struct {
		name, config string
		of           string // the mechanism
		packets      func(control.Counters) uint64
		end          unix.Signal
		engines      []string // options
		late         uint64   // what may be overtaken when it ends (KNOWN_ISSUES.md)
	}{
		{"pipeline", alone + "pipeline: forced\ntier: tc\n", "pipeline",
			func(c control.Counters) uint64 { return c.SteeredPackets }, unix.SIGTERM, nil, 0},
		{"pipeline, killed", alone + "pipeline: forced\ntier: tc\n", "pipeline",
			func(c control.Counters) uint64 { return c.SteeredPackets }, unix.SIGKILL, nil, 0},
		{"priority", alone + fmt.Sprintf("pipeline: off\npriority: {rules: [{name: numbers, proto: udp, port: %d}]}\n", port), "priority",
			func(c control.Counters) uint64 { return c.LatencyPackets }, unix.SIGTERM, nil, 0},
		{"aggregation", alone + "pipeline: off\naggregate: forced\n", "aggregate",
			func(c control.Counters) uint64 { return c.SuperPackets }, unix.SIGTERM, nil, 2 * rig.Poll},
		{"express", alone + "pipeline: off\nexpress: forced\n", "express",
			func(c control.Counters) uint64 { return c.ExpressPackets }, unix.SIGTERM, bare, rig.InRing},
		{"express, killed", alone + "pipeline: off\nexpress: forced\n", "express",
			func(c control.Counters) uint64 { return c.ExpressPackets }, unix.SIGKILL, bare, rig.InRing},
	} {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			s := engines(t, tt.engines...)
			l := paced(t, s)
			l.check(t)
			d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS, Config: tt.config})
			rig.Until(t, "it acts on packets", func() (bool, string) {
				st, err := d.Peek()
				if err != nil {
					t.Fatal(err)
				}
				m := st.Mechanism(tt.of)
				return m.State == control.Active && tt.packets(st.Counters) > 1000, fmt.Sprintf("%+v, %+v\n%+v", m, st.Counters, st.Express)
			})
			if tt.of == "pipeline" {
				if mask := l.to.mask(); mask == "" {
					t.Error("the container's device has no mask")
				}
			}
			l.goesOn()
			if tt.end == unix.SIGTERM {
				ends(t, d)
			} else {
				d.Signal(tt.end)
				d.GoneBoth()
				d.NothingLeft()
			}
			if mask := l.to.mask(); mask != "" {
				t.Errorf("the container's device has the mask %s, had none", mask)
			}
			l.goesOn()
			l.stop(tt.late + undrained(d.Log()))
		})
	}
}

// What the program calls a container is what Docker does.
func TestStatusNamesContainersNetworkAndVNI(t *testing.T) {
	s := engines(t)
	l := paced(t, s)
	l.check(t)
	judge := func(what, out string, tells ...string) {
		t.Helper()
		for _, want := range append(tells, l.to.id[:12], s.networkID[:10]) {
			if !strings.Contains(out, want) {
				t.Errorf("no %s in overlane %s:\n%s", want, what, out)
			}
		}
	}
	spec := rig.Spec{NS: s.bed.Receiver().NS}
	judge("plan", rig.Run(t, spec, "plan").String()) // which a daemon may have carried out
	judge("doctor", rig.Run(t, spec, "doctor").String(), "4097")
	spec.Config = steers
	d := rig.Start(t, spec)
	judge("status", d.Verb("status").String(), "4097")
	l.stop(0)
}

// Beside Docker's own rules express stays away, and says why.
func TestExpressLeavesTrackedConnectionsAlone(t *testing.T) {
	s := engines(t)
	l := paced(t, s)
	l.check(t)
	d := rig.Start(t, rig.Spec{NS: s.bed.Receiver().NS, Config: alone + "pipeline: off\nexpress: forced\n"})
	rig.Until(t, "status says what stands in the way", func() (bool, string) {
		st := d.Status()
		for _, path := range st.Express {
			if strings.Contains(path.Reason, "connections are tracked") {
				return !path.Open, fmt.Sprintf("%+v", path)
			}
		}
		return false, fmt.Sprintf("%+v", st.Express)
	})
	l.goesOn()
	if n := d.Status().Counters.ExpressPackets; n > 0 {
		t.Errorf("%d packets went straight to the container", n)
	}
	ends(t, d)
	if out := rig.Run(t, rig.Spec{NS: s.bed.Receiver().NS}, "doctor").String(); !regexp.MustCompile(`express +no .*connections are tracked`).MatchString(out) {
		t.Errorf("doctor does not say what stands in the way:\n%s", out)
	}
	l.stop(0)
}
