// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/residue"
)

// These take long, or need more than two cores: they run with -order-runs.

// Rows of datagrams, each of so many for each run.
const datagrams = 50_000

var datagramRows = []row{
	{8, 2, 1, bridged, governor.XDP}, {8, 4, 1, routed, governor.TC},
	{44, 2, 1, routed, governor.XDP}, {44, 4, 1, apart, governor.XDP},
	{128, 4, 1, bridged, governor.XDP}, {128, 2, 1, apart, governor.TC},
	{256, 2, 1, apart, governor.XDP}, {256, 4, 1, routed, governor.XDP},
	{44, 2, 1, bridged, governor.TC}, {128, 2, 1, bridged, governor.XDP},
}

// Datagrams come in order, the second half of them beside losses in the branches.
func manyDatagramsComeInOrder(t *testing.T) {
	for _, r := range datagramRows {
		t.Run(r.String(), func(t *testing.T) { r.runDatagrams(t, uint64(*runsOfAll)*datagrams) })
	}
}

func (r row) runDatagrams(t *testing.T, n uint64) {
	s := lay(t, r.top)
	residue.Check(t, s.all())
	s.begin(t, splits(r.tier, r.batch, r.lanes))
	u := s.send(t, v4, 64, time.Millisecond)
	was := s.count(t)
	until(t, "datagrams wait for others", func() bool { return s.d.Status().Counters.MergeHeld > was.daemon.MergeHeld })
	was = s.count(t)
	u.come(t, n/2)
	loss, err := traffic.DropEvery(s.hosts[1].ns, wireDev, 100)
	if err != nil {
		t.Fatal(err)
	}
	u.come(t, n/2)
	lost, err := loss.End()
	if err != nil {
		t.Fatal(err)
	}
	d := s.since(t, was)
	u.reach(t, 100)
	s.end(t)
	late := u.late.Load()
	u.finishLate(t, lost+d.lost)
	t.Logf("%d came late, %d were lost", late, lost)
	if late != 0 && d.expired+d.unordered == 0 {
		t.Errorf("%d datagrams came late", late)
	}
	// Large micro-flows rarely overtake each other where the core that splits them is the
	// slowest, as on an emulated machine.
	if part := map[bool]uint64{true: 20, false: 100}[r.batch <= 44]; d.held*part < n {
		t.Errorf("%d of %d packets waited: too few to show anything", d.held, n)
	}
}

// come is reach for as many as take longer than a test is patient.
func (s *stream) come(t *testing.T, n uint64) {
	t.Helper()
	for ; n > 0; n -= min(n, 1000) {
		s.reach(t, min(n, 1000))
	}
}

// Losses on the wire cost a split flow what they cost one that is not.
func lossesCostTheSame(t *testing.T) {
	for _, l := range []loss{{5000, 1}, {500, 1}, {2000, 20}} {
		t.Run(fmt.Sprintf("%d of %d", l.burst, l.every), l.costsTheSame)
	}
}

// loss is packets in a row that are lost, of so many.
type loss struct{ every, burst int }

func (l loss) costsTheSame(t *testing.T) {
	s := lay(t, bridged)
	residue.Check(t, s.all())
	a := &s.hosts[0]
	if err := a.pod.Do(func() error { return segmentEarly(podDev) }); err != nil {
		t.Fatal(err)
	}
	bytes := max(16<<20, uint64(10*l.every/l.burst*1400))
	// cost is what is sent again for each packet that is lost.
	cost := func(what string) float64 {
		t.Helper()
		p := s.pourAtMost(t, v4, underWay)
		p.reach(t, 1<<20)
		was, late := netstat(t, a.pod), netstat(t, s.hosts[1].pod)
		drops, err := traffic.DropBursts(a.net, vethDev, l.every, l.burst)
		if err != nil {
			t.Fatal(err)
		}
		p.reach(t, bytes)
		n, err := drops.End()
		if err != nil {
			t.Fatal(err)
		}
		is := netstat(t, a.pod)
		// An emulated sender's timers have it send some again that only came late: of those
		// it is told (DSACK).
		again, needless := is["RetransSegs"]-was["RetransSegs"], is["TCPDSACKRecvSegs"]-was["TCPDSACKRecvSegs"]
		t.Logf("%s: %d packets lost, %d sent again, %d of them needlessly, %d out of order, longest pause %v", what, n, again, needless,
			netstat(t, s.hosts[1].pod)["TCPOFOQueue"]-late["TCPOFOQueue"], time.Duration(p.pause.Load()).Round(time.Millisecond))
		p.finish(t)
		if n == 0 {
			t.Fatal("nothing was lost")
		}
		return float64(again-needless) / float64(n)
	}
	whole := cost("whole")
	s.begin(t, splits(governor.XDP, 44, 1))
	was := s.count(t)
	// Whatever else keeps an emulated sender waiting only adds to it: the least of a few counts.
	cut := math.Inf(1)
	for i := 0; i < 4 && cut > whole+1; i++ {
		cut = min(cut, cost("split"))
	}
	d := s.since(t, was)
	s.end(t)
	if !byTime() && (d.gaps == 0 || d.expired != 0) {
		t.Errorf("%d times what was lost was not waited for, %d times for as long as the limit", d.gaps, d.expired)
	}
	if cut > whole+1 {
		t.Errorf("%.1f packets were sent again for each that was lost, and %.1f where the flow was whole", cut, whole)
	}
}
