// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/wire"
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
	loss, err := wire.DropEvery(s.hosts[1].ns, wireDev, 100)
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
	if late != 0 && d.expired+d.unwatched == 0 {
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
	s := layForCosts(t)
	bytes := max(16<<20, uint64(10*l.every/l.burst*1400))
	// perLoss is what is sent again for each packet that is lost.
	perLoss := func(what string) float64 {
		t.Helper()
		var n uint64
		c := s.pays(t, what, bytes, func() func() {
			drops, err := wire.DropBursts(s.hosts[0].net, vethDev, l.every, l.burst)
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				if n, err = drops.End(); err != nil {
					t.Fatal(err)
				}
			}
		})
		t.Logf("%s: %d packets lost", what, n)
		if n == 0 {
			t.Fatal("nothing was lost")
		}
		return float64(c.again-c.needless) / float64(n)
	}
	whole := perLoss("whole")
	s.begin(t, splits(governor.XDP, 44, 1))
	was := s.count(t)
	// Whatever else keeps an emulated sender waiting only adds to it: the least of a few counts.
	cut := math.Inf(1)
	for i := 0; i < 4 && cut > whole+1; i++ {
		cut = min(cut, perLoss("split"))
	}
	d := s.since(t, was)
	s.end(t)
	if d.gaps == 0 || d.expired != 0 {
		t.Errorf("%d times what was lost was not waited for, %d times for as long as the limit", d.gaps, d.expired)
	}
	if cut > whole+1 {
		t.Errorf("%.1f packets were sent again for each that was lost, and %.1f where the flow was whole", cut, whole)
	}
}

// What the wire brings out of order costs a split flow what it costs one that is not: each
// hundredth packet overtakes those of two milliseconds.
func reorderingCostsTheSame(t *testing.T) {
	s := layForCosts(t)
	const bytes = 32 << 20
	reorder := func() func() {
		change := func(how func(nl *netlink.Handle, wire int) error) {
			err := in(s.hosts[0].ns, func(nl *netlink.Handle) error {
				l, err := nl.LinkByName(wireDev)
				if err != nil {
					return err
				}
				return how(nl, l.Attrs().Index)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		change(func(nl *netlink.Handle, wire int) error {
			return nl.QdiscReplace(netlink.NewNetem(
				netlink.QdiscAttrs{LinkIndex: wire, Handle: netlink.MakeHandle(2, 0), Parent: netlink.HANDLE_ROOT},
				netlink.NetemQdiscAttrs{Latency: 2000, Limit: 10_000, Gap: 100, ReorderProb: 100}))
		})
		return func() {
			change(func(nl *netlink.Handle, _ int) error { return queueAt(nl, wireDev) })
		}
	}
	whole := s.pays(t, "whole", bytes, reorder)
	s.begin(t, splits(governor.XDP, 44, 1))
	was := s.count(t)
	cut := s.pays(t, "split", bytes, reorder)
	d := s.since(t, was)
	s.end(t)
	if whole.late == 0 || cut.late == 0 {
		t.Fatalf("%d segments came out of order where the flow was whole, %d where it was split: nothing to see", whole.late, cut.late)
	}
	if d.expired != 0 {
		t.Errorf("packets waited %d times for as long as the limit", d.expired)
	}
	if packets := bytes / 1400; cut.again-whole.again > packets/200 {
		t.Errorf("%d of some %d packets were sent again, and %d where the flow was whole", cut.again, packets, whole.again)
	}
}

// layForCosts lays an overlay whose pods send packets as they are on the wire.
func layForCosts(t *testing.T) *splitting {
	t.Helper()
	s := lay(t, bridged)
	residue.Check(t, s.all())
	if err := s.hosts[0].pod.Do(func() error { return segmentEarly(podDev) }); err != nil {
		t.Fatal(err)
	}
	return s
}

// paid is what a connection had to pay: packets sent again, of these what the receiver had
// already (an emulated sender's timers are early), and segments that came out of order.
type paid struct{ again, needless, late int }

// pays sends so many bytes while the wire does something that disturb begins and its result
// ends.
func (s *splitting) pays(t *testing.T, what string, bytes uint64, disturb func() func()) paid {
	t.Helper()
	from, to := s.hosts[0].pod, s.hosts[1].pod
	p := s.pourAtMost(t, v4, underWay)
	p.reach(t, 1<<20)
	was, late := netstat(t, from), netstat(t, to)
	end, begun := disturb(), time.Now()
	p.reach(t, bytes)
	took := time.Since(begun)
	end()
	is := netstat(t, from)
	c := paid{
		again: is["RetransSegs"] - was["RetransSegs"], needless: is["TCPDSACKRecvSegs"] - was["TCPDSACKRecvSegs"],
		late: netstat(t, to)["TCPOFOQueue"] - late["TCPOFOQueue"],
	}
	t.Logf("%s: %.0f Mbit/s, %d sent again, %d of them needlessly, %d out of order, longest pause %v",
		what, float64(bytes)*8e-6/took.Seconds(), c.again, c.needless, c.late, time.Duration(p.pause.Load()).Round(time.Millisecond))
	p.finish(t)
	return c
}

// The smaller the micro-flows, the more packets come behind others (MFLOW, Fig. 7).
func smallerComeLater(t *testing.T) {
	held := map[int]uint64{}
	for _, batch := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512} {
		t.Run(fmt.Sprintf("%d frames", batch), func(t *testing.T) {
			s := layForCosts(t)
			s.begin(t, splits(governor.XDP, batch, 2))
			p := s.pourAtMost(t, v4, underWay)
			was := s.count(t)
			s.pass(t, was, enough, 1)
			d := s.since(t, was)
			d.inOrder(t)
			held[batch] = d.held * 1000 / (d.held + d.passed)
			t.Logf("%d of 1000 came behind others", held[batch])
			p.finish(t)
			s.end(t)
		})
	}
	if held[512] >= held[8] {
		t.Errorf("%d of 1000 came late with 512 frames, and %d with 8", held[512], held[8])
	}
}
