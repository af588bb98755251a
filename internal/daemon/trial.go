// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/sense"
	"github.com/overlane/overlane/internal/trial"
)

// total reads what counts for a trial, of the given cores or, if there are none, of all.
func (d *Daemon) total(s trial.Share, only []int) (t trial.Totals, err error) {
	cores, err := d.dp.Cores()
	if err != nil {
		return t, err
	}
	counts := func(core int) bool { return only == nil || slices.Contains(only, core) }
	for i := range cores {
		if !counts(i) {
			continue
		}
		t.Waited += cores[i].WaitedNs
		t.Queued += cores[i].QueuedNs
		for st := range datapath.Stages {
			t.NS[st] += cores[i].StageNs[st]
			t.Busy[st] += cores[i].StagePackets[st]
			t.All[st] += cores[i].Packets[st]
		}
	}
	t.Frames = t.All[datapath.NIC]
	drops, err := sense.BacklogDrops()
	if err != nil {
		return t, err
	}
	for core, n := range drops {
		if counts(core) {
			t.Dropped += n
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
	t.Dropped += c.XDPDrop + c.Refused + c.ExpressDrop + c.Unread + p.Refused + c.NoRoom + m.Refused
	if t.Acted, t.Could = s(c, p); only != nil {
		overlay, err := d.dp.OverlayOn()
		if err != nil {
			return t, err
		}
		t.Could = 0
		for _, core := range only {
			t.Could += overlay[core]
		}
	}
	t.At = time.Now()
	return t, nil
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

// situationOf is what a verdict on the pipeline or on micro-flows holds for. The latter have an XDP program on the
// NIC, which slows down TCP in windows without them as well: they are held against what came before it.
func (d *Daemon) situationOf(name string, in governor.Input) governor.Situation {
	s := trial.Situation(in)
	if name == "microflows" {
		s.Without = d.micro.without
	}
	return s
}

// newTrials makes the trials, and express, which has its own.
func (d *Daemon) newTrials() {
	d.trial, d.micro.trial = trial.New("pipeline", trial.ForGoodput, trial.Settles), trial.New("microflows", trial.ForGoodput, trial.Settles)
	d.demand.trial = trial.New("priority", forLatency, trial.Settles)
	ways := trial.New("express", trial.ForGoodput, express.Settles)
	d.expr = express.New(others{d.host, d}, d.opts.Express, ways, d.since)
	d.trials = trial.NewTrials(d.log, d.total, d.trial, d.micro.trial, d.demand.trial, ways)
}

// window is how long it is to be until the next window ends.
func (d *Daemon) window() time.Duration { return d.trials.Window(d.sampling.window()) }

// tries tells whether a mechanism is being tried out, or it is measured whether to.
func (d *Daemon) tries(mechanism string) bool {
	switch mechanism {
	case "aggregate":
		return d.aggr.Watches()
	case "express":
		if d.expr.Measuring() {
			return true
		}
	}
	return d.trials.Tries(mechanism)
}
