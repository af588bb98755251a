// SPDX-License-Identifier: Apache-2.0

// Package sense measures: windows of polls for the governor, packets and softirq time by core, the overlay's rate.
package sense

import (
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

// Sensor turns the datapath's totals into windows for the governor.
type Sensor struct {
	Last  []datapath.Core // as read last
	when  time.Time
	Costs governor.Costs
	tasks map[int]float64 // tasks' share of each core, smoothed
	// before: the window that ends next tells nothing of what stages cost now.
	before bool
	came   uint64 // as read last
}

// Relearn forgets what stages cost: from now on packets are others, and fewer or more of them.
func (s *Sensor) Relearn() { s.Costs, s.before = governor.Costs{}, true }

// Read makes the window since the last call. learn tells that all stages run on
// one core now, so that their cost can be measured. The first call has no
// window and returns false.
// receiving is the share of each core's time that softirqs took lately, came the frames that NICs have received.
func (s *Sensor) Read(now time.Time, cores []datapath.Core, configured []int, receiving map[int]float64, came uint64, learn bool) (governor.Input, bool) {
	last, since, first := s.Last, now.Sub(s.when), s.when.IsZero()
	came, s.came = came-s.came, came
	s.Last, s.when = cores, now
	if first || since <= 0 {
		return governor.Input{}, false
	}
	in := governor.Input{Now: now, Cores: map[int]governor.Core{}, Configured: configured}
	var sum costs
	for i := range cores {
		var saturated, movable uint64
		for st := range datapath.Stages {
			d := cores[i].StageNs[st] - last[i].StageNs[st]
			saturated += d
			if datapath.Stage(st) != datapath.NIC {
				movable += d
			}
			sum.ns[st] += d
			sum.packets[st] += cores[i].StagePackets[st] - last[i].StagePackets[st]
			sum.all[st] += cores[i].Packets[st] - last[i].Packets[st]
		}
		all := cores[i].Samples[0] - last[i].Samples[0]
		tasks := cores[i].Samples[3] - last[i].Samples[3]
		c := governor.Core{
			Saturated: min(float64(saturated)/float64(since), 1),
			Rate:      float64(cores[i].Packets[datapath.NIC]-last[i].Packets[datapath.NIC]) / since.Seconds(),
			Overlay:   float64(cores[i].Packets[datapath.Tunnel]-last[i].Packets[datapath.Tunnel]) / since.Seconds(),
		}
		if all > 0 {
			c.Tasks = float64(tasks) / float64(all)
		}
		c.Load = min(s.smooth(i, c.Tasks, since)+receiving[i], 1)
		if saturated > 0 {
			c.Movable = float64(movable) / float64(saturated)
		}
		// A lane's thread makes no polls; that it does not keep up tells enough.
		if cores[i].LaneQueue >= laneBehind {
			typical := s.Costs.OrTypical()
			c.Saturated = 1
			c.Movable = max(c.Movable, (typical.Tunnel+typical.Pod)/(typical.NIC+typical.Tunnel+typical.Pod))
		}
		in.Cores[i] = c
	}
	really := Came(came, sum.all[datapath.NIC])
	for cpu, c := range in.Cores {
		c.Rate *= really
		in.Cores[cpu] = c
	}
	if learn && !s.before {
		s.learn(sum, really)
	}
	s.before = false
	in.Costs = s.Costs
	return in, true
}

// loadFor is over how long tasks' share of a core is smoothed.
const loadFor = time.Second

func (s *Sensor) smooth(core int, tasks float64, since time.Duration) float64 {
	if s.tasks == nil {
		s.tasks = map[int]float64{}
	}
	was, known := s.tasks[core]
	if !known {
		was = tasks
	}
	s.tasks[core] = was + (tasks-was)*min(float64(since)/float64(loadFor), 1)
	return s.tasks[core]
}

// laneBehind is how many frames in a lane are more than bursts leave there.
const laneBehind = 256

// costs are one window's sums over all cores, by stage: time and packets of
// saturated polls, and packets of all.
type costs struct {
	ns, packets, all [datapath.Stages]uint64
}

// fewPackets are too few to tell what is behind.
const fewPackets = 20

// Forget makes the next read begin a window, and nothing is known of the last.
func (s *Sensor) Forget() { s.when, s.tasks = time.Time{}, nil }

// Nothing is a window in which no core had anything to do.
func (s *Sensor) Nothing(now time.Time, configured []int) governor.Input {
	in := governor.Input{Now: now, Cores: map[int]governor.Core{}, Configured: configured, Costs: s.Costs}
	for _, c := range configured {
		in.Cores[c] = governor.Core{}
	}
	return in
}

// minLearn is how many frames of saturated polls a window needs to tell a stage's cost.
const minLearn = 500

// learn follows the stages' costs slowly: a machine's speed changes by half and
// more within seconds. A stage's packets may be many frames each. really is the part of the NICs' frames that came.
func (s *Sensor) learn(sum costs, really float64) {
	if sum.packets[datapath.NIC] < minLearn {
		return
	}
	for st, cost := range map[datapath.Stage]*float64{
		datapath.NIC: &s.Costs.NIC, datapath.Tunnel: &s.Costs.Tunnel, datapath.Pod: &s.Costs.Pod,
	} {
		if sum.packets[st] < fewPackets {
			continue
		}
		now := float64(sum.ns[st]) / float64(sum.packets[st]) * float64(sum.all[st]) / (float64(sum.all[datapath.NIC]) * really)
		if *cost == 0 {
			*cost = now
		} else {
			*cost += (now - *cost) / 8
		}
	}
}
