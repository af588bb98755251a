// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A node with many cores, some of which poll a NIC.
func polling(t time.Time, cores int, nic map[int]Core, others map[int]Core) Input {
	in := Input{Now: t, Cores: map[int]Core{}, Configured: upTo(cores), Costs: measured}
	for _, set := range []map[int]Core{others, nic} {
		for cpu, c := range set {
			in.Cores[cpu] = c
		}
	}
	for _, cpu := range in.Configured {
		if _, is := in.Cores[cpu]; !is {
			in.Cores[cpu] = Core{}
		}
	}
	return in
}

var (
	full = Core{Saturated: 0.95, Movable: 0.6, Rate: 400e3, Overlay: 400e3, Load: 1}
	some = Core{Saturated: 0.02, Movable: 0.6, Rate: 100e3, Overlay: 100e3, Load: 0.3}
	busy = Core{Tasks: 0.9, Load: 0.9}
)

func each(c Core, cores ...int) map[int]Core {
	m := map[int]Core{}
	for _, cpu := range cores {
		m[cpu] = c
	}
	return m
}

func merged(sets ...map[int]Core) map[int]Core {
	all := map[int]Core{}
	for _, s := range sets {
		for cpu, c := range s {
			all[cpu] = c
		}
	}
	return all
}

// driven is a governor that places by itself what it decides on.
type driven struct {
	*Governor
	now      time.Time
	inPlace  Layout
	topology Topology
	costs    Costs
	refit    Refit
	was      map[int]Core // the cores when it was placed
	placed   int
}

func drive() *driven {
	return &driven{Governor: New(Auto, DefaultLimits()), now: time.Unix(1000, 0), costs: measured}
}

func (d *driven) window(cores int, nic, others map[int]Core) Decision {
	d.now = d.now.Add(100 * time.Millisecond)
	in := polling(d.now, cores, nic, others)
	in.Costs = d.costs
	short := d.limits.Short(in, false)
	would := func(short []int) Layout {
		if len(short) == 0 {
			short = nil
		}
		return Place(TC, in.Machine(short, d.limits, d.topology), in.Costs)
	}
	if in.Layout = d.inPlace; in.Layout.None() {
		in.Layout = would(short)
	}
	dec := d.Step(in)
	if dec.State == Standby {
		d.inPlace = Layout{}
		return dec
	}
	if dec.State == Active && d.inPlace.None() {
		d.inPlace, d.was = in.Layout, in.Cores
		d.placed++
	}
	if in.Layout = d.inPlace; !in.Layout.None() && d.refit.Step(in, InPlace{in.Layout, d.was}, dec, would(dec.Short)) != "" {
		d.inPlace = Layout{}
	}
	return dec
}

func (d *driven) windows(n, cores int, nic, others map[int]Core) (dec Decision) {
	for range n {
		dec = d.window(cores, nic, others)
	}
	return dec
}

func TestManyEvenQueuesAreAllPolled(t *testing.T) {
	for _, queues := range []int{1, 2, 8, 16, 64} {
		in := polling(time.Time{}, 64, each(some, upTo(queues)...), nil)
		if got := in.Pollers(); !slices.Equal(got, upTo(queues)) {
			t.Errorf("of %d even queues, %v poll", queues, got)
		}
	}
}

// One application on one of 64 cores is no reason to leave the other 62 idle.
func TestOneBusyCoreIsNoVeto(t *testing.T) {
	for _, n := range []int{4, 8, 64, 256} {
		d := drive()
		dec := d.windows(10, n, each(full, 0), each(busy, 1))
		if dec.State != Active || slices.Contains(d.inPlace.Cores(), 1) {
			t.Errorf("%d cores: %s (%s), lanes %v", n, dec.State, dec.Reason, d.inPlace.Cores())
		}
	}
}

func TestHalfOfTheCoresBusyLeavesTheOthers(t *testing.T) {
	odd := []int{1, 3, 5, 7}
	d := drive()
	dec := d.windows(10, 8, each(full, 0), each(Core{Tasks: 0.5, Load: 0.5}, odd...))
	if dec.State != Active || slices.ContainsFunc(d.inPlace.Cores(), func(c int) bool { return slices.Contains(odd, c) }) {
		t.Errorf("%s (%s), lanes %v", dec.State, dec.Reason, d.inPlace.Cores())
	}
}

