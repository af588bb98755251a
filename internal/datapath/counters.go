// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// reasonNames are the words for enum ol_reason, in status, log and metrics.
var reasonNames = map[stagesOlReason]string{
	stagesOlReasonOL_OK:                 "ok",
	stagesOlReasonOL_NOT_OVERLAY:        "not-overlay",
	stagesOlReasonOL_SHORT:              "short",
	stagesOlReasonOL_OUTER_VLAN:         "outer-vlan",
	stagesOlReasonOL_OUTER_OPTIONS:      "outer-options",
	stagesOlReasonOL_OUTER_FRAGMENT:     "outer-fragment",
	stagesOlReasonOL_OUTER_EXTENSION:    "outer-extension",
	stagesOlReasonOL_BAD_LENGTH:         "bad-length",
	stagesOlReasonOL_BAD_TUNNEL_HEADER:  "bad-tunnel-header",
	stagesOlReasonOL_INNER_NOT_IP:       "inner-not-ip",
	stagesOlReasonOL_INNER_EXTENSION:    "inner-extension",
	stagesOlReasonOL_INNER_MULTICAST:    "inner-multicast",
	stagesOlReasonOL_FRAGMENT_UNTRACKED: "fragment-untracked",
	stagesOlReasonOL_HEADLESS:           "headers-not-in-first-buffer",
	stagesOlReasonOL_UNFINISHED:         "checksum-left-to-receiver",
}

// Counters are totals since Load, in the order of enum ol_counter.
type Counters struct {
	Overlay     uint64 // packets for our tunnels
	Steered     uint64 // of these, sent to a lane of the tunnel stage
	Pod         uint64 // packets that reached a pod's device from a tunnel
	PodSteered  uint64 // of these, sent to a lane of the pod stage
	LaneChanges uint64 // changes of lane that the order guard let pass
	LaneHeld    uint64 // polls in which a wish for another lane had to wait
	Adopted     uint64 // polls to which a slot came after another core had sent of it
	XDPOverlay  uint64 // frames for our tunnels, as XDP saw them
	XDPLane     uint64 // of these, sent to a cpumap lane
	XDPDrop     uint64 // frames that cpumap lanes lost: full, or without memory
	Split       uint64 // frames of flows that were split when they came
	Microflows  uint64 // runs that these were cut into
	SplitBegun  uint64 // times that a flow began to be split ...
	SplitEnded  uint64 // ... and was whole again
	NoRoom      uint64 // datagrams that were dropped: the merge would have no room for them
	Express     uint64 // frames handed from the NIC straight to a pod ...
	ExpressDrop uint64 // ... that its ring had no room for, or that the kernel refused
	ExpressLeft uint64 // times that a flow left that path before it was seen to be empty
	Unread      uint64 // datagrams for which a UDP socket had no room, while CountUnread
	Refused     uint64 // packets dropped for their flow to leave a full lane
	MergedLost  uint64 // packets dropped behind a resequencer: where to was not known any more

	// Stock counts packets that took the stock path, by reason.
	Stock map[string]uint64
}

// Counters reads the totals.
func (d *Datapath) Counters() (c Counters, err error) {
	if err := readCounters(d.stages.OlCounters, &c); err != nil {
		return c, err
	}
	c.Stock, err = sums(d.stages.OlReasons, reasonNames)
	return c, err
}

// readCounters reads a map of counters into a struct, whose fields are in the order of the map's keys.
func readCounters(m *ebpf.Map, into any) error {
	fields := reflect.ValueOf(into).Elem()
	for key := range m.MaxEntries() {
		n, err := sum(m, key)
		if err != nil {
			return err
		}
		fields.Field(int(key)).SetUint(n)
	}
	return nil
}

// added is the sum of two structs of counters.
func added[T any](a, b T) T {
	to, more := reflect.ValueOf(&a).Elem(), reflect.ValueOf(b)
	for i := range to.NumField() {
		to.Field(i).SetUint(to.Field(i).Uint() + more.Field(i).Uint())
	}
	return a
}

// OverlayOn is Counters.Overlay of each core.
func (d *Datapath) OverlayOn() ([]uint64, error) { return d.on(stagesOlCounterOL_CNT_OVERLAY) }

// XDPOverlayOn is Counters.XDPOverlay of each core.
func (d *Datapath) XDPOverlayOn() ([]uint64, error) { return d.on(stagesOlCounterOL_CNT_XDP_OVERLAY) }

