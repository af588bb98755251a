// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// floodFor is longer than it takes to see anything, so that figures can be read.
var floodFor = flag.Duration("e2e.flood", 0, "how long a rule that is over budget meets more than a core can take, at least")

var floodGap = flag.Duration("e2e.flood-gap", 0, "time between two packets of it")

// bystander is a thread of ordinary priority that wants all of a core, and counts how
// often it has had a bit of it.
type bystander struct{ turns, end atomic.Int64 }

func (b *bystander) start(t *testing.T, core int) {
	t.Helper()
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(core)
		err := unix.SchedSetaffinity(0, &set)
		ready <- err
		for err == nil && b.end.Load() == 0 {
			var spent unix.Timespec
			err = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent)
			b.turns.Store(spent.Nano() / 1e6)
		}
	}()
	t.Cleanup(func() { b.end.Store(1); <-done })
	must(t, <-ready)
}

// A rule that makes all that a core can take latency traffic does not take the core:
// bulk and programs get on, and status says which rule it is.
func TestARuleOverBudgetStarvesNothing(t *testing.T) {
	speed.Long(t)
	rig.NeedCores(t, 2)
	b := lab(t, bed.Options{})
	place := b.PlaceCores()
	config := fmt.Sprintf("cores: %d\npipeline: off\nmetrics: off\npriority: {bulk-share: 30%%}\n", place.NIC[0])
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
	for _, words := range [][]string{{"few", "port", "1"}, {"flood", "proto", "udp", "port", fmt.Sprint(traffic.BasePort + 100)}} {
		if r := d.Verb(append([]string{"prio", "add"}, words...)...); r.Code != 0 {
			t.Fatal(r)
		}
	}
	// Above saturation the sender's queue hands its packets on out of order.
	must(t, b.StopFlowControl())
	t.Cleanup(func() { must(t, b.Reset()) })
	l := rig.StartLoad(t, b, 4)
	flood, err := traffic.StartLive(b, traffic.LiveConfig{
		Flows: []traffic.Flow{traffic.NewFlow(b, 100, 0, true, false, 0)}, Size: datagram.MinSize, Core: place.Gen[0], Gap: *floodGap,
	})
	must(t, err)
	var by bystander
	by.start(t, place.NIC[0])
	rig.Until(t, "status says that the rule is over budget", func() (bool, string) {
		r := d.Status().Mechanism("priority").Reason
		return strings.Contains(r, `rule "flood" is over budget`), r
	})
	was, turns, begun := d.Status().Counters, by.turns.Load(), time.Now()
	rig.Until(t, "bulk and programs get on", func() (bool, string) {
		c := d.Status().Counters
		return c.BulkLane > was.BulkLane+1000 && by.turns.Load() > turns+200, fmt.Sprintf("%+v, %d ms for others", c, by.turns.Load()-turns)
	})
	time.Sleep(*floodFor - time.Since(begun)) // the flood's length is the scene, not a wait
	now, took := d.Status(), time.Since(begun)
	t.Logf("in %.1f s: %d latency frames, %d more beyond their share, %d frames by the bulk lane, %d refused; %.0f %% of the core for a program; %.1f %% of the other flows' datagrams came; status: %s",
		took.Seconds(), now.Counters.LatencyPackets-now.Counters.LatencyExcess-was.LatencyPackets+was.LatencyExcess, now.Counters.LatencyExcess-was.LatencyExcess,
		now.Counters.BulkLane-was.BulkLane, now.Counters.Refused-was.Refused, float64(by.turns.Load()-turns)/10/took.Seconds(), 100*l.Share(), now.Mechanism("priority").Reason)
	l.GoesOn()
	_, err = flood.Stop()
	must(t, err)
	// What is in place anew is not blamed for what was before.
	for _, words := range [][]string{{"del", "flood"}, {"del", "few"}, {"add", "few", "port", "1"}} {
		if r := d.Verb(append([]string{"prio"}, words...)...); r.Code != 0 {
			t.Fatal(r)
		}
	}
	bulk := d.Status().Counters.BulkPackets
	rig.Until(t, "priority is in place anew", func() (bool, string) {
		c := d.Status().Counters
		return c.BulkPackets > bulk+60000, fmt.Sprintf("%+v", c)
	})
	if r := d.Status().Mechanism("priority").Reason; strings.Contains(r, "over budget") {
		t.Error(r)
	}
	if v := l.Stop(); v.Reordered != 0 || v.Duplicated != 0 {
		t.Errorf("%+v", v)
	}
	ends(t, d)
}