func TestLanesAreAsManyAsTheSaturatedCoresNeed(t *testing.T) {
	for _, c := range []struct{ cores, short, least, most int }{
		{4, 1, 2, 3}, {8, 1, 2, 4}, {64, 1, 2, 4}, {64, 4, 8, 16}, {256, 16, 32, 64},
	} {
		d := drive()
		dec := d.windows(10, c.cores, each(full, upTo(c.short)...), nil)
		if n := len(d.inPlace.Cores()); dec.State != Active || n < c.least || n > c.most {
			t.Errorf("%d cores, %d saturated: %s, %d lanes", c.cores, c.short, dec.Reason, n)
		}
		if !slices.Equal(dec.Helped, upTo(c.short)) {
			t.Errorf("%d cores: flows of %v are steered", c.cores, dec.Helped)
		}
	}
}

// A flow on a core with time to spare pays no hop for the sake of another core's.
func TestOnlySaturatedCoresAreHelped(t *testing.T) {
	d := drive()
	nic := merged(each(full, 2), each(some, 0, 1, 3))
	dec := d.windows(20, 16, nic, nil)
	if dec.State != Active || !slices.Equal(dec.Helped, []int{2}) {
		t.Fatalf("%s (%s), helped %v", dec.State, dec.Reason, dec.Helped)
	}
	// Another one comes to need it, and the first one does no more.
	nic = merged(each(full, 3), each(some, 0, 1, 2))
	if dec = d.windows(10, 16, nic, nil); !slices.Equal(dec.Short, []int{2, 3}) {
		t.Errorf("%v want help", dec.Short)
	}
	if dec = d.windows(40, 16, nic, nil); !slices.Equal(dec.Helped, []int{3}) {
		t.Errorf("helped %v, of which core 2 has long had time to spare", dec.Helped)
	}
}

// All queues polled on all cores, an elephant on one: the others take its work.
func TestCoresThatPollWithTimeToSpareTakeWork(t *testing.T) {
	d := drive()
	light := Core{Saturated: 0, Movable: 0.6, Rate: 60e3, Overlay: 60e3, Load: 0.15}
	dec := d.windows(10, 8, merged(each(light, 0, 1, 2, 3, 4, 6, 7), each(full, 5)), nil)
	if dec.State != Active || slices.Contains(d.inPlace.Cores(), 5) || len(d.inPlace.Cores()) < 2 {
		t.Errorf("%s (%s), lanes %v", dec.State, dec.Reason, d.inPlace.Cores())
	}
}

func TestCoresThatAreAllSaturatedDoNotHelpEachOther(t *testing.T) {
	for _, n := range []int{2, 4, 16} {
		d := drive()
		if dec := d.windows(50, n, each(full, upTo(n)...), nil); dec.State != Standby || dec.Reason == "" {
			t.Errorf("%d cores: %s (%s)", n, dec.State, dec.Reason)
		}
	}
}

func TestACoreWithLittleRoomIsNoHelp(t *testing.T) {
	d := drive()
	if dec := d.windows(50, 2, each(full, 0), each(Core{Tasks: 0.1, Load: 0.78}, 1)); dec.State != Standby || dec.Reason == "" {
		t.Errorf("%s (%s), lanes %v", dec.State, dec.Reason, d.inPlace.Cores())
	}
}

// Stages that cost the same are two all the same: the fuller one's lanes limit what is gained.
func TestLanesOfEqualStagesAreBothLookedAt(t *testing.T) {
	m := Machine{Cores: upTo(3), NIC: []int{0}, Short: []int{0}, Load: map[int]float64{1: 0.7}}
	for _, l := range []Layout{{Tunnel: []int{1}, Pod: []int{2}}, {Tunnel: []int{2}, Pod: []int{1}}} {
		if got := m.predict(l, measured, 900, 1000, 1000); got.Gain > 0.3*2700/1000*1.001 {
			t.Errorf("lanes %v and %v, of which one has 0.3 of a core: %.2f times", l.Tunnel, l.Pod, got.Gain)
		}
	}
}

