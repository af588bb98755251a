// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Judge lets a mechanism act where a trial has shown that it pays. What it has found out it
// remembers, by the situation, and looks at again. The zero value is not ready; use NewJudge.
type Judge struct {
	terms  Terms
	seed   uint64
	known  []Finding // the latest last
	trial  *Trial
	of     Situation // of the trial, before it began
	rest   time.Time // no trial before
	drift  drift
	forgot Finding // the last that drift had it forget
	less   drift   // that as much comes as before the trial
}

// Situation is what a verdict is about.
type Situation struct {
	// Layout names what would act, on which cores.
	Layout string
	// Rate is the frames a second that come.
	Rate float64
	// Without are the frames a second that were received and not dropped before what the mechanism
	// needs was put in place, which may cost by itself; 0: not measured.
	Without float64
}

// Finding is a verdict that is remembered.
type Finding struct {
	Situation
	Verdict
	At    time.Time
	Holds time.Duration // from then on
}

func (f Finding) until() time.Time { return f.At.Add(f.Holds) }

// otherLoad is by how much a rate differs beyond what a machine's speed and the mechanism itself do.
const otherLoad = 5

// of tells whether a rate may be of the load that the verdict is about.
func (f Finding) of(rate float64) bool { return rate <= otherLoad*f.Rate && f.Rate <= otherLoad*rate }

const (
	// mostKnown bounds what is remembered.
	mostKnown = 16
	// A verdict holds so long at first, and twice as long each time that it is confirmed.
	holdsFirst, holdsMost = 30 * time.Second, 10 * time.Minute
	// restFor is the least time from the end of a trial to the next, but of what paid and looks worse.
	restFor = 5 * time.Second
	// lately is for how long it is remembered how much worse that looked.
	lately = 2 * holdsFirst
)

// NewJudge returns one that has not found out anything.
func NewJudge(t Terms, seed uint64) *Judge { return &Judge{terms: t, seed: seed} }

// Trying tells whether a trial is under way: windows are to be short.
func (j *Judge) Trying() bool { return j.trial != nil }

// Known are the verdicts that are remembered, the latest last.
func (j *Judge) Known() []Finding { return slices.Clone(j.known) }

// Leave is for a window in which the mechanism is not asked for.
func (j *Judge) Leave() { j.trial = nil }

// Step takes the window that ended, in a situation in which the mechanism is asked for, and
// returns whether it is to act in the next one, and why.
func (j *Judge) Step(now time.Time, s Situation, w Window) (act bool, reason string) {
	j.handleClockJump(now)
	if j.trial != nil && s.Layout != j.of.Layout {
		j.trial, j.rest = nil, now.Add(restFor)
	}
	if j.trial != nil {
		v, over := j.trial.Add(now, w)
		// A sender that backs off, or is slowed down by the mechanism's program, is slow in windows without, too:
		// pairs do not show it.
		before := max(j.of.Rate, j.of.Without)
		if less := s.Rate < muchLess*before; !over && j.less.detected(now, less, lessFor) {
			v, over = j.trial.verdict(Undecided, ""), true
			v.Reason = fmt.Sprintf("less comes since it is on trial, %.2f times", s.Rate/before)
		}
		if !over {
			return j.trial.On(), j.trial.Progress()
		}
		j.trial, j.rest = nil, now.Add(restFor)
		j.learn(now, v.against(j.of.Without))
	}
	if m, ok := j.remembers(now, s, w); ok {
		return m.Outcome == Better, m.Reason
	}
	j.drift = drift{}
	if now.Before(j.rest) {
		return false, "it has yet to show that it pays with this load"
	}
	j.seed++
	j.trial, j.of, j.less = NewTrial(now, j.terms, j.seed), s, drift{}
	return j.trial.On(), j.trial.Progress()
}

// Bars tells whether it is remembered that a mechanism which is not in place does not pay in a
// situation, and why.
func (j *Judge) Bars(now time.Time, s Situation) (why string, yes bool) {
	j.handleClockJump(now)
	if i := j.find(s.Layout); j.trial != nil || i < 0 || j.known[i].Outcome == Better {
		return "", false
	}
	m, ok := j.remembers(now, s, Window{})
	return m.Reason, ok
}

// against holds a verdict against what was delivered before what the mechanism needs was in place: in
// windows in which it is switched off, that is there as well.
func (v Verdict) against(without float64) Verdict {
	if r := v.Level.Goodput / max(without, 1); v.Outcome == Better && without > 0 && r < worthwhile {
		v.Outcome = Worse
		v.Reason = fmt.Sprintf("%.2f times as much is delivered with it as before its program came (%.0f packets a second), although %s", r, without, v.Reason)
	}
	return v
}

