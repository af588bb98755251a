// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"math"
	"math/rand/v2"
	"regexp"
	"testing"
	"time"
)

// bench is a simulated node: what a core can do changes as machines' speed does.
type bench struct {
	rng *rand.Rand
	now time.Time
	// capacity is what the path can do, in frames a second, offered what comes; effect the factor
	// that the mechanism has on capacity, and waits on waiting.
	capacity      float64
	offered       func(since time.Duration) float64
	effect, waits float64
	jumps, steals bool
	noise         float64
	speed         float64
	began, until  time.Time
	lies          func(*Window)
}

func newBench(seed uint64) *bench {
	now := time.Unix(1000, 0)
	return &bench{rng: rand.New(rand.NewPCG(seed, 1)), now: now, began: now, capacity: 800e3, effect: 1, waits: 1, noise: 0.05, speed: 1,
		offered: func(time.Duration) float64 { return 2e6 }}
}

// window lets d pass.
func (b *bench) window(d time.Duration, act bool) Window {
	if b.jumps && !b.now.Before(b.until) {
		b.speed = []float64{0.5, 1, 2}[b.rng.IntN(3)]
		b.until = b.now.Add(time.Duration(50+b.rng.ExpFloat64()*1500) * time.Millisecond)
	}
	speed := b.speed * math.Exp(b.noise*b.rng.NormFloat64())
	if b.steals {
		// 45 % of the time, in slices of 4 ms.
		left, slices := 0, int(d/(4*time.Millisecond))
		for range slices {
			if b.rng.Float64() >= 0.45 {
				left++
			}
		}
		speed *= max(float64(left)/float64(slices), 0.01)
	}
	capacity, wait := b.capacity*speed, 1e6/speed
	w := Window{Elapsed: d}
	if act {
		capacity *= b.effect
		wait *= b.waits
		w.Acted = 1
	}
	offered := b.offered(b.now.Sub(b.began))
	rate := min(offered, capacity)
	w.Saturated = offered >= capacity
	if !w.Saturated {
		wait /= 10
	}
	w.Frames, w.Cost, w.Wait = uint64(rate*d.Seconds()), 1e9/capacity, time.Duration(wait)
	b.now = b.now.Add(d)
	if b.lies != nil {
		b.lies(&w)
	}
	return w
}

const short = 60 * time.Millisecond

// run lets a trial end, and says how long that took.
func (b *bench) run(t *Trial) (Verdict, time.Duration) {
	began := b.now
	for {
		if v, over := t.Add(b.window(short, t.On())); over {
			return v, b.now.Sub(began)
		}
	}
}

var forGoodput = Terms{Goal: Goodput, Keep: map[Metric]float64{Goodput: 1, Wait: 0.5}}

// noises are what machines do.
var noises = map[string]func(*bench){
	"quiet":  func(*bench) {},
	"noisy":  func(b *bench) { b.noise = 0.3 },
	"jumps":  func(b *bench) { b.jumps = true },
	"stolen": func(b *bench) { b.steals = true },
	"both":   func(b *bench) { b.jumps, b.steals, b.noise = true, true, 0.2 },
}

// A mechanism that makes no difference is believed to, for better or worse, once in a hundred
// trials at most.
func TestNoEffectIsNotBelieved(t *testing.T) {
	t.Parallel()
	const trials = 2000
	for name, noise := range noises {
		for load, offered := range map[string]float64{"saturated": 2e6, "at the brink": 800e3, "light": 100e3} {
			believed := 0
			for seed := range uint64(trials) {
				b := newBench(seed)
				noise(b)
				b.offered = func(time.Duration) float64 { return offered }
				if v, _ := b.run(NewTrial(forGoodput, seed)); v.Outcome != Undecided {
					believed++
				}
			}
			if believed > trials/100 {
				t.Errorf("%s, %s: %d of %d trials had a verdict", name, load, believed, trials)
			}
		}
	}
}

