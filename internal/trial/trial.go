// SPDX-License-Identifier: Apache-2.0

// Package trial lets mechanisms show whether they pay: one at a time, each switched by a policy map, window by window.
package trial

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/governor"
)

// For the time of settling flows change their lanes, then it is measured. A window that the daemon ends late is the
// longer.
const (
	Settles  = 20 * time.Millisecond
	measures = 35 * time.Millisecond
)

// ForGoodput: more packets a second, and none of them late for it.
var ForGoodput = governor.Terms{
	Goal: governor.Goodput,
	Keep: map[governor.Metric]float64{governor.Goodput: 1, governor.Wait: 0.5},
}

// Trial is a mechanism's.
type Trial struct {
	Name  string
	Judge *governor.Judge
	meter Meter
	share Share
	cores []int // whose packets count; nil: all
	// queues: it counts as waiting what packets wait in backlogs, which lanes are. Where it is to be shown
	// that the NIC is served sooner, it does not.
	queues bool
	on     bool // it is to act
	// settling: it has just been switched, and the window is to begin.
	settling bool
	settle   time.Duration // how long that takes
	reason   string        // empty: not asked for
}

// New is a mechanism's, by such terms. settle is how long it takes flows to follow a switch.
func New(name string, terms governor.Terms, settle time.Duration) *Trial {
	return &Trial{Name: name, Judge: governor.NewJudge(terms, rand.Uint64()), queues: terms.Goal == governor.Goodput, settle: settle}
}

// On tells whether the mechanism is to act until the next window ends.
func (t *Trial) On() bool { return t.on }

// Reason is why, empty where it was not asked for.
func (t *Trial) Reason() string { return t.reason }

// Leave is for a window in which the mechanism is not asked for, or its switch is not in place.
func (t *Trial) Leave() {
	t.Judge.Leave()
	t.meter, t.on, t.settling, t.reason = Meter{}, false, false, ""
}

// Bar takes a placement away that is known not to pay.
func (t *Trial) Bar(in *governor.Input) {
	if why, yes := t.Judge.Bars(in.Now, Situation(*in)); yes && !in.Layout.None() {
		in.Layout = governor.Layout{Gain: in.Layout.Gain, Reason: why}
	}
}

// Situation is what a verdict holds for.
func Situation(in governor.Input) governor.Situation {
	s := governor.Situation{Layout: in.Layout.Shape()}
	for _, c := range in.Cores {
		s.Rate += c.Rate
	}
	return s
}

// saturated tells whether a core could do no more.
func saturated(in governor.Input) bool {
	for _, c := range in.Cores {
		if c.Saturated > 0.5 {
			return true
		}
	}
	return false
}

// Trials are all of a daemon's, of which one at a time is under way.
type Trials struct {
	all []*Trial
	// Count reads what counts for a trial.
	Count Source
	log   *slog.Logger
}

// NewTrials are these. count reads what windows are made of.
func NewTrials(log *slog.Logger, count Source, all ...*Trial) *Trials {
	return &Trials{all: all, Count: count, log: log}
}

// Trying is the one that is under way, or nil.
func (ts *Trials) Trying() *Trial {
	for _, t := range ts.all {
		if t.Judge.Trying() {
			return t
		}
	}
	return nil
}

// Tries tells whether a mechanism's is under way.
func (ts *Trials) Tries(name string) bool {
	t := ts.Trying()
	return t != nil && t.Name == name
}

// Window is how long it is to be until the next window ends; idle, where nothing is tried.
func (ts *Trials) Window(idle time.Duration) time.Duration {
	t := ts.Trying()
	switch {
	case t == nil:
		return idle
	case t.settling:
		return t.settle
	}
	// It began when it was read what has come until then, and the rest of that step took its time.
	return max(measures-time.Since(t.meter.from.At), time.Millisecond)
}

// Settled begins a window, where what is to be measured has just been switched; it returns
// whether that was all.
func (ts *Trials) Settled() (bool, error) {
	t := ts.Trying()
	if t == nil || !t.settling {
		return false, nil
	}
	t.settling = false
	total, err := ts.total(t)
	t.meter.Begin(total)
	return true, err
}

// total reads what counts for a trial.
func (ts *Trials) total(t *Trial) (Totals, error) {
	sum, err := ts.Count(t.share, t.cores)
	if !t.queues {
		sum.Queued = 0
	}
	return sum, err
}

// Try lets a mechanism whose switch is in place show whether it pays, and returns whether it is
// to act until the next window ends. What counts is the packets of the given cores, or of all (nil). While
// another one is on trial, nothing changes.
func (ts *Trials) Try(t *Trial, in governor.Input, s governor.Situation, acted Share, cores []int) (bool, error) {
	if other := ts.Trying(); other != nil && other != t {
		return t.on, nil
	}
	t.share = acted
	// A trial keeps to the cores with which it began.
	if !t.Judge.Trying() && !slices.Equal(t.cores, cores) {
		t.cores, t.meter = cores, Meter{}
	}
	sum, err := ts.total(t)
	if err != nil {
		return false, err
	}
	was, trying := t.on, t.Judge.Trying()
	t.on, t.reason = t.Judge.Step(in.Now, s, t.meter.Window(sum, saturated(in)))
	t.settling = t.Judge.Trying() && t.on != was
	if now := t.Judge.Trying(); now != trying || !now && t.on != was {
		ts.log.Info("verdict", "mechanism", t.Name, "acts", t.on, "reason", t.reason)
	}
	return t.on, nil
}

// Report tells what mechanisms have shown, the oldest first.
func (ts *Trials) Report() []control.Trial {
	var list []control.Trial
	for _, t := range ts.all {
		for _, f := range t.Judge.Known() {
			list = append(list, control.Trial{
				Mechanism: t.Name, Verdict: f.Outcome.String(), Pairs: f.Pairs, At: f.At, Until: f.At.Add(f.Holds),
				Packets: control.Measured(f.Ratios[governor.Goodput]), Cost: control.Measured(inverse(f.Ratios[governor.Cost])), Wait: control.Measured(inverse(f.Ratios[governor.Wait])),
			})
		}
	}
	slices.SortStableFunc(list, func(a, b control.Trial) int { return a.At.Compare(b.At) })
	return list
}

func inverse(x float64) float64 {
	if x == 0 {
		return 0
	}
	return 1 / x
}
