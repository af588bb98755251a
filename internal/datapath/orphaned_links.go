// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/polled"
)

// OrphanedLinks are the programs of a process that has died, as its Holder has them. They do what they
// did, by what they were told last.
type OrphanedLinks struct {
	d     *Datapath
	prio  Priority
	links map[string][]int
}

// Adopt takes over the descriptors that were held, by their names, in the order in which they came; on
// an error they are closed. It needs no capability of BPF.
func Adopt(held map[string][]int) (*OrphanedLinks, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		err = fmt.Errorf("count CPUs: %w", err)
	}
	o := &OrphanedLinks{d: &Datapath{cpus: cpus, laneThreads: map[laneThread]bool{}}, links: map[string][]int{}}
	for cpu := range cpus {
		o.d.laneThreads[laneThread{cpu, bulkLane}] = true // or none is found there
	}
	o.prio.d = o.d
	s := &o.d.stages
	maps := map[string]**ebpf.Map{
		heldPolicies: &s.OlPolicies, heldCounters: &s.OlCounters, heldCores: &s.OlCpus, heldMergings: &s.OlMergings,
		heldPrios: &o.prio.objs.OlPrios,
	}
	for name, fds := range held {
		var e error
		switch {
		case maps[name] != nil && len(fds) == 1:
			*maps[name], e = ebpf.NewMapFromFD(fds[0])
			delete(maps, name)
		case name == heldLaneLeft && len(fds) == 1:
			o.d.trace.OlLaneLeft, e = ebpf.NewProgramFromFD(fds[0])
		default: // with what is unknown here, which goes with them
			o.links[name] = fds
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("take over %s: %w", name, e))
		}
	}
	if len(maps) > 0 || o.d.trace.OlLaneLeft == nil {
		err = errors.Join(err, errors.New("take over programs: not all was held that they are told by"))
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

// emptyAfter is when lanes that are not empty yet are emptied by refusing what comes.
const emptyAfter = 100 * time.Millisecond

// Drain has all flows drain under the order guard, at once, and waits until lanes are empty, so
// that nothing is overtaken by what takes the stock path. Nothing is sent to lanes any more, also
// where it takes longer than the limit, which is an error.
func (o *OrphanedLinks) Drain(limit time.Duration) (err error) {
	if !o.attached() {
		return nil
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p := &o.d.policy
	if err := o.d.stages.OlPolicies.Lookup(uint32(0), p); err != nil {
		return fmt.Errorf("read policy: %w", err)
	}
	p.Heartbeat = 1 // long ago
	// Bulk makes way for no flow, and no flow is sent behind it.
	p.LatencyWindowUs, p.LatencyShare = 0, 1000
	if err := o.d.writePolicy(); err != nil {
		return err
	}
	defer func() {
		// A flow that comes to another core, or has paused, finds no lane, and nothing is sent to
		// a device that goes.
		for s := range p.Stage {
			p.Stage[s].Nr = 0
		}
		p.MergeIfindex = 0
		p.Flags &^= uint32(stagesOlFlagOL_F_EXPRESS)
		p.ExpressEpoch++
		p.Entries++
		err = errors.Join(err, o.d.writePolicy())
	}()
	var g Draining
	err = Await(ctx, func() (bool, error) {
		sent, err := o.sent()
		if err != nil {
			return false, err
		}
		demoted, err := o.prio.Demoted()
		if err == nil && demoted > 0 && p.BulkRoom > 0 && time.Since(begin) > emptyAfter {
			p.BulkRoom = 0
			err = o.d.writePolicy()
		}
		if still := g.Still(time.Now(), sent); err != nil || !still {
			return false, err
		}
		if demoted > 0 {
			g.waits = fmt.Sprintf("bulk is in the lanes of %d cores", demoted)
			return false, nil
		}
		return o.handled(&g)
	})
	return g.Reason(err)
}

// attached tells whether a program is on any device, and may act: not while polls are not traced.
func (o *OrphanedLinks) attached() bool {
	return len(o.links[heldPolls]) > 0 && len(o.links[heldXDP])+len(o.links[heldTCX]) > 0
}

// sent is how many packets went to lanes.
func (o *OrphanedLinks) sent() (n uint64, err error) {
	for _, c := range []stagesOlCounter{
		stagesOlCounterOL_CNT_STEERED, stagesOlCounterOL_CNT_XDP_LANE, stagesOlCounterOL_CNT_EXPRESS,
		stagesOlCounterOL_CNT_SPLIT,
	} {
		more, err := sum(o.d.stages.OlCounters, uint32(c))
		if err != nil {
			return 0, err
		}
		n += more
	}
	steered, err := sum(o.d.stages.OlCounters, uint32(stagesOlCounterOL_CNT_POD_STEERED))
	if err != nil {
		return 0, err
	}
	more, err := o.d.PodSent(steered)
	return n + more, err
}

// handled tells whether lanes, cores and resequencers have handled what they had.
func (o *OrphanedLinks) handled(g *Draining) (bool, error) {
	online, err := polled.Softnet() // of cores that are online only
	if err != nil {
		return false, err
	}
	return g.Handled(o.d, true, func(core int) bool {
		return !slices.ContainsFunc(online, func(s procfs.SoftnetStat) bool { return int(s.Index) == core })
	})
}

// End takes the programs off, once what is under way has passed, for which it waits for the limit at
// most; 0: it does not. What was set for them to act by has to be gone before.
func (o *OrphanedLinks) End(limit time.Duration) error {
	var err error
	if limit > 0 && o.attached() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		var g Draining
		err = g.Reason(Await(ctx, func() (bool, error) { return o.handled(&g) }))
	}
	return errors.Join(err, o.close())
}

func (o *OrphanedLinks) close() error {
	var errs []error
	if xdp := o.links[heldXDP]; len(xdp) > 0 {
		core := polled.Core()
		for _, fd := range xdp {
			errs = append(errs, polled.On(core, func() error { return unix.Close(fd) }))
		}
		delete(o.links, heldXDP)
	}
	// The hook that sends to the resequencers was attached after the one that sends on from there.
	for _, fd := range slices.Backward(o.links[heldTCX]) {
		errs = append(errs, unix.Close(fd))
	}
	delete(o.links, heldTCX)
	// What is traced is what the order of all others is read from.
	for _, fds := range o.links {
		for _, fd := range fds {
			errs = append(errs, unix.Close(fd))
		}
	}
	o.links = nil
	return errors.Join(append(errs, o.prio.objs.OlPrios.Close(), o.d.Close())...)
}
