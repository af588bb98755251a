// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/overlane/overlane/internal/lab/bpf"
)

// CPUClock adds up the time that cores spend receiving packets: receive
// softirqs, and the kernel threads it is told of. Generators, checkers and
// probes run in neither. Receive softirqs of the whole machine count, also of
// what else goes on there.
type CPUClock struct {
	objs  bpf.CPUObjects
	links []link.Link
}

// NewCPUClock starts the clock.
func NewCPUClock() (*CPUClock, error) {
	c := &CPUClock{}
	if err := bpf.LoadCPUObjects(&c.objs, nil); err != nil {
		return nil, fmt.Errorf("load CPU clock: %w", err)
	}
	for _, p := range []link.TracingOptions{
		{Program: c.objs.SoftirqEntry}, {Program: c.objs.SoftirqExit}, {Program: c.objs.SchedSwitch},
	} {
		l, err := link.AttachTracing(p)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach CPU clock: %w", err), c.Close())
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

// SetThreads says which kernel threads receive packets.
func (c *CPUClock) SetThreads(tids []int) error {
	var old []uint32
	var key uint32
	var val uint8
	it := c.objs.Threads.Iterate()
	for it.Next(&key, &val) {
		old = append(old, key)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read threads: %w", err)
	}
	for _, k := range old {
		_ = c.objs.Threads.Delete(k)
	}
	for _, tid := range tids {
		if err := c.objs.Threads.Put(uint32(tid), uint8(1)); err != nil {
			return fmt.Errorf("count thread %d: %w", tid, err)
		}
	}
	return nil
}

// Busy returns each core's time since the clock started. A stretch that is
// still going on counts when it ends.
func (c *CPUClock) Busy() (Busy, error) {
	var cores []bpf.CPUCore
	if err := c.objs.Cores.Lookup(uint32(0), &cores); err != nil {
		return nil, fmt.Errorf("read CPU clock: %w", err)
	}
	busy := make(Busy, len(cores))
	for i, c := range cores {
		busy[i] = time.Duration(c.BusyNs)
	}
	return busy, nil
}

// Busy is time by core.
type Busy []time.Duration

// Since returns what was added since an earlier reading.
func (b Busy) Since(before Busy) Busy {
	d := make(Busy, len(b))
	for i := range b {
		d[i] = b[i] - before[i]
	}
	return d
}

// Sum is the time of all cores.
func (b Busy) Sum() (sum time.Duration) {
	for _, d := range b {
		sum += d
	}
	return sum
}

// Close stops the clock.
func (c *CPUClock) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, c.objs.Close())...)
}