// SplitOn is Counters.Split of each core.
func (d *Datapath) SplitOn() ([]uint64, error) { return d.on(stagesOlCounterOL_CNT_SPLIT) }

// on is what each core has counted.
func (d *Datapath) on(c stagesOlCounter) (packets []uint64, err error) {
	if err := d.stages.OlCounters.Lookup(uint32(c), &packets); err != nil {
		return nil, fmt.Errorf("read counter of cores: %w", err)
	}
	return packets, nil
}

// LanePackets is the number of packets that were sent to a lane.
func (d *Datapath) LanePackets(s Stage, lane int) (uint64, error) {
	return sum(d.stages.OlLanePackets, uint32(int(s)*MaxLanes+lane))
}

func sum(m *ebpf.Map, key uint32) (uint64, error) {
	var values []uint64
	if err := m.Lookup(key, &values); err != nil {
		return 0, fmt.Errorf("read counter %d: %w", key, err)
	}
	var total uint64
	for _, v := range values {
		total += v
	}
	return total, nil
}

// sums are the counters of a map that are not 0, by the names of their keys.
func sums[K ~uint32](m *ebpf.Map, names map[K]string) (map[string]uint64, error) {
	all := map[string]uint64{}
	for key, name := range names {
		n, err := sum(m, uint32(key))
		if err != nil {
			return nil, err
		}
		if n > 0 {
			all[name] = n
		}
	}
	return all, nil
}

// Core is what is known of one core's receive work and tasks, as totals.
type Core struct {
	Polls uint32
	// Safe is the time (CLOCK_MONOTONIC, ns) up to which the backlog is known
	// to have handled what it got; Full: its last poll left work.
	Safe uint64
	Full bool
	// BacklogPoll is which poll was the last of the backlog.
	BacklogPoll uint32
	// Queue is what the backlog's last poll left in it, LaneQueue what is in
	// the ring of the core's cpumap lane.
	Queue, LaneQueue uint32
	// LaneLost are the frames that the cpumap lane lost.
	LaneLost uint64
	// Saturated work per stage: time and packets of polls that followed
	// directly on another.
	StageNs      [Stages]uint64
	StagePackets [Stages]uint64
	// Packets per stage in all polls: frames of the driver, then what GRO left of them. Where many drivers have
	// much to tidy up of what they sent, they count that as frames, too.
	Packets [Stages]uint64
	// Came are the frames that overlane's XDP programs saw.
	Came uint64
	// Samples of what tasks did: all, idle or idle-class, kernel threads, others.
	Samples [4]uint64
	// WaitedNs is how long frames waited in the NIC, at most, while it was not seen empty.
	WaitedNs uint64
	// QueuedNs is how long packets waited that a poll of the backlog had left there.
	QueuedNs uint64
}

// Cores reads every core's numbers.
func (d *Datapath) Cores() (_ []Core, err error) {
	cores := make([]Core, d.cpus)
	for i := range cores {
		var v stagesOlCpu
		if err := d.stages.OlCpus.Lookup(uint32(i), &v); err != nil {
			return nil, fmt.Errorf("read core %d: %w", i, err)
		}
		cores[i].Polls = v.Polled
		cores[i].Safe = v.Backlog.Safe
		cores[i].Full = v.Full != 0
		cores[i].BacklogPoll = v.BacklogSeq
		cores[i].Queue, cores[i].LaneLost = v.Queue, v.LaneLost
		if d.laneThreads[laneThread{i, bulkLane}] {
			if cores[i].LaneQueue, err = d.laneLeft(i); err != nil {
				return nil, err
			}
		}
		for s := range Stages {
			cores[i].Packets[s] = v.Packets[s]
			cores[i].StageNs[s] = v.Cost[s].Ns
			cores[i].StagePackets[s] = v.Cost[s].Packets
		}
		cores[i].Came, cores[i].Samples = v.Came, v.Samples
		cores[i].WaitedNs, cores[i].QueuedNs = v.Waited, v.Queued
	}
	return cores, nil
}

// Now reads the clock that the kernel side uses, in ns.
func Now() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}

// SteeredSeen is what programs have sent to lanes at least: a packet passes more than one of them.
func (c Counters) SteeredSeen() uint64 { return max(c.Steered, c.PodSteered, c.XDPLane) }

// OverlaySeen is what programs have seen of the overlay at least. What was steered is part of what the same program
// saw.
func (c Counters) OverlaySeen() uint64 { return max(c.XDPOverlay, c.Overlay, c.Pod) }
