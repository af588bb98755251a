// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var measured = Costs{NIC: 900, Tunnel: 1200, Pod: 600, Hop: 250}

func TestPlaceOnTwoCoresSendsTheTunnelStageAwayAndThePodStageBack(t *testing.T) {
	l := Place(TC, Machine{Cores: []int{0, 1}, NIC: []int{0}}, measured)
	if !slices.Equal(l.Tunnel, []int{1}) || !slices.Equal(l.Pod, []int{0}) {
		t.Fatalf("got tunnel %v, pod %v (%s)", l.Tunnel, l.Pod, l.Reason)
	}
}

// Predictions a few per cent apart say nothing; a pod stage that is most of the
// work does.
func TestPlaceSendsThePodStageAloneOnlyWhenThatIsClearlyBetter(t *testing.T) {
	for _, c := range []struct {
		cost   Costs
		tunnel []int
		pod    []int
	}{
		{Costs{NIC: 640, Tunnel: 600, Pod: 700, Hop: 100}, []int{1}, []int{0}},
		{Costs{NIC: 300, Tunnel: 300, Pod: 1200, Hop: 100}, nil, []int{1}},
	} {
		l := Place(TC, Machine{Cores: []int{0, 1}, NIC: []int{0}}, c.cost)
		if !slices.Equal(l.Tunnel, c.tunnel) || !slices.Equal(l.Pod, c.pod) {
			t.Errorf("%+v: got tunnel %v, pod %v (%s)", c.cost, l.Tunnel, l.Pod, l.Reason)
		}
	}
}

func TestPlaceLeavesOneCoreAlone(t *testing.T) {
	if l := Place(TC, Machine{Cores: []int{3}, NIC: []int{3}}, measured); !l.None() {
		t.Fatalf("got %+v", l)
	}
}

func TestPlaceBesidePriorityKeepsOffTheCoresThatPoll(t *testing.T) {
	for _, c := range []struct{ cores, nic, tunnel, pod []int }{
		{[]int{0, 1}, []int{0}, nil, []int{1}},
		{[]int{0, 1, 2, 3}, []int{1}, []int{0, 2}, []int{3}},
		{[]int{0, 1}, []int{0, 1}, nil, nil},
		{[]int{0}, []int{1}, nil, []int{0}},
	} {
		l := PlaceBesidePriority(Machine{Cores: c.cores, NIC: c.nic}, measured)
		if !slices.Equal(l.Tunnel, c.tunnel) || !slices.Equal(l.Pod, c.pod) || len(l.NIC) > 0 || l.Reason == "" {
			t.Errorf("cores %v, polling %v: %+v", c.cores, c.nic, l)
		}
	}
}

func TestPlaceTakesNoHopThatCostsMoreThanItGains(t *testing.T) {
	dear := Costs{NIC: 900, Tunnel: 100, Pod: 100, Hop: 400}
	if l := Place(TC, Machine{Cores: []int{0, 1}, NIC: []int{0}}, dear); !l.None() {
		t.Fatalf("got %+v", l)
	}
}

func TestNoCoreCarriesHopsOfTwoRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		n := 1 + rng.IntN(512)
		all := rng.Perm(512)
		cores := all[:n]
		slices.Sort(cores)
		var nic []int
		for _, c := range cores {
			if rng.IntN(3) == 0 {
				nic = append(nic, c)
			}
		}
		for _, c := range all[n:] { // polled where nothing may be sent
			if rng.IntN(64) == 0 {
				nic = append(nic, c)
			}
		}
		cost := Costs{NIC: 1 + rng.Float64()*3000, Tunnel: 1 + rng.Float64()*3000, Pod: 1 + rng.Float64()*3000, Hop: rng.Float64() * 500}
		for _, tier := range []Tier{TC, XDP} {
			l := Place(tier, Machine{Cores: cores, NIC: nic}, cost)
			for _, c := range l.Tunnel {
				if slices.Contains(l.Pod, c) {
					t.Fatalf("core %d takes both stages: %+v of cores %v, nic %v", c, l, cores, nic)
				}
			}
			for _, list := range [][]int{l.NIC, l.Tunnel, l.Pod} {
				if len(list) > MaxLanes {
					t.Fatalf("%d lanes of one stage", len(list))
				}
				if !slices.IsSorted(list) {
					t.Fatalf("cores %v are not in the order of an RPS mask", list)
				}
				for _, c := range list {
					if !slices.Contains(cores, c) {
						t.Fatalf("core %d was not configured: %+v", c, l)
					}
				}
			}
			if len(l.Tunnel) > 0 && len(l.Pod) == 0 {
				t.Fatalf("tunnel hops without pod hops: both stages would share a backlog: %+v", l)
			}
			if l.Reason == "" {
				t.Fatal("a placement without a reason")
			}
		}
	}
}

// clock makes windows of 100 ms.
type clock struct{ now time.Time }

func (c *clock) window(cores map[int]Core) Input {
	c.now = c.now.Add(100 * time.Millisecond)
	return Input{Now: c.now, Cores: cores, Configured: []int{0, 1}, Costs: measured, Layout: Place(TC, Machine{Cores: []int{0, 1}, NIC: []int{0}}, measured)}
}

func saturated() map[int]Core {
	return map[int]Core{0: {Saturated: 0.95, Movable: 0.6, Rate: 600e3, Overlay: 600e3}, 1: {}}
}

