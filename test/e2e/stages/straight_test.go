// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
)

func TestStraightTellsInterleavedPolls(t *testing.T) {
	eth := func(n int) Poll { return Poll{Role: Wire, Work: n} }
	br := func(n int) Poll { return Poll{Role: Tunnel, Work: n} }
	veth := func(n int) Poll { return Poll{Role: Backlog, Work: n, Pod: n} }
	elsewhere := func(p Poll) Poll { p.CPU = 1; return p }
	for _, tc := range []struct {
		name          string
		polls         []Poll
		straight, all int
	}{
		{"straight", []Poll{eth(8), br(8), veth(8), eth(64), br(64), veth(64), eth(1)}, 2, 2},
		{"interleaved", []Poll{eth(64), br(64), eth(64), veth(64), br(64), eth(64), veth(64), br(64), eth(64)}, 0, 3},
		{"the last of a burst, behind the one before", []Poll{eth(64), veth(64), br(64), veth(64), eth(64)}, 0, 1},
		{"in parts", []Poll{eth(64), br(40), br(24), veth(50), veth(14), eth(8)}, 1, 1},
		{"parts that mix", []Poll{eth(64), br(40), veth(40), br(24), veth(24), eth(8)}, 0, 1},
		{"with others' packets", []Poll{eth(8), br(20), veth(20), eth(8)}, 1, 1},
		{"behind others' packets", []Poll{eth(8), br(64), veth(64), eth(8)}, 0, 1},
		{"not to the pod", []Poll{eth(8), br(8), eth(8)}, 0, 1},
		{"some lost on the way", []Poll{eth(8), br(8), veth(7), eth(8)}, 0, 1},
		{"on another core", []Poll{eth(8), elsewhere(br(8)), elsewhere(veth(8)), eth(8)}, 0, 1},
		{"cut off", []Poll{br(8), veth(8), eth(8), br(8)}, 0, 0},
	} {
		wire := func(p Poll) bool { return p.Taken(false) }
		if straight, all := Straight(tc.polls, wire, wire); straight != tc.straight || all != tc.all {
			t.Errorf("%s: %d of %d, want %d of %d", tc.name, straight, all, tc.straight, tc.all)
		}
	}
}

// What the core takes of the latency class is in the pod before it takes more, where
// stock polls take turns. The same traffic in both: bursts of one flow and, beside them, a
// little of another. Once the bursts are the latency class, and once the other is.
func TestPriorityIsPolledStraightThrough(t *testing.T) {
	const (
		polls, shown = 3000, 24
		bursts       = 7 // the flow's number
		// The plain overlay has a straight batch now and then, at the end of a burst.
		most, least = 0.5, 0.9
		enough      = 20
	)
	b, tr := watch(t, bed.Options{NIC: bed.Softirq})
	l := rig.StartLoad(t, b, 1)
	stop := floodFlow(t, b, bursts)
	taken := func(p Poll) bool { return p.Taken(false) }
	// Where others have the cores, bursts come in pieces: then once more.
	var plain []Poll
	var straight, all int
	for try := 0; try == 0 || try < 10 && float64(straight) > most*float64(all); try++ {
		plain = record(t, tr, polls)
		straight, all = Straight(plain, taken, taken)
		t.Logf("overlay: %d of %d batches straight through", straight, all)
	}
	stop()
	if all < enough || float64(straight) > most*float64(all) {
		t.Errorf("of %d batches of the plain overlay, %d went straight through: nothing to compare with", all, straight)
	}
	for _, tc := range []struct {
		name string
		flow int
	}{{"latency in bursts", bursts}, {"latency beside bursts", 0}} {
		t.Run(tc.name, func(t *testing.T) {
			// With its usual share of the core, a class that floods would be bulk, too.
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: fmt.Sprintf("pipeline: off\nmetrics: off\n"+
				"priority: {threads: off, bulk-share: 1%%, rules: [{name: it, proto: udp, port: %d}]}\n", traffic.BasePort+tc.flow)})
			must(t, tr.WatchLanes(d.PID))
			stop := floodFlow(t, b, bursts)
			rig.Until(t, "frames of both classes are seen", func() (bool, string) {
				c := d.Status().Counters
				return c.LatencyPackets > 1000 && c.BulkLane > 1000, fmt.Sprintf("%+v\n%s", c, d.Log())
			})
			// Where others have the cores, the thin flow may send nothing for so many polls: then once more.
			var got []Poll
			var straight, all int
			for try := 0; try == 0 || try < 10 && all < enough; try++ {
				got = record(t, tr, polls)
				straight, all = Straight(got, func(p Poll) bool { return p.Taken(true) }, func(p Poll) bool { return p.Role == LatencyLane })
			}
			stop()
			t.Logf("order of polls, softirq mode, %s\n%s%d of %d batches of the latency class straight through",
				tc.name, Order(shown, []string{"overlay", "priority"}, tail(plain), around(got)), straight, all)
			if all < enough || float64(straight) < least*float64(all) {
				t.Errorf("of %d batches of the latency class, %d went straight through; wanted: %g of them, and %d or more", all, straight, least, enough)
			}
			for _, p := range got {
				if p.ForTunnel() {
					t.Errorf("%s: something else sends packets of the tunnel to a backlog", p)
					break
				}
			}
			end(t, d)
		})
	}
	l.Stop()
}

// around leaves out what is far ahead of latency batches in the middle of a record.
func around(polls []Poll) []Poll {
	late := tail(polls)
	for i, p := range late {
		if p.Role == LatencyLane {
			return late[max(i-4, 0):]
		}
	}
	return late
}
