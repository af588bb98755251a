// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"
)

// bench is a simulated node: what a core can do changes as machines' speed does, and the daemon comes
// late, the more the slower the machine is.
type bench struct {
	rng *rand.Rand
	now time.Time
	// capacity is what the path can do, in frames a second, offered what comes; effect the factor
	// that the mechanism has on capacity, and waits on waiting.
	capacity      float64
	offered       func(since time.Duration) float64
	effect, waits float64
	jumps, steals bool
	noise         float64 // differs from window to window
	wanders       float64 // changes within some tenths of a second
	swells        float64 // goes up and down in three seconds
	speed, strays float64
	began, until  time.Time
	lies          func(*Window)
	// slow is how many times slower the machine is than one on which the daemon takes half a
	// millisecond for a step; busier is how much longer it takes while the mechanism acts.
	slow, busier float64
	uneven       bool // windows are up to four times as long as asked for
	lag          time.Duration
	others       float64   // frames a second of cores on which the mechanism does nothing
	acts         bool      // switched on
	switched     time.Time // then
	acted        []spell
}

// spell is a while in which the mechanism was switched on, on trial.
type spell struct{ begin, end time.Time }

func newBench(seed uint64) *bench {
	now := time.Unix(1000, 0)
	return &bench{rng: rand.New(rand.NewPCG(seed, 1)), now: now, began: now, capacity: 800e3, effect: 1, waits: 1, noise: 0.05, speed: 1,
		slow: 1, busier: 1, offered: func(time.Duration) float64 { return 2e6 }}
}

// window lets d pass.
func (b *bench) window(d time.Duration, act bool) Window {
	if b.jumps && !b.now.Before(b.until) {
		b.speed = []float64{0.5, 1, 2}[b.rng.IntN(3)]
		b.until = b.now.Add(time.Duration(50+b.rng.ExpFloat64()*1500) * time.Millisecond)
	}
	if act != b.acts {
		b.acts, b.switched = act, b.now
	}
	// Flows follow the switch late.
	w, on := Window{Elapsed: d}, 0.0
	if d > 0 {
		on = min(max((b.now.Add(d).Sub(b.switched)-b.lag).Seconds()/d.Seconds(), 0), 1)
	}
	if !act {
		on = 1 - on
	}
	b.pass(d / 2)
	swell := math.Sin(2 * math.Pi * b.now.Sub(b.began).Seconds() / 3)
	speed := b.speed * math.Exp(b.noise*b.rng.NormFloat64()+b.wanders*b.strays+b.swells*swell)
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
	capacity, wait := b.capacity*speed*(1+on*(b.effect-1)), 1e6/speed*(1+on*(b.waits-1))
	w.Acted = on
	offered := b.offered(b.now.Sub(b.began))
	rate := min(offered, capacity)
	w.Saturated = offered >= capacity
	if !w.Saturated {
		wait /= 10
	}
	rate += b.others * math.Exp(b.noise*b.rng.NormFloat64())
	w.Frames, w.Cost, w.Wait = uint64(rate*d.Seconds()), 1e9/capacity, time.Duration(wait)
	b.pass(d - d/2)
	if b.lies != nil {
		b.lies(&w)
	}
	return w
}

// pass lets the time go on.
func (b *bench) pass(d time.Duration) {
	b.now = b.now.Add(d)
	keep := math.Exp(-d.Seconds() / 0.3)
	b.strays = keep*b.strays + math.Sqrt(1-keep*keep)*b.rng.NormFloat64()
}

// What the daemon asks for in a trial: to settle, and then to measure.
const settle, short = 20 * time.Millisecond, 35 * time.Millisecond

// late is how much longer that takes.
func (b *bench) late(act bool) time.Duration {
	ms := b.rng.ExpFloat64() / 2
	if b.rng.IntN(30) == 0 {
		ms += 10 * b.rng.Float64()
	}
	if act {
		ms *= b.busier
	}
	return time.Duration(ms * b.slow * float64(time.Millisecond))
}

// try lets a window of a trial pass, as the daemon does it.
func (b *bench) try(act bool) Window {
	begin := b.now
	if act != b.acts {
		b.acts, b.switched = act, b.now
		b.pass(settle + b.late(act))
	}
	length := short + b.late(act)
	if b.uneven {
		length = time.Duration((1 + 3*b.rng.Float64()) * float64(length))
	}
	w := b.window(length, act)
	if act {
		b.acted = append(b.acted, spell{begin, b.now})
	}
	return w
}

// next lets the window pass for which the daemon asks.
func (b *bench) next(trying, act bool) Window {
	if trying {
		return b.try(act)
	}
	return b.window(100*time.Millisecond, act)
}

// worst is what was delivered of what the plain overlay would have delivered, in the second in which that
// was least.
func (b *bench) worst() float64 {
	most := 0.0
	for i, first := range b.acted {
		end, on := first.begin.Add(time.Second), 0.0
		for _, s := range b.acted[i:] {
			on += max(min(s.end.Sub(s.begin), end.Sub(s.begin)), 0).Seconds()
		}
		most = max(most, on)
	}
	return 1 - most*max(1-b.effect, 0)
}

