// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Trial finds out whether a mechanism pays on this node, now: windows with it and windows
// without lie next to each other, in pairs, and a coin decides which comes first. If it makes no
// difference, either window of a pair is as likely to be the better one, whatever else happens to
// the machine: a core that runs at half its speed, a host that steals every second tick. That is
// bet against, with a stake that follows how far the two are apart; who wins so much that chance
// would have let him do it once in a hundred trials is believed (Ville's inequality; it holds
// whenever one stops). The zero value is not ready; use NewTrial.
type Trial struct {
	terms  Terms
	coin   *rand.Rand
	first  bool // which half of the pair comes
	onHead bool // that is the one with the mechanism
	half   Window
	pairs  int
	void   int
	why    string // of the last pair that is void
	ratios [metrics][]float64
	with   []Window // of the pairs that count
	better evidence
	worse  [metrics]evidence
}

// Metric is what a mechanism may better or worsen.
type Metric int

const (
	// Goodput is the frames that were received and not dropped, in a second.
	Goodput Metric = iota
	// Cost is the receive time of a frame.
	Cost
	// Wait is how long frames wait in the NIC.
	Wait
	metrics
)

func (m Metric) String() string {
	return [...]string{"packets", "cost per packet", "wait in the NIC"}[m]
}

// Window is what was measured in a part of a trial.
type Window struct {
	Elapsed         time.Duration
	Frames, Dropped uint64
	// Cost is the receive time of a frame in ns, Wait how long a frame waited at most; 0: not
	// known.
	Cost float64
	Wait time.Duration
	// Acted is the share of frames on which the mechanism acted.
	Acted float64
	// Saturated: a core could do no more.
	Saturated bool
}

// value is what a window says about a metric, so that more is better; 0: nothing.
func (w Window) value(m Metric) float64 {
	switch {
	case m == Goodput && w.Frames > w.Dropped:
		return float64(w.Frames-w.Dropped) / w.Elapsed.Seconds()
	case m == Cost && w.Cost > 0:
		return 1 / w.Cost
	case m == Wait && w.Wait > 0:
		return 1 / w.Wait.Seconds()
	}
	return 0
}

// Delivered is the frames a second that were received and not dropped.
func (w Window) Delivered() float64 { return w.value(Goodput) }

// Terms say what a trial is about.
type Terms struct {
	// Goal is what is to become better.
	Goal Metric
	// Keep are what must not become worse, by more than such a factor of what it was (1: at all).
	Keep map[Metric]float64
	// Holds is how long a verdict holds at first; 0: half a minute.
	Holds time.Duration
}

// Outcome is how a trial ended.
type Outcome int

const (
	// Undecided: not even the stated confidence was reached.
	Undecided Outcome = iota
	// Better: the goal was reached, and nothing else suffered.
	Better
	// Worse: something suffered.
	Worse
)

func (o Outcome) String() string { return [...]string{"undecided", "better", "worse"}[o] }

// Verdict is what a trial found out.
type Verdict struct {
	Outcome Outcome
	// Ratios are the medians of with to without, so that above 1 is better; 0: not measured.
	Ratios [metrics]float64
	Pairs  int
	// Level is how things were with it.
	Level  Level
	Reason string
}

const (
	// sure is how much a bet must win to be believed: chance gets there once in so many trials, for
	// the gain; and as often for all the losses together.
	sure = 200
	// mostPairs is when it is given up, mostVoid how many pairs may be void.
	mostPairs, mostVoid = 50, 20
	// keepPairs is how many pairs tell that nothing else suffers much.
	keepPairs = 6
	// worthwhile is the least gain for which a mechanism is switched on.
	worthwhile = 1.03
	// fewFrames are too few for a window to tell anything.
	fewFrames = 100
	// actedOn is the share of frames on which the mechanism must have acted, switched on.
	actedOn = 0.1
)

// NewTrial begins one. seed decides the order in the pairs.
func NewTrial(t Terms, seed uint64) *Trial {
	tr := &Trial{terms: t, coin: rand.New(rand.NewPCG(seed, 0)), first: true}
	tr.onHead = tr.coin.Uint64()&1 == 0
	return tr
}

// On tells whether the mechanism is to act in the window that comes.
func (t *Trial) On() bool { return t.onHead == t.first }

// Progress says how far it is, in words.
func (t *Trial) Progress() string {
	return fmt.Sprintf("on trial: pair %d, of %d at most", t.pairs+1, mostPairs)
}

// Add takes the window that ended, in which the mechanism was to act as On said. It returns the
// verdict once there is one.
func (t *Trial) Add(w Window) (v Verdict, over bool) {
	if t.first {
		t.half, t.first = w, false
		return v, false
	}
	with, without := w, t.half
	if t.onHead {
		with, without = t.half, w
	}
	t.first, t.onHead = true, t.coin.Uint64()&1 == 0
	if t.why = unfit(with, without); t.why != "" {
		t.void++
		if t.void < mostVoid {
			return v, false
		}
		return t.verdict(Undecided, "it cannot be compared: "+t.why), true
	}
	t.pairs++
	t.with = append(t.with, with)
	for m := range metrics {
		a, b := with.value(m), without.value(m)
		if a == 0 || b == 0 {
			continue
		}
		x := math.Log(a / b)
		t.ratios[m] = append(t.ratios[m], x)
		if m == t.terms.Goal {
			t.better.bet(x)
		}
		if least, ok := t.terms.Keep[m]; ok {
			t.worse[m].bet(math.Log(least) - x)
		}
	}
	return t.judge()
}

