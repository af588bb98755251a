// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"io"
	"math"
	"time"

	"github.com/cilium/ebpf"
)

// MaxMergeDelay is what the kernel side can count in.
const MaxMergeDelay = time.Duration(math.MaxInt32)

// Ways is how many times the ways through branches are told apart by.
const Ways = int(resequenceOlLimitOL_WAYS)

// Resequencer is what has the kernel's fq put split flows in order again, by time.
type Resequencer struct {
	d    *Datapath
	objs resequenceObjects
	last [Ways]uint64
}

// LoadResequencer puts the program into the kernel. unit is what it measures the ways
// through branches in: the last that it tells apart is so many times Ways, or longer.
func (d *Datapath) LoadResequencer(unit time.Duration) (*Resequencer, error) {
	r := &Resequencer{d: d}
	err := d.loadObjectWith("the program for order by time", loadResequence, &r.objs, map[string]any{"ol_way_unit_ns": uint64(max(unit, 1))})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Attach hangs the program on the egress of a merge point's device. Closing what it returns
// takes it off again.
func (r *Resequencer) Attach(dev Device) (io.Closer, error) {
	return r.d.attachTCX(dev, ebpf.AttachTCXEgress, r.objs.OlMergeRelease)
}

// Ways are the packets since the last time by how long their way through a branch took, in
// units.
func (r *Resequencer) Ways() (ways [Ways]uint64, err error) {
	var cores []resequenceOlWays
	if err := r.objs.OlWayCounts.Lookup(uint32(0), &cores); err != nil {
		return ways, fmt.Errorf("read ways through branches: %w", err)
	}
	for i := range ways {
		var n uint64
		for _, c := range cores {
			n += c.Packets[i]
		}
		ways[i], r.last[i] = n-r.last[i], n
	}
	return ways, nil
}

// Counters reads the totals, in the words of a qdisc of ours: what had to wait is what came
// behind later packets.
func (r *Resequencer) Counters() (c MergeCounters, err error) {
	for key, field := range map[resequenceOlResequenceCounter]*uint64{
		resequenceOlResequenceCounterOL_RESEQUENCE_FIRST:     &c.Passed,
		resequenceOlResequenceCounterOL_RESEQUENCE_OVERTAKEN: &c.Held,
		resequenceOlResequenceCounterOL_RESEQUENCE_LATE:      &c.Expired,
		resequenceOlResequenceCounterOL_RESEQUENCE_UNKNOWN:   &c.Untracked,
	} {
		if *field, err = sum(r.objs.OlResequenceCounters, uint32(key)); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Close unloads the program. Attachments are closed one by one before.
func (r *Resequencer) Close() error { return r.objs.Close() }

// SetMergeDelay tells how much later than they were split packets of split flows go on behind
// their merge points; 0: there they are put in order by number.
func (d *Datapath) SetMergeDelay(delay time.Duration) error {
	if delay < 0 || delay > MaxMergeDelay {
		return fmt.Errorf("set delay of split flows: %v, at most %v can be", delay, MaxMergeDelay)
	}
	d.policy.MergeDelay = uint32(delay)
	return d.writePolicy()
}
