// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// traces is how many programs a process has on the tracepoint of polls.
func traces(t *testing.T, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fdinfo/", pid)
	fds, err := os.ReadDir(dir)
	must(t, err)
	for _, fd := range fds {
		info, err := os.ReadFile(dir + fd.Name())
		if err != nil {
			continue // closed since
		}
		if strings.Contains(string(info), "tp_name:\tnapi_poll") {
			n++
		}
	}
	return n
}

// On a node with hardly a packet nothing of ours runs; with the first load it
// looks again, and counts what comes.
func TestNothingIsTracedOnAnIdleNode(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "pipeline: auto\nmetrics: off\n"})
	for _, part := range []string{"at first", "once more"} {
		rig.Until(t, "no poll is traced "+part, func() (bool, string) {
			n := traces(t, d.PID)
			return n == 0, fmt.Sprintf("%d tracing programs\n%s", n, d.Log())
		})
		before := d.Status().Counters.OverlayPackets
		l := rig.StartLoad(t, b, 4)
		rig.Until(t, "the load is seen "+part, func() (bool, string) {
			st := d.Status()
			return st.Counters.OverlayPackets > before && traces(t, d.PID) > 0, fmt.Sprintf("%+v", st.Counters)
		})
		l.Stop()
	}
	ends(t, d)
}

// With a load for which there is nothing to do polls are traced now and then only; with one that
// saturates a core they are again, at once.
func TestAnIdleLoadIsNotTracedAllTheTime(t *testing.T) {
	speed.Long(t)
	b := lab(t, bed.Options{})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "aggregate: off\nmetrics: off\n"})
	l := rig.StartSteady(t, b, 1)
	rig.Until(t, "the load is seen", func() (bool, string) {
		return d.Status().Counters.OverlayPackets > 0 && traces(t, d.PID) > 0, d.Log()
	})
	rig.Until(t, "no poll is traced", func() (bool, string) { return traces(t, d.PID) == 0, d.Log() })
	l.GoesOn()
	seen := d.Status().Counters.OverlayPackets
	rig.Until(t, "it is looked at again", func() (bool, string) {
		return d.Status().Counters.OverlayPackets > seen, d.Log()
	})
	rig.Until(t, "no poll is traced any more", func() (bool, string) { return traces(t, d.PID) == 0, d.Log() })
	l.Stop()
	flood := rig.StartFlood(t, b, 4)
	rig.Until(t, "the flood is seen", func() (bool, string) {
		return d.Status().Mechanism("pipeline").State == control.Active, fmt.Sprintf("%+v\n%s", d.Status().Mechanisms, d.Log())
	})
	flood.Stop()
	ends(t, d)
}