// What a core receives that is no overlay takes its time as well.
func TestSoftirqTimeIsLoad(t *testing.T) {
	d := drive()
	dec := d.windows(10, 16, each(full, 0), each(Core{Load: 0.7}, 1, 2, 3, 4))
	if lanes := d.inPlace.Cores(); dec.State != Active || slices.Min(lanes) < 5 {
		t.Errorf("%s (%s), lanes %v", dec.State, dec.Reason, lanes)
	}
}

func TestLanesAreNear(t *testing.T) {
	two := Topology{Node: map[int]int{}, Cache: map[int]int{}, Siblings: map[int][]int{}}
	for c := range 16 { // two nodes of 8, in each two caches of 4; core c and c+8 are threads of one core
		two.Siblings[c] = []int{(c + 8) % 16}
		two.Node[c], two.Cache[c] = c%8/4, c%8/2
	}
	for name, c := range map[string]struct {
		short  int
		others map[int]Core
		want   []int
	}{
		"the same cache first, a second thread of a lane last": {short: 0, want: []int{1, 2, 3, 9}},
		"the other node":                           {short: 5, want: []int{4, 6, 7, 12}},
		"no sibling of a busy core":                {short: 0, others: each(busy, 9), want: []int{2, 3, 10, 11}},
		"another node only where this one is full": {short: 0, others: each(busy, 1, 2, 9, 10), want: []int{3, 4, 5, 11}},
	} {
		t.Run(name, func(t *testing.T) {
			in := polling(time.Time{}, 16, each(full, c.short), c.others)
			l := Place(TC, in.Machine([]int{c.short}, DefaultLimits(), two), measured)
			got := l.Cores()
			for _, core := range got {
				if len(got) != len(c.want) || !slices.Contains(c.want, core) {
					t.Fatalf("lanes %v, want %v", got, c.want)
				}
			}
		})
	}
}

// TCP's packets are few behind GRO: with a placement that moves the NIC's stage as well they are helped.
func TestTCPIsHelpedByWhatMovesTheNICsStage(t *testing.T) {
	tcp := full
	tcp.Movable = 0.25
	in := polling(time.Time{}, 4, each(tcp, 0), nil)
	for tier, want := range map[Tier]State{TC: Standby, XDP: Active} {
		g := New(Auto, DefaultLimits())
		in.Layout = Place(tier, Machine{Cores: upTo(4), NIC: []int{0}}, measured)
		for range 5 {
			in.Now = in.Now.Add(100 * time.Millisecond)
			g.Step(in)
		}
		if g.Last().State != want {
			t.Errorf("tier %s: %+v", tier, g.Last())
		}
	}
	// What is no overlay is not helped by it either.
	other := Core{Saturated: 1, Movable: 0.02, Rate: 1e6, Overlay: 1e3}
	if short := DefaultLimits().Short(polling(time.Time{}, 4, each(other, 0), nil), true); len(short) > 0 {
		t.Errorf("helped: %v", short)
	}
}

// Flows leave a lane whose core tasks come for; the others stay.
func TestABusyLaneIsLeftAndTheOthersStay(t *testing.T) {
	d := drive()
	d.windows(10, 4, each(full, 0), nil)
	if len(d.inPlace.Tunnel) < 2 && len(d.inPlace.Pod) < 2 {
		t.Fatalf("no stage has two lanes: %+v", d.inPlace)
	}
	lane := d.inPlace.Tunnel[0]
	if len(d.inPlace.Tunnel) < 2 {
		lane = d.inPlace.Pod[0]
	}
	dec := d.windows(10, 4, each(full, 0), each(busy, lane))
	if dec.State != Active || !slices.Equal(dec.Avoid, []int{lane}) {
		t.Fatalf("%s (%s), avoided %v", dec.State, dec.Reason, dec.Avoid)
	}
	if dec = d.windows(10, 4, each(full, 0), nil); len(dec.Avoid) > 0 {
		t.Errorf("avoided %v, which tasks need no more", dec.Avoid)
	}
}

// Where there are other cores, lanes move there.
func TestLanesMoveToCoresThatAreIdle(t *testing.T) {
	d := drive()
	d.windows(10, 16, each(full, 0), nil)
	was := d.inPlace.Cores()
	dec := d.windows(60, 16, each(full, 0), each(busy, was...))
	if now := d.inPlace.Cores(); dec.State != Active || d.placed != 2 || slices.ContainsFunc(now, func(c int) bool { return slices.Contains(was, c) }) {
		t.Errorf("%s (%s), lanes %v, then %v, placed %d times", dec.State, dec.Reason, was, now, d.placed)
	}
}

