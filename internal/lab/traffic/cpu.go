// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"slices"
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
	spec, err := bpf.LoadCPU()
	if err == nil {
		err = spec.Variables["self"].Set(int32(os.Getpid()))
	}
	if err == nil {
		err = spec.LoadAndAssign(&c.objs, nil)
	}
	if err != nil {
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

// SetThreads says which kernel threads receive packets. A thread is noticed when it comes onto its core, or when a
// receive softirq ends there. One that was named before counts on meanwhile.
func (c *CPUClock) SetThreads(tids []int) error {
	for _, tid := range tids {
		if err := c.objs.Threads.Put(uint32(tid), uint8(1)); err != nil {
			return fmt.Errorf("count thread %d: %w", tid, err)
		}
	}
	var old []uint32
	var key uint32
	var val uint8
	it := c.objs.Threads.Iterate()
	for it.Next(&key, &val) {
		if !slices.Contains(tids, int(key)) {
			old = append(old, key)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read threads: %w", err)
	}
	for _, k := range old {
		_ = c.objs.Threads.Delete(k)
	}
	return nil
}

// Usage is CPU time since the clock started.
type Usage struct {
	// Cores is the time that each core spent receiving packets.
	Cores []time.Duration
	// Foreign is the time on each core of programs that are not the lab's.
	Foreign []time.Duration
}

// Read reads the clock. The programs add a stretch when it ends: what goes on now, such as a thread that
// polls for seconds, is added here.
func (c *CPUClock) Read() (Usage, error) {
	var cores []bpf.CPUCore
	now := monotonic()
	if err := c.objs.Cores.Lookup(uint32(0), &cores); err != nil {
		return Usage{}, fmt.Errorf("read CPU clock: %w", err)
	}
	var u Usage
	for _, c := range cores {
		busy, foreign := c.BusyNs, c.ForeignNs
		if c.Softirq != 0 || c.Thread != 0 {
			busy += sinceThen(now, c.Since)
		}
		if c.ForeignSince != 0 {
			foreign += sinceThen(now, c.ForeignSince)
		}
		u.Cores = append(u.Cores, time.Duration(busy))
		u.Foreign = append(u.Foreign, time.Duration(foreign))
	}
	return u, nil
}

// sinceThen is 0 for what began after now: the clock was read first.
func sinceThen(now, then uint64) uint64 { return now - min(then, now) }

// Since returns what was added since an earlier reading.
func (u Usage) Since(before Usage) Usage {
	return Usage{Cores: minus(u.Cores, before.Cores), Foreign: minus(u.Foreign, before.Foreign)}
}

func minus[T time.Duration | uint64](a, b []T) []T {
	d := make([]T, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// Busy is the time that all cores spent receiving packets.
func (u Usage) Busy() time.Duration { return sum(u.Cores) }

// Loads are the shares 0..1 of a span that each core spent receiving packets.
func (u Usage) Loads(span time.Duration) []float64 {
	loads := make([]float64, len(u.Cores))
	for core, busy := range u.Cores {
		loads[core] = busy.Seconds() / span.Seconds()
	}
	return loads
}

// Others is the time of other programs on all cores.
func (u Usage) Others() time.Duration { return sum(u.Foreign) }

func sum[T time.Duration | uint64](list []T) (total T) {
	for _, n := range list {
		total += n
	}
	return total
}

// Close stops the clock.
func (c *CPUClock) Close() error {
	return errors.Join(forAll(c.links, link.Link.Close), c.objs.Close())
}