func TestActsWhenOverlayPacketsSaturateACore(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	for i := range 2 {
		if d := g.Step(c.window(saturated())); d.State != Standby {
			t.Fatalf("acts after %d windows", i+1)
		}
	}
	d := g.Step(c.window(saturated()))
	if d.State != Active || !strings.Contains(d.Reason, "core 0") {
		t.Fatalf("got %v: %s", d.State, d.Reason)
	}
}

func TestDoesNotActForWhatIsNoOverlay(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	for range 50 {
		d := g.Step(c.window(map[int]Core{0: {Saturated: 1, Movable: 0.01, Rate: 1e6, Overlay: 1e3}, 1: {}}))
		if d.State != Standby {
			t.Fatalf("acts: %s", d.Reason)
		}
	}
}

// The NIC's interrupts may be on a core that takes no work from others.
func TestActsForACoreThatIsNotConfigured(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	l := Place(TC, Machine{Cores: []int{1, 2}, NIC: []int{0}}, measured)
	if slices.Contains(l.Cores(), 0) || l.None() {
		t.Fatalf("got %+v", l)
	}
	for range 3 {
		in := c.window(map[int]Core{0: {Saturated: 0.95, Movable: 0.6, Rate: 600e3}, 1: {}, 2: {}})
		in.Configured, in.Layout = []int{1, 2}, l
		g.Step(in)
	}
	if g.Last().State != Active {
		t.Fatalf("got %v: %s", g.Last().State, g.Last().Reason)
	}
}

func TestPlaceUsesOneCoreBesideTheNICs(t *testing.T) {
	cost := Costs{NIC: 600, Tunnel: 600, Pod: 900, Hop: 100}
	if l := Place(TC, Machine{Cores: []int{1}, NIC: []int{0}}, cost); !slices.Equal(l.Pod, []int{1}) || l.Tunnel != nil {
		t.Fatalf("got %+v", l)
	}
}

// What has not been measured is not nothing.
func TestDoesNotParkOnCostsThatAreNotKnown(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	for range 100 {
		in := c.window(saturated())
		in.Costs = Costs{NIC: 100}
		g.Step(in)
	}
	if g.Last().State != Active {
		t.Fatalf("got %v: %s", g.Last().State, g.Last().Reason)
	}
}

func TestDoesNotTakeACoreThatTasksNeed(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	cores := saturated()
	cores[1] = Core{Tasks: 0.7}
	for range 50 {
		if d := g.Step(c.window(cores)); d.State != Standby || !strings.Contains(d.Reason, "core") {
			t.Fatalf("got %v: %s", d.State, d.Reason)
		}
	}
}

func TestGivesTheCoreBackWhenTasksComeForIt(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	for range 3 {
		g.Step(c.window(saturated()))
	}
	cores := saturated()
	cores[1] = Core{Tasks: 0.9}
	var d Decision
	for range 8 {
		d = g.Step(c.window(cores))
	}
	if d.State != Parked || !strings.Contains(d.Reason, "core 1") {
		t.Fatalf("got %v: %s", d.State, d.Reason)
	}
}

func TestParksAndThenStandsByWhenOneCoreIsEnough(t *testing.T) {
	g, c := New(Auto, DefaultLimits()), clock{}
	for range 3 {
		g.Step(c.window(saturated()))
	}
	quiet := map[int]Core{0: {Rate: 1000, Overlay: 1000}, 1: {}}
	seen := map[State]bool{}
	for range 700 {
		seen[g.Step(c.window(quiet)).State] = true
	}
	if !seen[Parked] || g.Last().State != Standby {
		t.Fatalf("states seen %v, last %v", seen, g.Last())
	}
}

func TestNeverFlapsWhateverTheLoad(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		g, c := New(Auto, DefaultLimits()), clock{}
		changes, last := 0, Standby
		const windows = 600 // one minute
		for range windows {
			rate := rng.Float64() * 1e6
			d := g.Step(c.window(map[int]Core{
				0: {Saturated: rng.Float64(), Movable: rng.Float64(), Rate: rate, Overlay: rate, Tasks: rng.Float64() * 0.2},
				1: {Tasks: rng.Float64()},
			}))
			if d.Reason == "" {
				t.Fatalf("seed %d: a decision without a reason", seed)
			}
			if d.State != last {
				changes, last = changes+1, d.State
			}
		}
		// Acting takes three windows in a row, giving up half a second.
		if limit := windows / 8; changes > limit {
			t.Fatalf("seed %d: %d changes in a minute, at most %d expected", seed, changes, limit)
		}
	}
}

func TestOffIsOffAndForcedIsForced(t *testing.T) {
	c := clock{}
	if d := New(Off, DefaultLimits()).Step(c.window(saturated())); d.State != Standby {
		t.Fatalf("off: %v", d)
	}
	if d := New(Forced, DefaultLimits()).Step(c.window(map[int]Core{0: {}, 1: {}})); d.State != Active {
		t.Fatalf("forced: %v", d)
	}
}

// With tier xdp there has to be a core for the NIC's stage: the reason says what is missing.
func TestTierXDPNeedsACoreThatPollsNoNIC(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		l := Place(XDP, Machine{Cores: upTo(n), NIC: upTo(n)}, Costs{})
		if !l.None() || !strings.Contains(l.Reason, "every core polls a NIC") {
			t.Errorf("%d cores: %+v", n, l)
		}
	}
	if l := Place(XDP, Machine{Cores: upTo(4), NIC: upTo(3)}, Costs{}); l.None() {
		t.Errorf("with one that is free: %s", l.Reason)
	}
}