// An effect of a factor of two shows within two seconds, whatever the machine does; a smaller one
// where half of the noise is not what it does.
func TestLargeEffectsShow(t *testing.T) {
	t.Parallel()
	const trials = 300
	for name, noise := range noises {
		for effect, want := range map[float64]Outcome{1.5: Better, 2: Better, 0.5: Worse, 0.7: Worse} {
			missed, late := 0, 0
			for seed := range uint64(trials) {
				b := newBench(seed)
				noise(b)
				b.effect = effect
				v, took := b.run(NewTrial(forGoodput, seed))
				if v.Outcome != Undecided && v.Outcome != want {
					t.Errorf("%s, effect %.1f: %s", name, effect, v.Reason)
				}
				if v.Outcome != want {
					missed++
				} else if took > 2*time.Second {
					late++
				}
				if v.Reason == "" {
					t.Fatal("a verdict without a reason")
				}
			}
			t.Logf("%s, effect %.1f: %d not seen, %d later than 2 s, of %d", name, effect, missed, late, trials)
			large, calm := effect == 2 || effect == 0.5, name == "quiet" || name == "jumps"
			switch {
			case (large || calm) && (missed > trials/100 || late > trials/6):
				t.Errorf("%s, effect %.1f: %d of %d were not seen, %d late", name, effect, missed, trials, late)
			case missed > trials/3:
				t.Errorf("%s, effect %.1f: %d of %d were not seen", name, effect, missed, trials)
			}
		}
	}
}

// What gains must not do so at the cost of what is to be kept.
func TestGainAtACostIsRefused(t *testing.T) {
	t.Parallel()
	forWait := Terms{Goal: Wait, Keep: map[Metric]float64{Goodput: 0.8}}
	for name, c := range map[string]struct {
		effect float64
		want   Outcome
	}{"spared": {0.95, Better}, "within what is allowed": {0.85, Better}, "half is lost": {0.5, Worse}} {
		for seed := range uint64(50) {
			b := newBench(seed)
			b.effect, b.waits = c.effect, 0.1
			if v, _ := b.run(NewTrial(forWait, seed)); v.Outcome != c.want {
				t.Errorf("%s: %s, %s", name, v.Outcome, v.Reason)
			}
		}
	}
}

// Small gains are not worth a switch.
func TestHardlyAGainIsUndecided(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		b := newBench(seed)
		b.effect, b.noise = 1.015, 0.001
		if v, _ := b.run(NewTrial(forGoodput, seed)); v.Outcome != Undecided {
			t.Errorf("%s: %s", v.Outcome, v.Reason)
		}
	}
}

// A sensor that stops, one that tells the same whatever happens, a clock that jumps, a switch that
// does nothing: never is anything believed to pay.
func TestLyingSensorsProveNothing(t *testing.T) {
	t.Parallel()
	n := 0
	for name, lie := range map[string]func(*Window){
		"no frames":       func(w *Window) { w.Frames, w.Dropped = 0, 0 },
		"always the same": func(w *Window) { *w = Window{Elapsed: short, Frames: 5000, Cost: 1, Wait: 1, Acted: w.Acted} },
		"nothing else":    func(w *Window) { w.Frames, w.Cost, w.Wait = 5000, 0, 0 },
		"not a number":    func(w *Window) { w.Cost, w.Acted = math.NaN(), math.NaN() },
		"all dropped":     func(w *Window) { w.Dropped = w.Frames },
		"more than all":   func(w *Window) { w.Dropped = 2 * w.Frames },
		"no time":         func(w *Window) { w.Elapsed = 0 },
		"back in time":    func(w *Window) { w.Elapsed = -w.Elapsed },
		"never switched":  func(w *Window) { w.Acted = 0 },
		"always switched": func(w *Window) { w.Acted = 1 },
		"random": func(w *Window) {
			n++
			w.Frames = uint64(1000 * (1 + n*7919%100))
		},
	} {
		for seed := range uint64(50) {
			b := newBench(seed)
			b.effect, b.lies = 1, lie
			if v, _ := b.run(NewTrial(forGoodput, seed)); v.Outcome == Better {
				t.Errorf("%s: believed: %s", name, v.Reason)
			}
		}
	}
}

// The coin is fair, and either half of a pair comes as often first.
func TestOrderInPairsIsRandom(t *testing.T) {
	t.Parallel()
	first := 0
	const pairs = 10000
	for seed := range uint64(pairs) {
		if NewTrial(forGoodput, seed).On() {
			first++
		}
	}
	if d := math.Abs(float64(first) - pairs/2); d > 4*math.Sqrt(pairs)/2 {
		t.Errorf("%d of %d trials begin with the mechanism", first, pairs)
	}
}

func TestVerdictInWords(t *testing.T) {
	t.Parallel()
	b := newBench(1)
	b.effect, b.waits = 1.5, 0.5
	v, _ := b.run(NewTrial(forGoodput, 1))
	if !regexp.MustCompile(`^it pays \(packets 1\.[45]\d times, cost per packet 0\.6\d times, wait in the NIC 0\.\d\d times; \d+ pairs, 99 % confidence\)$`).MatchString(v.Reason) {
		t.Errorf("%q", v.Reason)
	}
}