// Stale tells that the time is over for which it was remembered that a mechanism pays.
func (j *Judge) Stale(now time.Time, s Situation) bool {
	i := j.find(s.Layout)
	return j.trial == nil && i >= 0 && j.known[i].Outcome == Better && !now.Before(j.known[i].until())
}

// handleClockJump bounds what a clock that jumped back would have made last for ever.
func (j *Judge) handleClockJump(now time.Time) {
	if j.rest.Sub(now) > restFor {
		j.rest = now
	}
	if now.Before(j.drift.since) {
		j.drift = drift{}
	}
	if now.Before(j.less.since) {
		j.less = drift{}
	}
	for i := range j.known {
		if m := &j.known[i]; now.Before(m.At) {
			m.At = now.Add(-m.Holds)
		}
	}
}

// remembers is what is known of a situation. What paid may have become worse, and what did not may
// pay with another load: then it is forgotten.
func (j *Judge) remembers(now time.Time, s Situation, w Window) (m Finding, ok bool) {
	i := j.find(s.Layout)
	if i < 0 {
		return m, false
	}
	m = j.known[i]
	deviates := m.Outcome == Better && m.Level.suffers(w) || m.Outcome != Better && !m.of(s.Rate)
	if !now.Before(m.until()) {
		return m, false // but how long it held
	}
	if j.drift.detected(now, deviates, driftFor) {
		if j.forgot = m; m.Outcome == Better {
			j.forgot.Level, j.rest = m.Level.worst(w), now
		}
		j.known = slices.Delete(j.known, i, i+1)
		return m, false
	}
	return m, true
}

// find is the place of what is remembered of a layout, or -1.
func (j *Judge) find(layout string) int {
	return slices.IndexFunc(j.known, func(m Finding) bool { return m.Layout == layout })
}

// learn keeps a verdict on the situation of the trial.
func (j *Judge) learn(now time.Time, v Verdict) {
	m := Finding{Situation: j.of, Verdict: v, At: now, Holds: cmp.Or(j.terms.Holds, holdsFirst)}
	// What pays after all, although it looked worse for a while, may look so again.
	if f := j.forgot; f.Outcome == Better && v.Outcome == Better && f.Layout == m.Layout && now.Sub(f.At) < lately {
		m.Level = f.Level
	}
	if i := j.find(j.of.Layout); i >= 0 {
		if (j.known[i].Outcome == Better) == (v.Outcome == Better) {
			m.Holds = min(2*j.known[i].Holds, max(holdsMost, m.Holds))
		}
		j.known = slices.Delete(j.known, i, i+1)
	}
	j.known = append(j.known, m)
	if len(j.known) > mostKnown {
		j.known = j.known[1:]
	}
}

// drift watches whether what was found out still holds. What it goes by, the machine's speed
// changes as well: it does not decide, it asks for a trial.
type drift struct {
	since, last time.Time
	bad, all    int
}

const (
	// driftFor is how long it must look otherwise, in mostly of the windows.
	driftFor = time.Second
	mostly   = 0.8
	// A trial is given up when for lessFor, in mostly of its windows, muchLess came than before.
	lessFor  = 2 * time.Second
	muchLess = 0.8
)

// detected takes a window, of those within which it must look so.
func (d *drift) detected(now time.Time, deviates bool, within time.Duration) bool {
	if d.since.IsZero() || now.Sub(d.last) >= within {
		*d = drift{since: now, last: now}
		return false
	}
	d.last = now
	d.all++
	if deviates {
		d.bad++
	}
	if now.Sub(d.since) < within {
		return false
	}
	bad := float64(d.bad) >= mostly*float64(d.all)
	*d = drift{since: now, last: now}
	return bad
}

// Level is how things were while a mechanism acted, as it paid.
type Level struct {
	// Dropped is the share of frames, the others are as in Window; 0: not measured.
	Goodput, Dropped, Cost float64
	Wait                   time.Duration
}

// worst takes in a window.
func (l Level) worst(w Window) Level {
	if w.Saturated {
		l.Goodput = min(l.Goodput, w.Delivered())
	}
	return Level{
		Goodput: l.Goodput,
		Dropped: max(l.Dropped, float64(w.Dropped)/float64(max(w.Frames, 1))),
		Cost:    max(l.Cost, w.Cost),
		Wait:    max(l.Wait, w.Wait),
	}
}

// suffers tells that a window looks a fifth worse.
func (l Level) suffers(w Window) bool {
	if w.Frames < fewFrames {
		return false
	}
	return float64(w.Dropped)/float64(w.Frames) > l.Dropped+0.2 ||
		w.Saturated && w.Delivered() < 0.8*l.Goodput ||
		l.Cost > 0 && w.Cost > 1.25*l.Cost ||
		l.Wait > 0 && w.Wait > 2*l.Wait
}