// run lets a trial end, and says how long that took.
func (b *bench) run(terms Terms, seed uint64) (Verdict, time.Duration) {
	began := b.now
	t := NewTrial(began, terms, seed)
	for {
		w := b.try(t.On())
		if v, over := t.Add(b.now, w); over {
			return v, b.now.Sub(began)
		}
	}
}

var forGoodput = Terms{Goal: Goodput, Keep: map[Metric]float64{Goodput: 1, Wait: 0.5}}

// noises are what machines do.
var noises = map[string]func(*bench){
	"quiet":   func(*bench) {},
	"noisy":   func(b *bench) { b.noise = 0.3 },
	"jumps":   func(b *bench) { b.jumps = true },
	"stolen":  func(b *bench) { b.steals = true },
	"both":    func(b *bench) { b.jumps, b.steals, b.noise = true, true, 0.2 },
	"tenth":   func(b *bench) { b.noise = 0.1 },
	"wanders": func(b *bench) { b.wanders = 0.2 },
	"swells":  func(b *bench) { b.swells = 0.3 },
}

// paces are how the daemon keeps up.
var paces = map[string]func(*bench){
	"in time":           func(*bench) {},
	"4 times slower":    func(b *bench) { b.slow = 4 },
	"10 times slower":   func(b *bench) { b.slow = 10 },
	"slower while on":   func(b *bench) { b.slow, b.busier = 4, 8 },
	"uneven":            func(b *bench) { b.uneven = true },
	"flows follow late": func(b *bench) { b.lag = 100 * time.Millisecond },
}

// tally is how trials of the same end.
type tally struct {
	outcomes [3]int
	took     []time.Duration // sorted
	worst    []float64       // sorted
}

// add takes others in.
func (t *tally) add(o tally) {
	for i, n := range o.outcomes {
		t.outcomes[i] += n
	}
	t.took = slices.Sorted(slices.Values(append(t.took, o.took...)))
	t.worst = slices.Sorted(slices.Values(append(t.worst, o.worst...)))
}

// at is how long the trials took of which a part was over sooner.
func (t tally) at(part float64) time.Duration { return t.took[int(part*float64(len(t.took)-1))] }

// lost is what came in the worst second of the trials of which a part came to less.
func (t tally) lost(part float64) float64 { return t.worst[int(part*float64(len(t.worst)-1))] }

func tried(trials uint64, terms Terms, set ...func(*bench)) (t tally) {
	for seed := range trials {
		b := newBench(seed)
		for _, s := range set {
			s(b)
		}
		v, took := b.run(terms, seed)
		t.outcomes[v.Outcome]++
		t.took, t.worst = append(t.took, took), append(t.worst, b.worst())
	}
	slices.Sort(t.took)
	slices.Sort(t.worst)
	return t
}

func (t tally) String() string {
	return fmt.Sprintf("%d better, %d worse, %d undecided, after %.2f s, %.2f s at most in 95 %%; in the worst second %.3f came, %.3f at least in 95 %%, %.3f in all",
		t.outcomes[Better], t.outcomes[Worse], t.outcomes[Undecided], t.at(0.5).Seconds(), t.at(0.95).Seconds(), t.lost(0.5), t.lost(0.05), t.worst[0])
}

// gains has the mechanism have an effect.
func gains(effect float64) func(*bench) { return func(b *bench) { b.effect = effect } }

// A mechanism that makes no difference is believed to make things better once in a hundred trials at
// most, and as often worse; one that gains a tenth is believed as seldom to make them worse.
func TestWhatIsBelievedIsTrue(t *testing.T) {
	t.Parallel()
	for name, noise := range noises {
		var none, tenth tally
		for _, pace := range paces {
			none.add(tried(250, forGoodput, noise, pace, gains(1)))
			tenth.add(tried(150, forGoodput, noise, pace, gains(1.1)))
		}
		for _, offered := range []float64{800e3, 100e3} { // at the brink of saturation, and light
			none.add(tried(250, forGoodput, noise, func(b *bench) { b.offered = func(time.Duration) float64 { return offered } }))
		}
		t.Logf("%s: no effect: %v", name, none)
		t.Logf("%s: a tenth: %v", name, tenth)
		if most := len(none.took) / 100; none.outcomes[Better] > most || none.outcomes[Worse] > most {
			t.Errorf("%s: without an effect %v", name, none)
		}
		if tenth.outcomes[Worse] > len(tenth.took)/100 {
			t.Errorf("%s: with a gain of a tenth %v", name, tenth)
		}
	}
}

