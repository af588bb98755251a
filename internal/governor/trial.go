// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Trial finds out whether a mechanism pays on this node, now. Windows lie next to each other in
// groups, and in one of each group, whose place is drawn, the mechanism acts. If it makes no
// difference, that window is as likely to be the best of its group, or the worst, as any other,
// whatever else happens to the machine: a core that runs at half its speed, a host that steals
// every second tick. That is bet against, with a stake that follows how far the windows are apart;
// a bettor that wins so much that chance would have let it do so once in a hundred trials is believed
// (Ville's inequality; it holds whenever one stops). What looks worse with the mechanism is tried
// only so often that hardly anything is lost meanwhile. The zero value is not ready; use NewTrial.
type Trial struct {
	terms   Terms
	dice    *rand.Rand
	last    time.Time     // the last window ended
	clock   time.Duration // how long the trial lasts, also where the node's clock jumps
	acts    []acting
	resting bool // the next group has to wait
	size    int  // of the group
	place   int  // in it, of the window with the mechanism
	group   []Window
	acted   float64 // as in Window, the last time that it was switched on
	void    int     // windows in a row that tell nothing
	why     string  // of the last of them
	with    []Window
	scatter []float64 // of what is delivered without it, in each group
	ratios  [metrics][]float64
	better  evidence
	poor    evidence // that it gains less than large
	worse   [metrics]evidence
}

// acting is a time in which the mechanism acted.
type acting struct{ begin, end time.Duration }

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

// value is what a window says about a metric, so that more is better; 0: nothing. A frame more
// than there was has also a window in which none came say something.
func (w Window) value(m Metric) float64 {
	switch {
	case m == Goodput:
		return (float64(w.Frames-min(w.Dropped, w.Frames)) + 1) / w.Elapsed.Seconds()
	case m == Cost && w.Cost > 0:
		return 1 / w.Cost
	case m == Wait && w.Wait > 0:
		return 1 / w.Wait.Seconds()
	}
	return 0
}

// Delivered is the frames a second that were received and not dropped.
func (w Window) Delivered() float64 {
	if w.Elapsed <= 0 {
		return 0
	}
	return float64(w.Frames-min(w.Dropped, w.Frames)) / w.Elapsed.Seconds()
}

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
	// Undecided: neither of these has shown.
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
	// Pairs are the windows with it that were compared, each with those around it.
	Pairs int
	// Level is how things were with it.
	Level  Level
	Reason string
}

const (
	// sure is how much a bet must win to be believed: chance gets there once in so many trials.
	sure = 100
	// A trial is given up when it looks worse with the mechanism, by suspect, and a bet that it does
	// not gain as much as large has won unlikely: to go on would cost more than it may find out.
	unlikely, large, suspect = 50, 1.1, 0.97
	// longest is when a trial is given up, mostVoid how many windows in a row may tell nothing.
	longest, mostVoid = 8 * time.Second, 20
	// keepPairs is how many groups tell that nothing else suffers much.
	keepPairs = 5
	// worthwhile is the least gain for which a mechanism is switched on.
	worthwhile = 1.03
	// fewFrames are too few for a window to tell anything, and shortest is too short for it.
	fewFrames, shortest = 100, 10 * time.Millisecond
	// actedOn is the share of frames on which the mechanism must have acted, switched on.
	actedOn = 0.1
	// A group is of groupSize windows, or of groupSparse where more than costly is lost by the
	// mechanism: then it acts in fewer of them, and each says more.
	groupSize, groupSparse, costly = 4, 8, 0.2
	// mostLost is how much of each second may be lost to windows with the mechanism.
	mostLost = 50 * time.Millisecond
)

// NewTrial begins one. seed decides the places in the groups.
func NewTrial(now time.Time, terms Terms, seed uint64) *Trial {
	t := &Trial{terms: terms, dice: rand.New(rand.NewPCG(seed, 0)), last: now}
	t.next()
	return t
}

// On tells whether the mechanism is to act in the window that comes.
func (t *Trial) On() bool { return !t.resting && len(t.group) == t.place }

