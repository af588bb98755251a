// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
	"github.com/overlane/overlane/internal/rules"
)

// Priority is the loaded kernel side of priority: the hook of the NIC, and what
// watches its polls. Like the Datapath that it is part of, its methods are not safe
// for concurrent use.
type Priority struct {
	d    *Datapath
	objs priorityObjects
	poll link.Link

	rules int  // in force
	host  bool // by them, flows outside of tunnels have a class
	// beside are cores on which NICs are polled in real time, and how their lanes are scheduled.
	beside map[int]LaneSched
}

// LoadPriority puts priority's programs into the kernel. Nothing is attached to a
// device yet, and without rules all is bulk.
func (d *Datapath) LoadPriority() (_ *Priority, err error) {
	p := &Priority{d: d}
	if err := d.needXDP(); err != nil { // they have the express paths in common
		return nil, err
	}
	if err := d.loadObject("priority programs", loadPriority, &p.objs, forAWhile); err != nil {
		return nil, err
	}
	if err := p.forget(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if p.poll, err = d.attachTracing(heldTrace, p.objs.OlPrioPolled); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// forget makes every core one without latency traffic: the pipeline's hooks go by that,
// too, and stay.
func (p *Priority) forget() error {
	for cpu := range uint32(p.d.cpus) {
		if err := p.objs.OlPrios.Put(cpu, priorityOlPrio{}); err != nil {
			return fmt.Errorf("write priority on core %d: %w", cpu, err)
		}
	}
	return nil
}

// Close unloads the programs. Attachments are closed one by one before.
func (p *Priority) Close() error {
	var err error
	if p.poll != nil {
		err = p.poll.Close()
	}
	return errors.Join(err, p.forget(), p.objs.Close())
}

// PriorityTuning are the numbers by which bulk makes way.
type PriorityTuning struct {
	// Window is how long after a frame of the latency class bulk goes to the lane.
	Window time.Duration
	// Room is how many frames a lane holds before further ones are refused.
	Room int
	// LatencyShare is how much of a core's time the latency class may take, from 0
	// to 1. What is beyond joins bulk.
	LatencyShare float64
	// SparseFrames and SparseBytes are what a flow that no rule fits may send in a
	// tenth of a second without being heavy. Zero: such flows are all bulk.
	SparseFrames, SparseBytes int
}

// SetTuning replaces the tuning.
func (p *Priority) SetTuning(t PriorityTuning) error {
	if t.Room > laneQueue {
		return fmt.Errorf("a lane holds at most %d frames, not %d", laneQueue, t.Room)
	}
	policy := &p.d.policy
	policy.LatencyWindowUs = uint32(t.Window / time.Microsecond)
	policy.BulkRoom = uint32(t.Room)
	policy.LatencyShare = uint32(1000 * t.LatencyShare)
	policy.SparseFrames, policy.SparseBytes = uint32(t.SparseFrames), uint32(t.SparseBytes)
	return p.d.writePolicy()
}

// StartLanes makes the bulk lanes of those of the given cores that have none yet, and
// those of the latency class if there shall be two. They must be there before the hook
// is attached.
//
// eager is how the latency class's threads are scheduled.
func (p *Priority) StartLanes(cores []int, two bool, eager LaneSched) error {
	err := p.startLanes(cores, bulkLane, p.bulkSched)
	if err == nil && two {
		err = p.startLanes(cores, latencyLane, func(int) LaneSched { return eager })
	}
	return err
}

func (p *Priority) startLanes(cores []int, class int, sched func(core int) LaneSched) error {
	if err := p.d.startLanes(cores, class); err != nil {
		return err
	}
	return p.tuneLanes(cores, class, sched)
}

// HurryLanes has the threads of bulk lanes scheduled like the latency class's until
// CalmLanes: so that lanes run empty soon, whatever else wants their cores.
func (p *Priority) HurryLanes(cores []int, eager LaneSched) error {
	return p.tuneLanes(cores, bulkLane, func(int) LaneSched { return eager })
}

// CalmLanes undoes HurryLanes.
func (p *Priority) CalmLanes(cores []int) error { return p.tuneLanes(cores, bulkLane, p.bulkSched) }

// BesideRealtime says on which cores NICs are polled in real time: that preempts a bulk lane
// whatever its nice value, which can be the latency class's there.
func (p *Priority) BesideRealtime(cores []int, eager LaneSched) error {
	was := p.beside
	p.beside = map[int]LaneSched{}
	for _, core := range cores {
		p.beside[core] = LaneSched{Nice: eager.Nice, Slice: bulkSlice}
	}
	var changed []int
	for core := range p.d.cpus {
		if was[core] != p.beside[core] {
			changed = append(changed, core)
		}
	}
	return p.CalmLanes(changed)
}

// bulkSched is how a bulk lane is scheduled on a core.
func (p *Priority) bulkSched(core int) LaneSched {
	if s, ok := p.beside[core]; ok {
		return s
	}
	return bulkSched
}

func (p *Priority) tuneLanes(cores []int, class int, sched func(core int) LaneSched) error {
	for _, core := range cores {
		if err := p.d.tuneLane(core, class, sched(core)); err != nil {
			return err
		}
	}
	return nil
}

// LaneSched is how the thread of a lane is scheduled.
type LaneSched struct {
	Nice  int
	Slice time.Duration
}

// bulkSlice is longer than the scheduler's own slices, which are 2.8 ms on machines of
// eight and more cores. Much longer ones are dangerous: beside control groups whose weight
// on a core comes and goes, a lane with a slice of 100 ms did not run for seconds.
const bulkSlice = 5 * time.Millisecond

// bulkSched lets a task that wakes up on a core preempt the thread of its bulk lane at once.
// The scheduler protects a running task until it has had its slice, but not from one
// whose slice is shorter.
var bulkSched = LaneSched{Slice: bulkSlice}

// tuneLane sets how a lane's thread is scheduled. Before 6.12 the kernel ignores slices.
func (d *Datapath) tuneLane(core, class int, s LaneSched) error {
	var cpu stagesOlCpu
	if err := d.stages.OlCpus.Lookup(uint32(core), &cpu); err != nil {
		return fmt.Errorf("read core %d: %w", core, err)
	}
	if cpu.LanePid[class] == 0 {
		return nil // an offline core has no lane, and 0 would be ourselves
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: int32(s.Nice), Runtime: uint64(s.Slice)}
	if err := privilege.With(unix.CAP_SYS_NICE, func() error { return unix.SchedSetAttr(int(cpu.LanePid[class]), &attr, 0) }); err != nil {
		return fmt.Errorf("set the policy of a lane on core %d: %w", core, err)
	}
	return nil
}

// PriorityHook is the hook on one underlay.
type PriorityHook struct {
	link.Link
	p *Priority
}

// AttachXDP attaches the hook on an underlay, in the driver. two: no thread polls it, and the latency
// class has lanes, too, which must be there. A bond never frees a program that is replaced, nor its
// lanes (bond_xdp_set, drivers/net/bonding/bond_main.c), so that there it has to be known at once.
// Closing the hook takes it off again.
func (p *Priority) AttachXDP(dev Device, two bool) (*PriorityHook, error) {
	prog := p.objs.OlPriorityXdp
	if two {
		prog = p.objs.OlPrioTwoXdp
	}
	l, err := p.d.attachXDP(dev, prog)
	if err != nil {
		return nil, err
	}
	return &PriorityHook{l, p}, nil
}

// TwoLanes tells a hook that no thread polls the underlay after all.
func (h *PriorityHook) TwoLanes() error {
	if err := h.Update(h.p.objs.OlPrioTwoXdp); err != nil {
		return fmt.Errorf("change the XDP program: %w", err)
	}
	return nil
}

// SetRules replaces the rules that give flows their class, all at once: packets
// are judged by the old list or by the new one. An error changes nothing.
//
// Flows outside of tunnels have a class as soon as a rule may fit them, and keep having
// one: without, they would overtake what they have in a lane.
func (p *Priority) SetRules(t *rules.Table) error {
	next := p.d.policy.RulesTable ^ 1
	none := make([]uint64, p.d.cpus)
	for i := range uint32(t.Rules) {
		if err := p.objs.OlRuleFrames.Put(p.ruleIndex(next, i), none); err != nil {
			return fmt.Errorf("write priority rules: %w", err)
		}
	}
	if err := p.dropRules(next); err != nil { // of an attempt that failed
		return err
	}
	var shapes priorityOlShapes
	shapes.Nr = uint32(len(t.Shapes))
	host := p.host || t.FitsHost()
	shapes.Host = uint32(bit(host))
	for i, s := range t.Shapes {
		shapes.Shape[i].Fields, shapes.Shape[i].V6 = s.Fields, bit(s.V6)
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
	if err := p.d.writePolicy(); err != nil {
		return err
	}
	p.rules, p.host = t.Rules, host
	return nil
}

// ruleIndex is where the frames of a rule are counted.
func (p *Priority) ruleIndex(table, rule uint32) uint32 {
	return table*uint32(priorityOlLimitOL_MAX_RULES) + rule
}

// RuleFrames counts, for each of the rules in force, the frames that had their class from
// it since SetRules. What came last on a core may not be in it yet.
func (p *Priority) RuleFrames() ([]uint64, error) {
	frames := make([]uint64, p.rules)
	for i := range frames {
		var v []uint64
		if err := p.objs.OlRuleFrames.Lookup(p.ruleIndex(p.d.policy.RulesTable, uint32(i)), &v); err != nil {
			return nil, fmt.Errorf("read frames of rules: %w", err)
		}
		for _, n := range v {
			frames[i] += n
		}
	}
	return frames, nil
}

// SparseFlow is a flow that no rule fits, and that is latency by what it sends.
type SparseFlow struct {
	Src, Dst netip.AddrPort // ports 0 where the protocol has none
	Proto    uint8
	VNI      uint32
	Host     bool // in no tunnel
	Core     int  // that receives it
	// Frames and Bytes are of the last whole tenth of a second that brought any.
	Frames, Bytes int
	// For is how long it has been latency.
	For time.Duration
}

// sparseWindow is OL_SPARSE_WINDOW_US of bpf/priority.h.
const sparseWindow = 100 * time.Millisecond

// SparseFlows are those that sent something in the last second.
func (p *Priority) SparseFlows() (list []SparseFlow, err error) {
	now, err := Now()
	if err != nil {
		return nil, err
	}
	for i := range uint32(priorityOlLimitOL_SPARSE) {
		var v []priorityOlSparse
		if err := p.objs.OlSparseFlows.Lookup(i, &v); err != nil {
			return nil, fmt.Errorf("read sparse flows: %w", err)
		}
		for core, s := range v {
			if s.Used == 0 || int(s.Class) != latencyLane || s.Bound != 0 || uint32(now/1000)-s.Seen > 1e6 {
				continue
			}
			f := SparseFlow{
				Proto: s.Flow.Proto, VNI: uint32(s.Flow.Tail) & 0xffffff, Host: s.Host != 0, Core: core,
				Frames: int(s.WasFrames), Bytes: int(s.WasBytes), For: time.Duration(s.Since) * sparseWindow,
			}
			f.Src, f.Dst = flowEnds(s.Flow.Addr, uint32(s.Flow.Tail>>32), s.Flow.V6 != 0)
			list = append(list, f)
		}
	}
	return list, nil
}

// flowEnds reads struct ol_flow: words in network byte order, the first in memory in the
// upper half of each pair.
func flowEnds(addr [4]uint64, ports uint32, v6 bool) (src, dst netip.AddrPort) {
	var b []byte
	for _, a := range addr {
		b = binary.NativeEndian.AppendUint32(b, uint32(a>>32))
		b = binary.NativeEndian.AppendUint32(b, uint32(a))
	}
	p := binary.NativeEndian.AppendUint32(nil, ports)
	size := 4
	if v6 {
		size = 16
	}
	from, _ := netip.AddrFromSlice(b[:size])
	to, _ := netip.AddrFromSlice(b[size : 2*size])
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(p)), netip.AddrPortFrom(to, binary.BigEndian.Uint16(p[2:]))
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
	Latency       uint64 // of the latency class
	LatencyHeld   uint64 // of these, sent to the bulk lane behind what their flow had in it
	LatencyExcess uint64 // of these, sent to the bulk lane since the class had used up its share
	ShortCut      uint64 // of these, in mode sync: from the tunnel straight to the pod
	Bridged       uint64 // of these, in mode sync: by the bridge all the same
	BulkShortCut  uint64 // of bulk, in mode sync: packets, which GRO may have made of several frames
	BulkBridged   uint64 // the same, by the bridge
	Bulk          uint64 // of the bulk class
	BulkLane      uint64 // of these, sent to the lane
	Refused       uint64 // of either, dropped since the lane was full
}

// Add is the sum of both.
func (c PriorityCounters) Add(o PriorityCounters) PriorityCounters { return added(c, o) }

// Counters reads the totals.
func (p *Priority) Counters() (c PriorityCounters, err error) {
	for cpu := range uint32(p.d.cpus) {
		var v priorityOlPrio
		if err := p.objs.OlPrios.Lookup(cpu, &v); err != nil {
			return c, fmt.Errorf("read priority on core %d: %w", cpu, err)
		}
		for verdict := range v.Frames[bulkLane] {
			c.Bulk += v.Frames[bulkLane][verdict]
			c.Latency += v.Frames[latencyLane][verdict]
		}
		c.LatencyHeld += v.Held
		c.LatencyExcess += v.Excess
		c.ShortCut += v.ShortCut[latencyLane]
		c.Bridged += v.Bridged[latencyLane]
		c.BulkShortCut += v.ShortCut[bulkLane]
		c.BulkBridged += v.Bridged[bulkLane]
		c.BulkLane += v.Frames[bulkLane][priorityOlVerdictOL_VERDICT_BULK_LANE]
		c.Refused += v.Frames[bulkLane][priorityOlVerdictOL_VERDICT_REFUSED] + v.Frames[latencyLane][priorityOlVerdictOL_VERDICT_REFUSED]
	}
	return c, nil
}