// unfit says why windows do not tell with from without.
func unfit(with, without Window) string {
	switch {
	case min(with.Elapsed, without.Elapsed) <= 0 || with.Elapsed > 2*without.Elapsed || without.Elapsed > 2*with.Elapsed:
		return "the clock jumps"
	case min(with.Frames, without.Frames) < fewFrames:
		return "too few packets come"
	case !(with.Acted >= actedOn):
		return fmt.Sprintf("switched on, it acts on %.0f %% of the packets", with.Acted*100)
	case !(without.Acted <= with.Acted/2):
		return fmt.Sprintf("switched off, it acts on %.0f %% of the packets", without.Acted*100)
	}
	return ""
}

func (t *Trial) judge() (Verdict, bool) {
	for _, m := range t.kept() {
		if t.worse[m].wealth() >= sure*float64(len(t.terms.Keep)) {
			return t.verdict(Worse, fmt.Sprintf("it makes %s worse", m)), true
		}
	}
	if t.better.wealth() >= sure && t.pairs >= keepPairs && t.spares() {
		if r := t.ratio(t.terms.Goal); r < worthwhile {
			return t.verdict(Undecided, "it gains too little"), true
		}
		return t.verdict(Better, "it pays"), true
	}
	if t.pairs < mostPairs {
		return Verdict{}, false
	}
	return t.verdict(Undecided, "whether it pays does not show"), true
}

// kept are the metrics that must not become worse, in order.
func (t *Trial) kept() []Metric {
	var list []Metric
	for m := range metrics {
		if _, ok := t.terms.Keep[m]; ok {
			list = append(list, m)
		}
	}
	return list
}

// spares tells that nothing that must not become worse looks as if it did.
func (t *Trial) spares() bool {
	return !slices.ContainsFunc(t.kept(), func(m Metric) bool {
		r := t.ratio(m)
		return r != 0 && r < t.terms.Keep[m]*0.97
	})
}

// ratio is the median of with to without.
func (t *Trial) ratio(m Metric) float64 {
	if len(t.ratios[m]) == 0 {
		return 0
	}
	return math.Exp(middle(t.ratios[m], func(x float64) float64 { return x }))
}

// middle is the median of something of each; 0 of none.
func middle[T any](list []T, of func(T) float64) float64 {
	var all []float64
	for _, e := range list {
		all = append(all, of(e))
	}
	slices.Sort(all)
	if len(all) == 0 {
		return 0
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func (t *Trial) verdict(o Outcome, why string) Verdict {
	v := Verdict{Outcome: o, Pairs: t.pairs}
	for m := range metrics {
		v.Ratios[m] = t.ratio(m)
	}
	v.Level = Level{
		Goodput: middle(t.with, func(w Window) float64 { return w.value(Goodput) }),
		Dropped: middle(t.with, func(w Window) float64 { return float64(w.Dropped) / float64(w.Frames) }),
		Cost:    middle(t.with, func(w Window) float64 { return w.Cost }),
		Wait:    time.Duration(middle(t.with, func(w Window) float64 { return float64(w.Wait) })),
	}
	v.Reason = why
	if t.pairs > 0 {
		v.Reason = fmt.Sprintf("%s (%s; %d pairs, 99 %% confidence)", why, v.figures(), t.pairs)
	}
	return v
}

// figures are the verdict's in words: of what was measured, how much with for 1 without.
func (v Verdict) figures() string {
	out := ""
	for m, r := range v.Ratios {
		if r == 0 {
			continue
		}
		if Metric(m) != Goodput {
			r = 1 / r // as it was measured: less is better
		}
		if out != "" {
			out += ", "
		}
		out += fmt.Sprintf("%s %.2f times", Metric(m), r)
	}
	return out
}

// evidence is what bets have won that a ratio's logarithm is above zero: three at once, since nobody
// knows before which fits.
type evidence struct{ log [len(steepness)]float64 }

// How much is bet follows from how far the windows are apart, as it should where that scatters
// with a deviation and what one looks for is so much: steepness is the quotient of this and the
// square of that. In the last case hardly anything scatters.
var steepness = [...]float64{2, 6, 30}

// mostBet is never more: who loses all cannot win again.
const mostBet = 0.95

func (e *evidence) bet(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	for i, k := range steepness {
		e.log[i] += math.Log1p(mostBet * math.Tanh(k*x))
	}
}

// wealth is what one has of 1 that was bet.
func (e *evidence) wealth() float64 {
	sum := 0.0
	for _, l := range e.log {
		sum += math.Exp(l)
	}
	return sum / float64(len(e.log))
}