// A gain or a loss of a tenth and more shows within three seconds, at any speed of the machine, if it
// does not make more noise than that; and a factor of two whatever it does.
func TestLargeEffectsShowSoon(t *testing.T) {
	t.Parallel()
	const soon = 3 * time.Second
	for name, noise := range noises {
		for _, slow := range []float64{1, 4, 10} {
			for _, effect := range []float64{0.4, 0.6, 0.87, 0.9, 1.1, 1.3, 2} {
				got := tried(100, forGoodput, noise, gains(effect), func(b *bench) { b.slow = slow })
				t.Logf("%s, %.0f times slower, effect %.2f: %v", name, slow, effect, got)
				right := got.outcomes[Better]
				if effect < 1 {
					right = got.outcomes[Worse] + got.outcomes[Undecided]
				}
				switch {
				case right < 99 && (name == "quiet" || effect >= 2 || effect < 1):
					t.Errorf("%s, %.0f times slower, effect %.2f: %v", name, slow, effect, got)
				case (name == "quiet" || name == "tenth" && effect < 1) && got.at(0.95) > soon,
					(name == "swells" || name == "jumps" || effect >= 2) && got.at(0.5) > soon:
					t.Errorf("%s, %.0f times slower, effect %.2f: it took too long: %v", name, slow, effect, got)
				case name == "quiet" && effect < 0.7 && got.outcomes[Worse] < 98:
					t.Errorf("%s, %.0f times slower, effect %.2f: it was not called worse: %v", name, slow, effect, got)
				}
			}
		}
	}
}

// While it is on trial, a mechanism that makes things worse does not take a twentieth of what comes in
// any second. As far as its first window, and how late the daemon comes, allow.
func TestLittleIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	for name, noise := range noises {
		for _, slow := range []float64{1, 4, 10} {
			for _, effect := range []float64{0.4, 0.6, 0.87, 0.95} {
				got := tried(100, forGoodput, noise, gains(effect), func(b *bench) { b.slow = slow })
				calm := name != "noisy" && name != "stolen" && name != "both"
				switch {
				case got.lost(0.5) < 0.945,
					calm && slow == 1 && got.lost(0.05) < 0.945,
					calm && got.lost(0.05) < 0.9,
					got.lost(0.05) < 0.85:
					t.Errorf("%s, %.0f times slower, effect %.2f: %v", name, slow, effect, got)
				}
			}
		}
	}
}

// Windows of different lengths are compared, as are those between which it takes flows a while to
// follow the switch.
func TestUnevenWindowsAreCompared(t *testing.T) {
	t.Parallel()
	for _, pace := range []string{"uneven", "slower while on", "flows follow late"} {
		for effect, want := range map[float64]Outcome{0.6: Worse, 1.3: Better, 2: Better} {
			got := tried(200, forGoodput, paces[pace], gains(effect))
			t.Logf("%s, effect %.1f: %v", pace, effect, got)
			if got.outcomes[want] < 196 || got.at(0.5) > 4*time.Second {
				t.Errorf("%s, effect %.1f: %v", pace, effect, got)
			}
		}
	}
}

// What gains on one of four cores shows among what all of them receive.
func TestDilutedGainShows(t *testing.T) {
	t.Parallel()
	got := tried(200, forGoodput, gains(1.3), func(b *bench) { b.others, b.noise = 2.4e6, 0.02 })
	if got.outcomes[Better] < 190 || got.outcomes[Worse] > 0 {
		t.Error(got)
	}
}

// Where the mechanism lets nothing through, no packet comes to tell of it, and it is over soon.
func TestWhatLetsNothingThroughIsWorse(t *testing.T) {
	t.Parallel()
	got := tried(100, forGoodput, gains(0), func(b *bench) {
		b.lies = func(w *Window) {
			if w.Frames == 0 {
				*w = Window{Elapsed: w.Elapsed}
			}
		}
	})
	if got.outcomes[Worse] < 100 || got.lost(0.05) < 0.9 {
		t.Error(got)
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
			if v, _ := b.run(forWait, seed); v.Outcome != c.want {
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
		if v, _ := b.run(forGoodput, seed); v.Outcome != Undecided {
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
		"always the same": func(w *Window) { *w = Window{Elapsed: w.Elapsed, Frames: 5000, Cost: 1, Wait: 1, Acted: w.Acted} },
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
			if v, _ := b.run(forGoodput, seed); v.Outcome == Better {
				t.Errorf("%s: believed: %s", name, v.Reason)
			}
		}
	}
}

// The dice are fair: each window of a group has the mechanism as often.
func TestPlaceInGroupIsRandom(t *testing.T) {
	t.Parallel()
	var places [groupSize]int
	const groups = 10000
	for seed := range uint64(groups) {
		places[NewTrial(time.Time{}, forGoodput, seed).place]++
	}
	for place, n := range places {
		if d := math.Abs(float64(n) - groups/groupSize); d > 4*math.Sqrt(groups/groupSize) {
			t.Errorf("in %d of %d trials the mechanism acts in window %d first", n, groups, place)
		}
	}
}

func TestVerdictInWords(t *testing.T) {
	t.Parallel()
	b := newBench(1)
	b.effect, b.waits = 1.5, 0.5
	v, _ := b.run(forGoodput, 1)
	if !regexp.MustCompile(`^it pays \(packets 1\.[45]\d times, cost per packet 0\.6\d times, wait in the NIC 0\.\d\d times; \d+ pairs, 99 % confidence\)$`).MatchString(v.Reason) {
		t.Errorf("%q", v.Reason)
	}
}
