// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"math"
	"strings"
	"testing"
	"time"
)

// judged runs a judge on a bench, and tells after each window whether the mechanism acts for good,
// not at all, or is on trial.
func judged(b *bench, j *Judge, d time.Duration, each func(since time.Duration, act, trying bool, reason string)) {
	act := false
	for end := b.now.Add(d); b.now.Before(end); {
		w := b.next(j.Trying(), act)
		s := Situation{Layout: "a", Rate: float64(w.Frames) / w.Elapsed.Seconds()}
		var reason string
		act, reason = j.Step(b.now, s, w)
		each(b.now.Sub(b.began), act, j.Trying(), reason)
	}
}

// loads are what may be offered to a path that can take 800 000 frames a second.
var loads = map[string]func(time.Duration) float64{
	"saturating":   func(time.Duration) float64 { return 2e6 },
	"light":        func(time.Duration) float64 { return 200e3 },
	"at the brink": func(at time.Duration) float64 { return 800e3 * (1 + 0.3*math.Sin(at.Seconds())) },
	"on and off": func(at time.Duration) float64 {
		if int(at.Seconds())%2 == 0 {
			return 2e6
		}
		return 50e3
	},
	"slow waves": func(at time.Duration) float64 { return 1e6 * (1 + math.Sin(at.Seconds()/5)) },
	"rising":     func(at time.Duration) float64 { return 20e3 * at.Seconds() },
}

// Whatever comes, and whatever the mechanism does: it does not go to and fro, each decision has a
// reason, and trials take but a part of the time.
func TestDoesNotOscillate(t *testing.T) {
	t.Parallel()
	const minutes = 2
	for load, offered := range loads {
		for name, noise := range noises {
			for _, effect := range []float64{0.5, 0.8, 1, 1.2, 2} {
				for seed := range uint64(8) {
					b := newBench(seed)
					noise(b)
					b.offered, b.effect = offered, effect
					switches, last := 0, false
					judged(b, NewJudge(forGoodput, seed), minutes*time.Minute, func(_ time.Duration, act, trying bool, reason string) {
						if reason == "" {
							t.Fatalf("%s, %s: no reason", load, name)
						}
						if !trying && act != last {
							switches, last = switches+1, act
						}
					})
					if switches > 12*minutes {
						t.Errorf("%s, %s, effect %.1f, seed %d: %d decisions in %d minutes", load, name, effect, seed, switches, minutes)
					}
				}
			}
		}
	}
}

// What pays acts nearly all the time, what does not hardly.
func TestActsWhereItPays(t *testing.T) {
	t.Parallel()
	for name, noise := range noises {
		for effect, want := range map[float64]func(share float64) bool{
			2:   func(s float64) bool { return s > 0.8 },
			1:   func(s float64) bool { return s < 0.2 },
			0.6: func(s float64) bool { return s < 0.1 },
		} {
			mean := 0.0
			const runs = 20
			for seed := range uint64(runs) {
				b := newBench(seed)
				noise(b)
				b.effect = effect
				on, all := 0, 0
				judged(b, NewJudge(forGoodput, seed), time.Minute, func(_ time.Duration, act, _ bool, _ string) {
					all++
					if act {
						on++
					}
				})
				mean += float64(on) / float64(all) / runs
			}
			if !want(mean) {
				t.Errorf("%s: with an effect of %.1f it acts %.0f %% of the time", name, effect, mean*100)
			}
		}
	}
}

// What takes from senders for as long as it is on trial, with and without, as TCP that backs off, is
// off again within three seconds, and stays so for half a minute. What takes but a moment is tried to its end.
func TestATrialThatCostsIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		takes func(since time.Duration) bool
		most  time.Duration
		says  string
	}{
		"as long as it lasts": {func(time.Duration) bool { return true }, 3 * time.Second, "less comes since it is on trial"},
		"for a second":        {func(d time.Duration) bool { return d < time.Second }, 10 * time.Second, "does not show"},
	} {
		for seed := range uint64(20) {
			b := newBench(seed)
			b.effect = 1
			trying := time.Duration(-1) // since when
			b.offered = func(at time.Duration) float64 {
				if trying >= 0 && c.takes(at-trying) {
					return 280e3
				}
				return 400e3
			}
			j := NewJudge(forGoodput, seed)
			var ended time.Duration
			said := ""
			judged(b, j, 20*time.Second, func(since time.Duration, act, is bool, reason string) {
				switch {
				case is && trying < 0 && ended == 0:
					trying = since
				case !is && trying >= 0:
					ended, said, trying = since-trying, reason, -1
				case is && ended > 0:
					t.Fatalf("%s, seed %d: on trial again after %s", name, seed, since)
				}
				if act && !is {
					t.Fatalf("%s, seed %d: it acts", name, seed)
				}
			})
			if ended == 0 || ended > c.most || !strings.Contains(said, c.says) {
				t.Errorf("%s, seed %d: on trial for %s: %q", name, seed, ended, said)
			}
		}
	}
}

