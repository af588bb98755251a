// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// node is a governor and its judge, as the daemon runs them, on a bench of which a sensor tells.
type node struct {
	*bench
	gov    *Governor
	judge  *Judge
	sensor func(*Core)
	clock  func(time.Time) time.Time
	acts   bool // steered until the next window
	tries  bool
	reason string
}

func newNode(seed uint64) *node {
	return &node{bench: newBench(seed), gov: New(Auto, DefaultLimits()), judge: NewJudge(forGoodput, seed),
		sensor: func(*Core) {}, clock: func(t time.Time) time.Time { return t }}
}

func (n *node) step() {
	w := n.next(n.judge.Trying(), n.acts)
	c := Core{Movable: 0.6, Rate: float64(w.Frames) / w.Elapsed.Seconds()}
	c.Overlay = c.Rate
	if w.Saturated {
		c.Saturated = 1
	}
	n.sensor(&c)
	in := Input{Now: n.clock(n.now), Cores: map[int]Core{0: c, 1: {}}, Configured: []int{0, 1}}
	in.Layout = Place(TC, Machine{Cores: in.Configured, NIC: []int{0}}, Costs{})
	s := Situation{Layout: "a", Rate: c.Rate}
	if why, yes := n.judge.Bars(in.Now, s); yes {
		in.Layout = Layout{Reason: why}
	}
	dec := n.gov.Step(in)
	n.acts, n.reason, n.tries = false, dec.Reason, false
	if dec.State != Active {
		n.judge.Leave()
		return
	}
	n.acts, n.reason = n.judge.Step(in.Now, s, w)
	n.tries = n.judge.Trying()
}

// settled lets it run, and returns how much of the last half of the time it acted for good.
func (n *node) settled(t *testing.T, d time.Duration) float64 {
	t.Helper()
	begin, end := n.now, n.now.Add(d)
	acted, all := 0, 0
	for n.now.Before(end) {
		n.step()
		if n.reason == "" {
			t.Fatal("no reason")
		}
		if n.now.Sub(begin) > d/2 {
			all++
			if n.acts && !n.tries {
				acted++
			}
		}
	}
	return float64(acted) / float64(all)
}

// What the sensors say, the trial measures: a load sensor that lies leads to trials that find
// nothing, not to a mechanism that acts.
func TestNodeIsOnTheStockPathWhateverALoadSensorSays(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	for name, c := range map[string]struct {
		effect, offered float64
		sensor          func(*Core)
	}{
		"saturated, it says, on an idle node":  {1, 1000, func(c *Core) { c.Saturated, c.Rate = 1, 1e6 }},
		"saturated, it says, at light load":    {2, 100e3, func(c *Core) { c.Saturated, c.Rate = 1, 1e6 }},
		"at random":                            {1, 500e3, func(c *Core) { c.Saturated, c.Rate = rng.Float64(), 1e6*rng.Float64()+5e5 }},
		"more than all":                        {0.7, 2e6, func(c *Core) { c.Saturated = 1e9 }},
		"no number":                            {2, 2e6, func(c *Core) { c.Saturated, c.Rate, c.Tasks = math.NaN(), math.NaN(), math.NaN() }},
		"it has stopped":                       {2, 2e6, func(c *Core) { *c = Core{} }},
		"all is movable, and it makes it slow": {0.5, 2e6, func(c *Core) { c.Movable = 1 }},
	} {
		n := newNode(7)
		n.effect, n.offered, n.sensor = c.effect, func(time.Duration) float64 { return c.offered }, c.sensor
		if share := n.settled(t, time.Minute); share > 0 {
			t.Errorf("%s: it acted %.0f %% of the time: %s", name, share*100, n.reason)
		}
	}
	// The same where the sensor tells the truth, and it pays.
	n := newNode(7)
	n.effect = 2
	if share := n.settled(t, time.Minute); share < 0.9 {
		t.Errorf("without a lie it acted %.0f %% of the time: %s", share*100, n.reason)
	}
}

// A sensor that stops while the mechanism acts.
func TestStoppedSensorLeadsBackToTheStockPath(t *testing.T) {
	t.Parallel()
	n := newNode(3)
	n.effect = 2
	if share := n.settled(t, 20*time.Second); share < 0.9 {
		t.Fatalf("it acted %.0f %% of the time: %s", share*100, n.reason)
	}
	n.sensor, n.lies = func(c *Core) { *c = Core{} }, func(w *Window) { *w = Window{Elapsed: w.Elapsed} }
	if share := n.settled(t, 20*time.Second); share > 0 {
		t.Errorf("blind, it acted %.0f %% of the time: %s", share*100, n.reason)
	}
}

// A clock that jumps ends what acts, and what is remembered does not last for ever: on the next
// minute the node is where it would have been.
func TestJumpingClock(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"an hour on": time.Hour, "an hour back": -time.Hour, "a century back": -100 * 365 * 24 * time.Hour} {
		for effect, want := range map[float64]func(float64) bool{
			2:   func(share float64) bool { return share > 0.8 },
			0.6: func(share float64) bool { return share == 0 },
		} {
			n := newNode(5)
			n.effect = effect
			n.settled(t, 20*time.Second)
			n.clock = func(at time.Time) time.Time { return at.Add(jump) }
			n.step()
			if n.acts && !n.tries {
				t.Errorf("%s: it goes on acting: %s", name, n.reason)
			}
			if effect == 2 && !strings.Contains(n.gov.Last().Reason, "clock") {
				t.Errorf("%s: %s", name, n.gov.Last().Reason)
			}
			if share := n.settled(t, 2*time.Minute); !want(share) {
				t.Errorf("%s: with an effect of %.1f it acted %.0f %% of the time: %s", name, effect, share*100, n.reason)
			}
		}
	}
	// To and fro, in every window.
	n := newNode(6)
	n.effect = 2
	n.clock = func(at time.Time) time.Time { return at.Add(time.Duration(n.rng.IntN(7200)-3600) * time.Second) }
	if share := n.settled(t, time.Minute); share > 0.1 {
		t.Errorf("with a clock that jumps all the time it acted %.0f %% of the time: %s", share*100, n.reason)
	}
}