// Progress says how far it is, in words.
func (t *Trial) Progress() string {
	return fmt.Sprintf("on trial for %.1f s, %.0f at most: pair %d", t.clock.Seconds(), longest.Seconds(), len(t.with)+1)
}

// next begins a group, or has it wait.
func (t *Trial) next() {
	loss := t.loss()
	t.resting = t.spent(loss)
	t.size = groupSize
	if loss > costly {
		t.size = groupSparse
	}
	t.group, t.place = nil, t.dice.IntN(t.size)
}

// loss is which part of what comes is lost while the mechanism acts: the worst that is likely.
func (t *Trial) loss() float64 {
	if len(t.with) == 0 {
		return 0
	}
	scatter := median(t.scatter) / math.Sqrt(float64(len(t.with)))
	return 1 - t.ratio(Goodput)*math.Exp(-scatter)
}

// spent tells whether too much would be lost in a second, were the mechanism to act once more. Once in
// a second it may, whatever it costs.
func (t *Trial) spent(loss float64) bool {
	var all []float64
	var sum float64
	lately := false
	for _, a := range t.acts {
		took := float64(a.end - a.begin)
		all = append(all, took)
		if t.clock-a.begin < time.Second {
			sum, lately = sum+took, true
		}
	}
	return lately && (sum+median(all))*loss > float64(mostLost)
}

// Add takes the window that ended, in which the mechanism was to act as On said. It returns the
// verdict once there is one.
func (t *Trial) Add(now time.Time, w Window) (v Verdict, over bool) {
	t.pass(now)
	switch why := t.unfit(w); {
	case t.resting:
		t.next()
	case why != "":
		t.void, t.why = t.void+1, why
	default:
		if t.On() {
			t.acted = w.Acted
		}
		if t.group = append(t.group, w); len(t.group) == t.size {
			v, over = t.compare()
			t.next()
		}
	}
	switch {
	case over:
		return v, true
	case t.void >= mostVoid:
		return t.verdict(Undecided, "it cannot be compared: "+t.why), true
	case t.clock >= longest:
		return t.verdict(Undecided, "whether it pays does not show"), true
	}
	return Verdict{}, false
}

// pass lets the time go on to the end of a window.
func (t *Trial) pass(now time.Time) {
	begin := t.clock
	if d := now.Sub(t.last); d > 0 && d < jump {
		t.clock += d
	}
	t.last = now
	if !t.On() {
		return
	}
	if i := len(t.acts) - 1; i >= 0 && t.acts[i].end == begin {
		t.acts[i].end = t.clock
		return
	}
	t.acts = append(t.acts, acting{begin, t.clock})
}

// unfit says why a window tells nothing: flows may not have followed the switch yet.
func (t *Trial) unfit(w Window) string {
	switch on := t.On(); {
	case w.Elapsed < shortest:
		return "windows are too short"
	case on && w.Frames > 0 && !(w.Acted >= actedOn):
		return fmt.Sprintf("switched on, it acts on %.0f %% of the packets", w.Acted*100)
	case !on && t.acted > 0 && !(w.Acted <= t.acted/2):
		return actsOff(w)
	}
	return ""
}

func actsOff(w Window) string {
	return fmt.Sprintf("switched off, it acts on %.0f %% of the packets", w.Acted*100)
}

// compare takes a group that is complete.
func (t *Trial) compare() (Verdict, bool) {
	with, without := t.group[t.place], slices.Delete(slices.Clone(t.group), t.place, t.place+1)
	off := slices.IndexFunc(without, func(w Window) bool { return with.Frames > 0 && !(w.Acted <= with.Acted/2) })
	t.void += t.size
	switch {
	case middle(t.group, func(w Window) float64 { return float64(w.Frames) }) < fewFrames:
		t.why = "too few packets come"
		return Verdict{}, false
	case off >= 0:
		t.why = actsOff(without[off])
		return Verdict{}, false
	}
	t.void = 0
	t.with = append(t.with, with)
	for m := range metrics {
		var values, rest []float64
		for i, w := range t.group {
			x := math.Log(w.value(m))
			if values = append(values, x); i != t.place {
				rest = append(rest, x)
			}
		}
		if slices.ContainsFunc(values, func(x float64) bool { return math.IsInf(x, 0) }) {
			continue // it was not measured
		}
		if m == Goodput {
			t.scatter = append(t.scatter, deviation(rest))
		}
		t.ratios[m] = append(t.ratios[m], values[t.place]-median(rest))
		if m == t.terms.Goal {
			t.better.bet(values, t.place, 0, 1)
			t.poor.bet(values, t.place, -math.Log(large), -1)
		}
		if least, ok := t.terms.Keep[m]; ok {
			t.worse[m].bet(values, t.place, -math.Log(least), -1)
		}
	}
	return t.judge()
}