// The program that a mechanism needs takes from senders before the trial begins, as XDP on a veth does from TCP:
// then it is given up within three seconds as well.
func TestATrialBehindAProgramThatCostsIsGivenUp(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		b := newBench(seed)
		b.effect = 1
		b.offered = func(time.Duration) float64 { return 280e3 }
		j := NewJudge(forGoodput, seed)
		act, said := false, ""
		for end := b.now.Add(3 * time.Second); b.now.Before(end) && said == ""; {
			w := b.next(j.Trying(), act)
			s := Situation{Layout: "a", Rate: float64(w.Frames) / w.Elapsed.Seconds(), Without: 400e3}
			was := j.Trying()
			var why string
			if act, why = j.Step(b.now, s, w); was && !j.Trying() {
				said = why
			}
		}
		if act || !strings.Contains(said, "less comes since it is on trial, 0.7") {
			t.Errorf("seed %d: it acts: %t, after 3 s: %q", seed, act, said)
		}
	}
}

// A mechanism that paid and then makes things worse by a fifth is withdrawn within three seconds.
func TestRegressionIsWithdrawn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		b := newBench(seed)
		b.effect = 1.5
		j := NewJudge(forGoodput, seed)
		paid := false
		judged(b, j, 10*time.Second, func(_ time.Duration, act, trying bool, _ string) { paid = act && !trying })
		if !paid {
			t.Fatal("it did not pay")
		}
		b.effect = 0.8
		bad := b.now
		var since time.Duration
		judged(b, j, 10*time.Second, func(_ time.Duration, act, trying bool, _ string) {
			if act && !trying {
				since = b.now.Sub(bad)
			}
		})
		if since > 3*time.Second {
			t.Errorf("seed %d: it acted for good until %v after it had become worse", seed, since)
		}
	}
}

// What is remembered is bounded, and looked at again less and less often.
func TestVerdictsAreRememberedAndRechecked(t *testing.T) {
	t.Parallel()
	b := newBench(1)
	b.effect = 2
	j := NewJudge(forGoodput, 1)
	trials, was := 0, false
	judged(b, j, 30*time.Minute, func(_ time.Duration, _, trying bool, _ string) {
		if trying && !was {
			trials++
		}
		was = trying
	})
	if trials < 4 || trials > 10 {
		t.Errorf("%d trials in half an hour of the same", trials)
	}
	for i := range 100 {
		w := b.window(short, false)
		j.Leave()
		j.Step(b.now, Situation{Layout: string(rune('a' + i)), Rate: 1e6}, w)
		for j.Trying() {
			j.Step(b.now, Situation{Layout: string(rune('a' + i)), Rate: 1e6}, b.try(j.trial.On()))
		}
		b.now = b.now.Add(restFor)
	}
	if len(j.known) > mostKnown {
		t.Errorf("%d verdicts are remembered", len(j.known))
	}
}

// What did not pay again, in whatever words, is looked at again later each time; what paid for once is not.
func TestVerdictThatIsConfirmedHoldsLonger(t *testing.T) {
	t.Parallel()
	j, now := NewJudge(forGoodput, 1), time.Unix(1000, 0)
	for i, c := range []struct {
		outcome Outcome
		holds   time.Duration
	}{{Worse, holdsFirst}, {Undecided, 2 * holdsFirst}, {Worse, 4 * holdsFirst}, {Better, holdsFirst}, {Better, 2 * holdsFirst}, {Undecided, holdsFirst}} {
		j.learn(now, Verdict{Outcome: c.outcome})
		if got := j.Known()[0].Holds; got != c.holds {
			t.Errorf("verdict %d, %s, holds for %v, not %v", i, c.outcome, got, c.holds)
		}
	}
}

// What did not pay is not tried for half a minute, but with another load it is, also while the
// mechanism is not in place.
func TestVerdictIsForgottenWithAnotherLoad(t *testing.T) {
	t.Parallel()
	b := newBench(1)
	j := NewJudge(forGoodput, 1)
	judged(b, j, 10*time.Second, func(time.Duration, bool, bool, string) {})
	bars := func(rate float64, d time.Duration) (barred time.Duration) {
		begin := b.now
		for b.now.Sub(begin) < d {
			b.now = b.now.Add(100 * time.Millisecond)
			j.Leave()
			if _, yes := j.Bars(b.now, Situation{Layout: "a", Rate: rate}); !yes {
				break
			}
			barred = b.now.Sub(begin)
		}
		return barred
	}
	if d := bars(1e6, 5*time.Second); d < 5*time.Second {
		t.Errorf("the same load is barred for %v", d)
	}
	if d := bars(1e5, 5*time.Second); d > 3*time.Second {
		t.Errorf("another load is barred for %v", d)
	}
}
