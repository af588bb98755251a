// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Clock counts what receiving costs, from its loading on. It costs each switch of tasks some tens of ns: it is there for
// no longer than something is judged by it.
type Clock struct {
	objs  clockObjects
	links []link.Link
}

// LoadClock starts a clock.
func (d *Datapath) LoadClock() (*Clock, error) {
	c := &Clock{}
	if err := d.loadObject("the programs that tell what receiving costs", loadClock, &c.objs, forAWhile); err != nil {
		return nil, err
	}
	for _, prog := range []*ebpf.Program{c.objs.OlClockEnters, c.objs.OlClockLeaves, c.objs.OlClockSwitches, c.objs.OlClockUnread} {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s: %w", prog, err), c.Close())
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

// Received is what receiving has cost.
type Received struct {
	Busy   time.Duration // of all cores: receive softirqs, and threads that poll devices and lanes
	Unread uint64        // datagrams for which a UDP socket had no room
}

// Read returns what it has cost since the clock started.
func (c *Clock) Read() (r Received, err error) {
	var cores []clockOlClock
	var now unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now), c.objs.OlClocks.Lookup(uint32(0), &cores)); err != nil {
		return r, fmt.Errorf("read what receiving costs: %w", err)
	}
	for _, core := range cores {
		busy := core.Busy
		// What still goes on, as a thread that polls for seconds. What began after the clock was read is none.
		if began := core.Since; core.Softirq+core.Thread > 0 && began < uint64(now.Nano()) {
			busy += uint64(now.Nano()) - began
		}
		r.Busy += time.Duration(busy)
		r.Unread += core.Unread
	}
	return r, nil
}

// Close ends it.
func (c *Clock) Close() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, c.objs.Close())...)
}