func TestMoreLanesAreMadeForMoreSaturatedCores(t *testing.T) {
	d := drive()
	d.windows(10, 64, each(full, 0), nil)
	few := len(d.inPlace.Cores())
	dec := d.windows(60, 64, each(full, 0, 1, 2, 3, 4, 5), nil)
	if n := len(d.inPlace.Cores()); n < 3*few || d.placed != 2 || len(dec.Helped) != 6 {
		t.Errorf("%d lanes, then %d, placed %d times, helped %v", few, n, d.placed, dec.Helped)
	}
}

// A program that moves interrupts to and fro moves no lane with them.
func TestLanesFollowPollsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		polls func(window int) int
		want  int // placements
	}{
		"where it was":       {func(int) int { return 0 }, 1},
		"moved onto a lane":  {func(int) int { return 1 }, 2},
		"to and fro":         {func(w int) int { return w / 10 % 2 }, 1},
		"moved on every 8 s": {func(w int) int { return w / 80 % 2 }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive()
			d.windows(10, 2, each(full, 0), nil)
			for w := range 600 {
				d.window(2, each(full, c.polls(w)), nil)
			}
			if d.placed > c.want || d.placed < min(c.want, 2) {
				t.Errorf("placed %d times, want %d", d.placed, c.want)
			}
		})
	}
}

// A lane that polls much itself since is left once it is full: not where it has room left, nor for little more.
func TestALaneThatPollsMuchItselfIsLeft(t *testing.T) {
	for name, c := range map[string]struct {
		polls Core
		want  int // placements
	}{
		"much, and is full":     {Core{Rate: 200e3, Overlay: 200e3, Load: 1}, 2},
		"much, and has room":    {Core{Rate: 200e3, Overlay: 200e3, Load: 0.75}, 1},
		"not much, and is full": {Core{Rate: 80e3, Overlay: 80e3, Load: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			d := drive()
			d.windows(10, 16, each(full, 0), nil)
			lane := d.inPlace.Tunnel[0]
			d.windows(100, 16, merged(each(full, 0), each(c.polls, lane)), nil)
			if d.placed != c.want || c.want > 1 && slices.Contains(d.inPlace.Cores(), lane) {
				t.Errorf("placed %d times, want %d, lanes %v, and core %d polls", d.placed, c.want, d.inPlace.Cores(), lane)
			}
		})
	}
}

// What a lane takes of others may saturate it: it asks for no help, and counts for no more lanes.
func TestALaneIsNotShort(t *testing.T) {
	d := drive()
	d.windows(10, 16, merged(each(full, 0), each(some, 1, 2, 3, 4)), nil)
	lanes := d.inPlace.Cores()
	of := some
	of.Saturated, of.Load = 0.9, 1
	if dec := d.windows(400, 16, merged(each(full, 0), each(of, lanes...)), nil); !slices.Equal(dec.Short, []int{0}) || d.placed != 1 {
		t.Errorf("placed %d times, short %v, lanes %v", d.placed, dec.Short, lanes)
	}
}

// A lane's room is what its tasks and its own polls leave, whatever it takes of others.
func TestWhatALanePollsItselfTakesItsRoom(t *testing.T) {
	in := polling(time.Time{}, 4, merged(each(full, 0), each(some, 1)), each(Core{Load: 1}, 2))
	in.Layout = Layout{Tunnel: []int{1}, Pod: []int{2}}
	m := in.Machine([]int{0}, DefaultLimits(), Topology{})
	if own := in.path(some); own < 0.2 || m.room(1) != 1-own || m.room(2) != 1 || m.room(3) != 1 {
		t.Errorf("its own polls take %.2f: room %.2f; of the one that polls nothing %.2f", own, m.room(1), m.room(2))
	}
}

func TestAPlacementSaysWhyThereIsNone(t *testing.T) {
	in := polling(time.Time{}, 4, each(full, 0), each(busy, 1, 2, 3))
	l := Place(TC, in.Machine([]int{0}, DefaultLimits(), Topology{}), measured)
	if !l.None() || !strings.Contains(l.Reason, "tasks") {
		t.Errorf("%+v", l)
	}
}
