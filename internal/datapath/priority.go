// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/rules"
)

// Priority is the loaded kernel side of priority: the hook of the NIC, and what
// watches its polls. Like the Datapath that it is part of, its methods are not safe
// for concurrent use.
type Priority struct {
	d    *Datapath
	objs priorityObjects
	poll link.Link
}

// LoadPriority puts priority's programs into the kernel. Nothing is attached to a
// device yet, and without rules all is bulk.
func (d *Datapath) LoadPriority() (*Priority, error) {
	spec, err := loadPriority()
	if err != nil {
		return nil, fmt.Errorf("read priority object: %w", err)
	}
	if err := d.prepare(spec, d.key); err != nil {
		return nil, err
	}
	p := &Priority{d: d}
	if err := spec.LoadAndAssign(&p.objs, &ebpf.CollectionOptions{MapReplacements: d.sharedMaps(spec)}); err != nil {
		return nil, fmt.Errorf("load priority programs: %w", err)
	}
	if p.poll, err = traceWith(p.objs.OlPrioPolled); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close unloads the programs. Attachments are closed one by one before.
func (p *Priority) Close() error {
	var err error
	if p.poll != nil {
		err = p.poll.Close()
	}
	return errors.Join(err, p.objs.Close())
}

// PriorityTuning are the numbers by which bulk makes way.
type PriorityTuning struct {
	// Window is how long after a frame of the latency class bulk goes to the lane.
	Window time.Duration
	// Room is how many frames the lane holds before further ones are refused.
	Room int
}

// SetTuning replaces the tuning.
func (p *Priority) SetTuning(t PriorityTuning) error {
	if t.Room > laneQueue {
		return fmt.Errorf("a lane holds at most %d frames, not %d", laneQueue, t.Room)
	}
	p.d.policy.LatencyWindowUs = uint32(t.Window / time.Microsecond)
	p.d.policy.BulkRoom = uint32(t.Room)
	return p.d.writePolicy()
}

// StartLanes makes the bulk lanes of those of the given cores that have none yet.
// They must be there before the hook is attached.
func (p *Priority) StartLanes(cores []int) error {
	if err := p.d.startLanes(cores); err != nil {
		return err
	}
	for _, core := range cores {
		if err := p.d.yieldLane(core); err != nil {
			return err
		}
	}
	return nil
}

// yieldLane lets whoever wakes up on a lane's core preempt its thread at once. The
// scheduler protects a running task until it has had its slice, but not from one
// whose slice is shorter (kernel/sched/fair.c, PREEMPT_SHORT): so this is the longest.
func (d *Datapath) yieldLane(core int) error {
	var cpu stagesOlCpu
	if err := d.stages.OlCpus.Lookup(uint32(core), &cpu); err != nil {
		return fmt.Errorf("read core %d: %w", core, err)
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Runtime: uint64(100 * time.Millisecond)}
	if err := unix.SchedSetAttr(int(cpu.LanePid), &attr, 0); err != nil {
		return fmt.Errorf("set the slice of the lane on core %d: %w", core, err)
	}
	return nil
}

// AttachXDP hangs the hook on an underlay, in the driver. Closing what it returns
// takes it off again.
func (p *Priority) AttachXDP(dev Device) (io.Closer, error) {
	return attachXDP(dev, p.objs.OlPriorityXdp)
}

// SetRules replaces the rules that give flows their class, all at once: packets
// are judged by the old list or by the new one. An error changes nothing.
func (p *Priority) SetRules(t *rules.Table) error {
	next := p.d.policy.RulesTable ^ 1
	if err := p.dropRules(next); err != nil { // of an attempt that failed
		return err
	}
	var shapes priorityOlShapes
	shapes.Nr = uint32(len(t.Shapes))
	for i, s := range t.Shapes {
		shapes.Shape[i].Fields = s.Fields
		if s.V6 {
			shapes.Shape[i].V6 = 1
		}
		shapes.Shape[i].Mask = *(*[4]uint32)(unsafe.Pointer(&s.Mask))
	}
	for k, m := range t.Keys {
		key := priorityOlRuleKey{
			Addr: *(*[4]uint32)(unsafe.Pointer(&k.Addr)), Vni: k.VNI, Port: k.Port,
			Table: uint8(next), Shape: k.Shape, Proto: k.Proto, Dscp: k.DSCP,
		}
		rule := priorityOlRule{At: uint32(m.Rule), Class: uint32(slices.Index(rules.Classes, m.Class))}
		if err := p.objs.OlRules.Put(&key, &rule); err != nil {
			return errors.Join(fmt.Errorf("write priority rules: %w", err), p.dropRules(next))
		}
	}
	if err := p.objs.OlRuleShapes.Put(next, &shapes); err != nil {
		return errors.Join(fmt.Errorf("write priority rules: %w", err), p.dropRules(next))
	}
	p.d.policy.RulesTable = next
	return p.d.writePolicy()
}

// dropRules empties a table. Cores go over to the other one when their next poll
// begins, so it is done as late as possible: before the next rules come.
func (p *Priority) dropRules(table uint32) error {
	var keys []priorityOlRuleKey
	var k priorityOlRuleKey
	var r priorityOlRule
	it := p.objs.OlRules.Iterate()
	for it.Next(&k, &r) {
		if uint32(k.Table) == table {
			keys = append(keys, k)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read priority rules: %w", err)
	}
	for i := range keys {
		if err := p.objs.OlRules.Delete(&keys[i]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("drop old priority rules: %w", err)
		}
	}
	return nil
}

// Demoted is the number of cores that still send bulk to their lanes, or have some
// there. A core that no frame comes to any more counts until its lane is empty.
func (p *Priority) Demoted() (n int, err error) {
	for cpu := range p.d.cpus {
		var v priorityOlPrio
		if err := p.objs.OlPrios.Lookup(uint32(cpu), &v); err != nil {
			return n, fmt.Errorf("read priority on core %d: %w", cpu, err)
		}
		if v.Demoted == 0 {
			continue
		}
		now, err := Now()
		if err != nil {
			return n, err
		}
		left, err := p.d.laneLeft(cpu)
		if err != nil {
			return n, err
		}
		// The next poll would find that it may go back.
		if left > 0 || uint32(now/1000)-v.Now < 50000 {
			n++
		}
	}
	return n, nil
}

// PriorityCounters are totals since LoadPriority, of frames.
type PriorityCounters struct {
	Latency     uint64 // of the latency class
	LatencyHeld uint64 // of these, sent to the lane behind what their flow had in it
	Bulk        uint64 // of the bulk class
	BulkLane    uint64 // of these, sent to the lane
	Refused     uint64 // dropped since the lane was full
}

// Add is the sum of both.
func (c PriorityCounters) Add(o PriorityCounters) PriorityCounters {
	return PriorityCounters{
		Latency: c.Latency + o.Latency, LatencyHeld: c.LatencyHeld + o.LatencyHeld,
		Bulk: c.Bulk + o.Bulk, BulkLane: c.BulkLane + o.BulkLane, Refused: c.Refused + o.Refused,
	}
}

// Counters reads the totals.
func (p *Priority) Counters() (c PriorityCounters, err error) {
	for cpu := range uint32(p.d.cpus) {
		var v priorityOlPrio
		if err := p.objs.OlPrios.Lookup(cpu, &v); err != nil {
			return c, fmt.Errorf("read priority on core %d: %w", cpu, err)
		}
		at := func(verdict priorityOlPrioVerdict) uint64 { return v.Frames[verdict] }
		c.Latency += at(priorityOlPrioVerdictOL_PRIO_LATENCY) + at(priorityOlPrioVerdictOL_PRIO_LATENCY_LANE)
		c.LatencyHeld += at(priorityOlPrioVerdictOL_PRIO_LATENCY_LANE)
		c.BulkLane += at(priorityOlPrioVerdictOL_PRIO_BULK_LANE)
		c.Refused += at(priorityOlPrioVerdictOL_PRIO_REFUSED)
		c.Bulk += at(priorityOlPrioVerdictOL_PRIO_BULK) + at(priorityOlPrioVerdictOL_PRIO_BULK_LANE) + at(priorityOlPrioVerdictOL_PRIO_REFUSED)
	}
	return c, nil
}
