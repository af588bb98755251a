// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

// In a trial a mechanism is switched by the policy map, window by window: for the time of settling
// flows change their lanes, then it is measured. A window that the daemon ends late is the longer.
const (
	trialSettles  = 20 * time.Millisecond
	trialMeasures = 35 * time.Millisecond
)

// trial lets a mechanism show whether it pays.
type trial struct {
	judge *governor.Judge
	meter meter
	share share
	cores []int // whose packets count; nil: all
	// queues: it counts as waiting what packets wait in backlogs, which lanes are. Where it is to be shown
	// that the NIC is served sooner, it does not.
	queues bool
	on     bool // it is to act
	// settles: it has just been switched, and the window is to begin.
	settles bool
	settle  time.Duration // how long that takes; 0: trialSettles
	reason  string        // empty: not asked for
}

// forGoodput: more packets a second, and none of them late for it.
var forGoodput = governor.Terms{
	Goal: governor.Goodput,
	Keep: map[governor.Metric]float64{governor.Goodput: 1, governor.Wait: 0.5},
}

func newTrial(t governor.Terms) trial {
	return trial{judge: governor.NewJudge(t, rand.Uint64()), queues: t.Goal == governor.Goodput}
}

// leave is for a window in which the mechanism is not asked for, or its switch is not in place.
func (t *trial) leave() {
	t.judge.Leave()
	t.meter, t.on, t.settles, t.reason = meter{}, false, false, ""
}

// meter measures windows of the whole receive path.
type meter struct{ from totals }

// totals are what has been counted since the daemon started.
type totals struct {
	at             time.Time
	frames, waited uint64
	queued         uint64 // time that packets waited in backlogs, which lanes are
	ns, busy, all  [datapath.Stages]uint64
	dropped        uint64
	acted, could   uint64 // packets on which the mechanism acted, of so many
}

// share tells on how many of how many packets a mechanism acted.
type share func(datapath.Counters, datapath.PriorityCounters) (acted, of uint64)

// total reads what counts for a trial, of the given cores or, if there are none, of all.
func (d *Daemon) total(s share, only []int) (t totals, err error) {
	cores, err := d.dp.Cores()
	if err != nil {
		return t, err
	}
	counts := func(core int) bool { return only == nil || slices.Contains(only, core) }
	for i := range cores {
		if !counts(i) {
			continue
		}
		t.waited += cores[i].WaitedNs
		t.queued += cores[i].QueuedNs
		for st := range datapath.Stages {
			t.ns[st] += cores[i].StageNs[st]
			t.busy[st] += cores[i].StagePackets[st]
			t.all[st] += cores[i].Packets[st]
		}
	}
	t.frames = t.all[datapath.NIC]
	drops, err := backlogDrops()
	if err != nil {
		return t, err
	}
	for core, n := range drops {
		if counts(core) {
			t.dropped += n
		}
	}
	c, err := d.dp.Counters()
	if err != nil {
		return t, err
	}
	p, err := d.priorityCounters()
	if err != nil {
		return t, err
	}
	m, err := d.pipe.mergeCounters()
	if err != nil {
		return t, err
	}
	t.dropped += c.XDPDrop + c.Refused + c.ExpressDrop + c.Unread + p.Refused + c.NoRoom + m.Refused
	if t.acted, t.could = s(c, p); only != nil {
		overlay, err := d.dp.OverlayOn()
		if err != nil {
			return t, err
		}
		t.could = 0
		for _, core := range only {
			t.could += overlay[core]
		}
	}
	t.at = time.Now()
	return t, nil
}

// totalOf reads what counts for a trial.
func (d *Daemon) totalOf(t *trial) (totals, error) {
	sum, err := d.total(t.share, t.cores)
	if t.queues {
		sum.waited += sum.queued
	}
	return sum, err
}

// leastWait is added to each wait: what waits for less is not told apart.
const leastWait = time.Microsecond