func (t *Trial) judge() (Verdict, bool) {
	goal := t.ratio(t.terms.Goal)
	for _, m := range t.kept() {
		if t.worse[m].wealth() >= sure {
			return t.verdict(Worse, fmt.Sprintf("it makes %s worse", m)), true
		}
	}
	switch {
	case t.better.wealth() >= sure && len(t.with) >= keepPairs && t.spares():
		if goal < worthwhile {
			return t.verdict(Undecided, "it gains too little"), true
		}
		return t.verdict(Better, "it pays"), true
	case t.poor.wealth() >= unlikely && goal < suspect:
		return t.verdict(Undecided, "it looks worse, and does not gain a tenth"), true
	}
	return Verdict{}, false
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
		return r != 0 && r < t.terms.Keep[m]*suspect
	})
}

// ratio is the median of with to without; 0: not measured.
func (t *Trial) ratio(m Metric) float64 {
	if len(t.ratios[m]) == 0 {
		return 0
	}
	return math.Exp(median(t.ratios[m]))
}

// median of none is 0.
func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	if len(list) == 0 {
		return 0
	}
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}

// middle is the median of something of each.
func middle(list []Window, of func(Window) float64) float64 {
	var all []float64
	for _, w := range list {
		all = append(all, of(w))
	}
	return median(all)
}

// deviation is the standard deviation.
func deviation(list []float64) float64 {
	var sum, squares float64
	for _, x := range list {
		sum += x
		squares += x * x
	}
	n := float64(len(list))
	return math.Sqrt(max(squares-sum*sum/n, 0) / (n - 1))
}

func (t *Trial) verdict(o Outcome, why string) Verdict {
	v := Verdict{Outcome: o, Pairs: len(t.with)}
	for m := range metrics {
		v.Ratios[m] = t.ratio(m)
	}
	v.Level = Level{
		Goodput: middle(t.with, func(w Window) float64 { return w.value(Goodput) }),
		Dropped: middle(t.with, func(w Window) float64 { return float64(w.Dropped) / float64(max(w.Frames, 1)) }),
		Cost:    middle(t.with, func(w Window) float64 { return w.Cost }),
		Wait:    time.Duration(middle(t.with, func(w Window) float64 { return float64(w.Wait) })),
	}
	if v.Reason = why; v.Pairs > 0 {
		v.Reason += fmt.Sprintf(" (%s; %d pairs", v.figures(), v.Pairs)
		if o != Undecided {
			v.Reason += ", 99 % confidence"
		}
		v.Reason += ")"
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

// evidence is what bets have won that a window stands out from those around it: three at once, since
// it is not known before which fits.
type evidence struct{ log [len(steepness)]float64 }

// How much is bet follows from how far the windows are apart, as it should where that scatters
// with a deviation and what one looks for is so much: steepness is the quotient of this and the
// square of that. In the last case hardly anything scatters.
var steepness = [...]float64{4, 12, 60}

// mostBet is never more: a bettor that loses all cannot win again.
const mostBet = 0.95

// bet takes a group's values, of which that at a place is said to stand out, up or down (sign), also
// when so much is added to it.
func (e *evidence) bet(values []float64, place int, more, sign float64) {
	for i, k := range steepness {
		sum := 0.0
		for j, x := range values {
			if j == place {
				x += more
			}
			// Of how much weight it is, of that of the place.
			sum += math.Exp(min(sign*k*(x-values[place]-more), 700))
		}
		e.log[i] += math.Log1p(mostBet * (float64(len(values))/sum - 1))
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
