// SPDX-License-Identifier: Apache-2.0

// Package stages looks at which core does what to a packet that is received
// through an overlay, and in which order NAPIs are polled. Its tests hold what
// the product says of itself against that.
package stages

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// Role is what a device is in the overlay.
type Role = tracerRole

// The roles. As the role of a poll, Backlog stands for a core's backlog.
const (
	Backlog = tracerRoleROLE_NONE
	Wire    = tracerRoleROLE_WIRE
	Tunnel  = tracerRoleROLE_TUNNEL
	HostEnd = tracerRoleROLE_HOST_END
	Pod     = tracerRoleROLE_POD
	// Of a poll only: a batch that a lane's thread takes, of bulk or of latency.
	BulkLane    = tracerRoleROLE_LANE
	LatencyLane = tracerRoleROLE_EAGER_LANE
)

// Place is where packets are counted, in the order in which they come by.
type Place = tracerPlace

// The places.
const (
	Polled   = tracerPlacePLACE_POLLED   // by the NIC's NAPI
	Underlay = tracerPlacePLACE_UNDERLAY // into the stack, as the NIC's
	Cell     = tracerPlacePLACE_CELL     // out of the tunnel's GRO cell, where they were decapsulated
	Inner    = tracerPlacePLACE_TUNNEL   // into the stack, as the tunnel's
	Bridged  = tracerPlacePLACE_BRIDGED  // to the host end of the pod's veth
	InPod    = tracerPlacePLACE_POD      // into the pod's stack
	Places   = int(tracerPlaceNR_PLACES)
)

// Tracer watches the devices that it is told of.
type Tracer struct {
	objs  tracerObjects
	links []link.Link
}

// NewTracer starts to watch, at first nothing.
func NewTracer() (*Tracer, error) {
	t := &Tracer{}
	if err := loadTracerObjects(&t.objs, nil); err != nil {
		return nil, fmt.Errorf("load tracer: %w", err)
	}
	for _, p := range []*ebpf.Program{t.objs.NapiPoll, t.objs.Lane, t.objs.Receive, t.objs.Transmit} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach tracer: %w", err), t.Close())
		}
		t.links = append(t.links, l)
	}
	return t, nil
}

// Watch tells what a device is.
func (t *Tracer) Watch(ns *netns.Handle, dev string, role Role) error {
	var ifi *net.Interface
	if err := ns.Do(func() (err error) {
		ifi, err = net.InterfaceByName(dev)
		return err
	}); err != nil {
		return fmt.Errorf("watch %s: %w", dev, err)
	}
	key := tracerDevice{Ifindex: uint32(ifi.Index), Netns: uint32(ns.Inode())}
	if err := t.objs.Devices.Put(key, uint32(role)); err != nil {
		return fmt.Errorf("watch %s: %w", dev, err)
	}
	return nil
}

// WatchLanes has the batches recorded that a process's cpumap threads take.
func (t *Tracer) WatchLanes(pid int) error {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		return err
	}
	found := 0
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue // closed since
		}
		if !strings.Contains(string(info), fmt.Sprintf("map_type:\t%d\n", ebpf.CPUMap)) {
			continue
		}
		_, rest, _ := strings.Cut(string(info), "map_id:\t")
		number, _, _ := strings.Cut(rest, "\n")
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return fmt.Errorf("watch lanes: %s: %w", file, err)
		}
		if err := t.objs.Lanes.Put(uint32(id), uint32(1)); err != nil {
			return fmt.Errorf("watch lanes: %w", err)
		}
		found++
	}
	if found == 0 {
		return fmt.Errorf("watch lanes: process %d holds no cpumap", pid)
	}
	return nil
}

// Counts are packets by place and core.
type Counts [Places][]uint64

// Counts returns what has come by so far.
func (t *Tracer) Counts() (Counts, error) {
	var c Counts
	var cores []tracerCore
	if err := t.objs.Cores.Lookup(uint32(0), &cores); err != nil {
		return c, fmt.Errorf("read tracer: %w", err)
	}
	for place := range c {
		c[place] = make([]uint64, len(cores))
		for cpu := range cores {
			c[place][cpu] = cores[cpu].Places[place]
		}
	}
	return c, nil
}

// Since returns what came by after an earlier reading.
func (c Counts) Since(before Counts) Counts {
	var d Counts
	for place := range c {
		d[place] = make([]uint64, len(c[place]))
		for cpu := range d[place] {
			d[place][cpu] = c[place][cpu] - before[place][cpu]
		}
	}
	return d
}

// Total is the number of packets that came by a place.
func (c Counts) Total(p Place) (n uint64) {
	for _, k := range c[p] {
		n += k
	}
	return n
}

// Share is the part of a place's packets that were on the given cores.
func (c Counts) Share(p Place, cores ...int) float64 {
	var n uint64
	for _, cpu := range cores {
		n += c[p][cpu]
	}
	return float64(n) / float64(max(c.Total(p), 1))
}

// Poll is one poll of a NAPI that had packets of the overlay.
type Poll struct {
	CPU  int
	Role Role
	Work int // as the NAPI counts
	// Tunnel and Pod are the packets that entered the stack as those devices'
	// since the poll before. They tell what a backlog was polled for.
	Tunnel, Pod int
}

// Record begins a new record of polls.
func (t *Tracer) Record() error {
	if err := errors.Join(t.objs.Recording.Set(uint32(0)), t.objs.Recorded.Set(uint32(0)), t.objs.Recording.Set(uint32(1))); err != nil {
		return fmt.Errorf("start record: %w", err)
	}
	return nil
}

// Recorded ends the record when it is long enough, and says so. It holds a few
// thousand polls.
func (t *Tracer) Recorded(enough int) ([]Poll, bool, error) {
	var n uint32
	if err := t.objs.Recorded.Get(&n); err != nil {
		return nil, false, fmt.Errorf("read record: %w", err)
	}
	if n = min(n, t.objs.Polls.MaxEntries()); int(n) < enough {
		return nil, false, nil
	}
	if err := t.objs.Recording.Set(uint32(0)); err != nil {
		return nil, false, fmt.Errorf("end record: %w", err)
	}
	polls := make([]Poll, n)
	for i := range polls {
		var p tracerPoll
		if err := t.objs.Polls.Lookup(uint32(i), &p); err != nil {
			return nil, false, fmt.Errorf("read record: %w", err)
		}
		polls[i] = Poll{CPU: int(p.Cpu), Role: Role(p.Role), Work: int(p.Work),
			Tunnel: int(p.Received[Tunnel]), Pod: int(p.Received[Pod])}
	}
	return polls, true, nil
}

// Close stops watching.
func (t *Tracer) Close() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, t.objs.Close())...)
}