// window is what came since the last call; nothing if there was none.
func (m *meter) window(t totals, saturated bool) governor.Window {
	was := m.from
	m.from = t
	if was.at.IsZero() {
		return governor.Window{}
	}
	w := governor.Window{
		Elapsed: t.at.Sub(was.at), Frames: t.frames - was.frames, Dropped: t.dropped - was.dropped, Saturated: saturated,
	}
	if w.Frames == 0 {
		return w
	}
	frames := float64(w.Frames)
	for st := range datapath.Stages {
		if n := t.busy[st] - was.busy[st]; n > 0 {
			w.Cost += float64(t.ns[st]-was.ns[st]) / float64(n) * float64(t.all[st]-was.all[st]) / frames
		}
	}
	w.Wait = leastWait + time.Duration(float64(t.waited-was.waited)/frames)
	if n := t.could - was.could; n > 0 {
		w.Acted = min(float64(t.acted-was.acted)/float64(n), 1)
	}
	return w
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

// trying is the trial that is under way, or nil.
func (d *Daemon) trying() *trial {
	for _, t := range d.trials() {
		if t.judge.Trying() {
			return t.trial
		}
	}
	return nil
}

// window is how long it is to be until the next window ends.
func (d *Daemon) window() time.Duration {
	t := d.trying()
	switch {
	case t == nil:
		return d.heed.window()
	case t.settles:
		return cmp.Or(t.settle, trialSettles)
	}
	// It began when it was read what has come until then, and the rest of that step took its time.
	return max(trialMeasures-time.Since(t.meter.from.at), time.Millisecond)
}

// settled begins a trial's window, where what is to be measured has just been switched; it returns
// whether that was all.
func (d *Daemon) settled() (bool, error) {
	t := d.trying()
	if t == nil || !t.settles {
		return false, nil
	}
	t.settles = false
	var err error
	t.meter.from, err = d.totalOf(t)
	return true, err
}

// steered tells how many packets went by a lane.
func (d *Daemon) steered(c datapath.Counters, _ datapath.PriorityCounters) (acted, of uint64) {
	if d.pipe.layout.Split {
		return c.Split, max(c.Overlay, c.XDPOverlay)
	}
	return max(c.Steered, c.PodSteered, c.XDPLane), overlayTotal(0, c)
}

// concerns are the cores whose packets a trial of the pipeline counts: those that are helped, and those that
// help. The others' packets would drown what is gained for one core of many.
func (d *Daemon) concerns(helped []int) []int {
	if helped == nil {
		return nil
	}
	cores := slices.Concat(helped, d.pipe.layout.Cores())
	slices.Sort(cores)
	return slices.Compact(cores)
}

// tryOut lets a mechanism whose switch is in place show whether it pays, and returns whether it is
// to act until the next window ends. What counts is the packets of the given cores, or of all (nil). While
// another one is on trial, nothing changes.
func (d *Daemon) tryOut(name string, t *trial, in governor.Input, s governor.Situation, acted share, cores []int) (bool, error) {
	if other := d.trying(); other != nil && other != t {
		return t.on, nil
	}
	t.share = acted
	// A trial keeps to the cores with which it began.
	if !t.judge.Trying() && !slices.Equal(t.cores, cores) {
		t.cores, t.meter = cores, meter{}
	}
	sum, err := d.totalOf(t)
	if err != nil {
		return false, err
	}
	was, trying := t.on, t.judge.Trying()
	t.on, t.reason = t.judge.Step(in.Now, s, t.meter.window(sum, saturated(in)))
	t.settles = t.judge.Trying() && t.on != was
	if now := t.judge.Trying(); now != trying || !now && t.on != was {
		d.log.Info("verdict", "mechanism", name, "acts", t.on, "reason", t.reason)
	}
	return t.on, nil
}

// barred takes a placement away that is known not to pay.
func (t *trial) barred(in *governor.Input) {
	if why, yes := t.judge.Bars(in.Now, situation(*in)); yes && !in.Layout.None() {
		in.Layout = governor.Layout{Gain: in.Layout.Gain, Reason: why}
	}
}

// situation is what a verdict holds for.
func situation(in governor.Input) governor.Situation {
	s := governor.Situation{Layout: in.Layout.Shape()}
	for _, c := range in.Cores {
		s.Rate += c.Rate
	}
	return s
}

// situationOf is what a verdict on the pipeline or on micro-flows holds for. The latter have an XDP program on the
// NIC, which slows down TCP in windows without them as well: they are held against what came before it.
func (d *Daemon) situationOf(name string, in governor.Input) governor.Situation {
	s := situation(in)
	if name == "microflows" {
		s.Without = d.micro.without
	}
	return s
}

// trialOf is a mechanism's.
type trialOf struct {
	name string
	*trial
}

func (d *Daemon) trials() []trialOf {
	return []trialOf{{"pipeline", &d.trial}, {"microflows", &d.micro.trial}, {"priority", &d.demand.trial}, {"express", &d.expr.trial}}
}

// tries tells whether a mechanism is being tried out, or it is measured whether to.
func (d *Daemon) tries(mechanism string) bool {
	switch mechanism {
	case "aggregate":
		return d.aggr.State() == governor.Parked
	case "express":
		if d.expr.gov.Last().State == governor.Parked {
			return true
		}
	}
	return slices.ContainsFunc(d.trials(), func(t trialOf) bool { return t.name == mechanism && t.judge.Trying() })
}

// fillTrials tells what mechanisms have shown.
func (d *Daemon) fillTrials(st *control.Status) {
	for _, m := range d.trials() {
		for _, f := range m.judge.Known() {
			st.Trials = append(st.Trials, control.Trial{
				Mechanism: m.name, Verdict: f.Outcome.String(), Pairs: f.Pairs, At: f.At, Until: f.At.Add(f.Holds),
				Packets: control.Measured(f.Ratios[governor.Goodput]), Cost: control.Measured(inverse(f.Ratios[governor.Cost])), Wait: control.Measured(inverse(f.Ratios[governor.Wait])),
			})
		}
	}
	slices.SortStableFunc(st.Trials, func(a, b control.Trial) int { return a.At.Compare(b.At) })
}

func inverse(x float64) float64 {
	if x == 0 {
		return 0
	}
	return 1 / x
}
