// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// MaxBranches is how many lanes one flow can be split over.
const MaxBranches = int(stagesOlLimitOL_BRANCHES)

// MaxSets is how many sets of branches there can be: the first is that of flows that stay whole.
const MaxSets = int(stagesOlLimitOL_SETS) - 1

// MaxBatch is the most frames of a micro-flow: resequencers have room for two of them, of each branch.
const MaxBatch = int(stagesOlLimitOL_MERGE_DEPTH) / 2

// splitWindow is OL_SPLIT_WINDOW_NS of bpf/split.h.
const splitWindow = 10 * time.Millisecond

// Split says which flows are cut into micro-flows, and how.
type Split struct {
	// UDP says that UDP flows may be split, Numbered that they are put in order again by
	// numbers that XDP gives them; else they are not.
	UDP, Numbered bool
	// TCP says that TCP flows may be split: there are resequencers.
	TCP bool
	// Batch is the frames of a micro-flow; 0: no flow is split any more.
	Batch int
	// Frames and Bytes a second: more make a flow an elephant.
	Frames, Bytes float64
	// At is the stage whose lanes are the branches: NIC or Tunnel.
	At Stage
	// Second: with lanes of the nic stage, what they have done that stage for goes on to
	// the tunnel stage's lane of the same place.
	Second bool
	// Here: the core that polls takes its part of each flow, beside them.
	Here bool
}

// SetSplit replaces what is split.
func (d *Datapath) SetSplit(s Split) error {
	if s.Batch < 0 || s.Batch > MaxBatch {
		return fmt.Errorf("set what is split: micro-flows of %d frames, at most %d can be", s.Batch, MaxBatch)
	}
	p := &d.policy
	p.SplitBatch = uint32(s.Batch)
	p.SplitFrames, p.SplitBytes = perWindow(s.Frames), perWindow(s.Bytes)
	setFlag(&p.SplitProtos, stagesOlSplitProtoOL_SPLIT_UDP, s.UDP)
	setFlag(&p.SplitProtos, stagesOlSplitProtoOL_SPLIT_NUMBERED, s.Numbered)
	setFlag(&p.SplitProtos, stagesOlSplitProtoOL_SPLIT_TCP, s.TCP)
	p.SplitHere = bit(s.Here)
	p.SplitStage, p.SplitSecond = uint8(s.At), bit(s.Second)
	return d.writePolicy()
}

// Branches are a set of lanes that take the micro-flows of elephants.
type Branches struct {
	Cores  []int // of the lanes; no other set has them
	Behind int   // the core of the pod stage's lane on which the flows go on behind a resequencer
}

// SetBranches tells by which branches the flows are split that a core polls: set returns the place of
// the set, -1 where they stay whole. at is the stage whose lanes the branches are. It must not be called while
// a flow is split, and comes behind SetLanes.
func (d *Datapath) SetBranches(at Stage, sets []Branches, set func(core int) int) error {
	if len(sets) > MaxSets {
		return fmt.Errorf("set branches: %d sets, at most %d can be used", len(sets), MaxSets)
	}
	p := &d.policy
	clear(p.Set[:])
	clear(p.SetOf[:])
	clear(p.Branch[:])
	for i, b := range sets {
		if len(b.Cores) > MaxBranches {
			return fmt.Errorf("set branches: %d cores in one set, at most %d can be", len(b.Cores), MaxBranches)
		}
		s := &p.Set[i+1]
		s.Nr, s.Behind = uint8(len(b.Cores)), uint8(max(d.laneOn(Pod, b.Behind), 0))
		for branch, core := range b.Cores {
			lane := d.laneOn(at, core)
			if lane < 0 {
				return fmt.Errorf("set branches: core %d is no lane of stage %s", core, at)
			}
			s.Lane[branch], p.Branch[lane] = uint8(lane), uint8(branch)
		}
	}
	for core := range d.cpus {
		p.SetOf[core] = uint8(set(core) + 1)
	}
	return d.writePolicy()
}

// laneOn is the place of a core among the lanes of a stage, or -1.
func (d *Datapath) laneOn(s Stage, core int) int {
	lanes := &d.policy.Stage[s]
	return slices.Index(lanes.Cpu[:lanes.Nr], uint16(core))
}

// SetMergeDevice tells the index of the devices with resequencers, in each namespace.
func (d *Datapath) SetMergeDevice(ifindex int) error {
	d.policy.MergeIfindex = uint32(ifindex)
	return d.writePolicy()
}

// MergeEnded tells whether a resequencer has ended since SetMergeReady.
func (d *Datapath) MergeEnded() (bool, error) {
	var ended uint32
	if err := d.stages.OlMergeEnded.Lookup(uint32(0), &ended); err != nil {
		return false, fmt.Errorf("ask whether resequencers are there: %w", err)
	}
	return ended != 0, nil
}

// SetMergeReady tells that there is a resequencer in each namespace that shall have one. When
// one ends, flows go by none until this is said again.
func (d *Datapath) SetMergeReady() error {
	if err := d.stages.OlMergeEnded.Put(uint32(0), uint32(0)); err != nil {
		return fmt.Errorf("tell that resequencers are there: %w", err)
	}
	return nil
}

// Numbers tells whether all frames could take their numbers along so far: some drivers
// know no XDP metadata.
func (d *Datapath) Numbers() (bool, error) {
	why, err := d.unnumbered()
	return why&unnumberedByDriver == 0, err
}

// SetNumbering tells whether numbers would do any good on the frames' way. Flows that have
// them come to rest whole when they would not.
func (d *Datapath) SetNumbering(good bool) error {
	why, err := d.unnumbered()
	if err != nil {
		return err
	}
	set := why | unnumberedByLoader
	if good {
		set = why &^ unnumberedByLoader
	}
	if set == why {
		return nil
	}
	if err := d.stages.OlUnnumbered.Put(uint32(0), set); err != nil {
		return fmt.Errorf("tell whether frames get numbers: %w", err)
	}
	return nil
}

const (
	unnumberedByDriver = uint32(stagesOlUnnumberedByOL_BY_DRIVER)
	unnumberedByLoader = uint32(stagesOlUnnumberedByOL_BY_LOADER)
)

func (d *Datapath) unnumbered() (why uint32, err error) {
	if err = d.stages.OlUnnumbered.Lookup(uint32(0), &why); err != nil {
		err = fmt.Errorf("ask whether frames get numbers: %w", err)
	}
	return why, err
}

// ForgetSplit tells that nothing that was split is under way any more: flows that came
// to rest while they were split begin anew as whole ones.
func (d *Datapath) ForgetSplit() error {
	d.policy.SplitEpoch++
	return d.writePolicy()
}

func perWindow(rate float64) uint32 {
	n := rate * splitWindow.Seconds()
	if n >= math.MaxUint32 {
		return math.MaxUint32
	}
	return uint32(n)
}
