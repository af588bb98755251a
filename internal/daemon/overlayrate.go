// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

// overlayRate turns the kernel's counts of packets that came out of tunnels into a rate. What GRO has
// joined counts as one. A read takes a pread for each tunnel; a file that is held open keeps neither
// its device nor its namespace.
type overlayRate struct {
	files map[node.DevKey]*os.File
	last  map[node.DevKey]uint64
	other uint64 // that passed the tunnels by
	when  time.Time
	rate  float64
	known bool
}

// read returns the packets a second of all tunnels since the last call, and of those that express handed
// past them; false: there was no call before. For the same time it is read once.
func (o *overlayRate) read(now time.Time, s *node.Scanner, tunnels []node.Tunnel, express uint64) (float64, bool) {
	if now.Equal(o.when) {
		return o.rate, o.known
	}
	if o.files == nil {
		o.files = map[node.DevKey]*os.File{}
	}
	counts := map[node.DevKey]uint64{}
	for _, t := range tunnels {
		n, err := o.count(s, t)
		if err != nil {
			continue // it is gone, or about to be: the next scan says so
		}
		counts[t.Key()] = n
	}
	for key, f := range o.files {
		if _, here := counts[key]; !here {
			f.Close()
			delete(o.files, key)
		}
	}
	since := now.Sub(o.when)
	o.rate, o.known = 0, !o.when.IsZero() && since > 0
	if o.known {
		var packets uint64
		for key, n := range counts {
			if before, ok := o.last[key]; ok && n >= before {
				packets += n - before
			}
		}
		if express >= o.other {
			packets += express - o.other
		}
		o.rate = float64(packets) / since.Seconds()
	}
	o.last, o.other, o.when = counts, express, now
	return o.rate, o.known
}

func (o *overlayRate) count(s *node.Scanner, t node.Tunnel) (uint64, error) {
	f := o.files[t.Key()]
	if f == nil {
		root, err := s.Sysfs(t.NetnsCookie)
		if err != nil {
			return 0, err
		}
		if f, err = root.Open("class/net/" + t.Name + "/statistics/rx_packets"); err != nil {
			return 0, err
		}
		o.files[t.Key()] = f
	}
	var buf [24]byte
	n, err := unix.Pread(int(f.Fd()), buf[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(buf[:n])), 10, 64)
}

func (o *overlayRate) close() {
	for key, f := range o.files {
		f.Close()
		delete(o.files, key)
	}
}

// overlay is the rate of the overlay's packets, in all tunnels; false: it is not known yet.
func (d *Daemon) overlay(now time.Time) (rate float64, known bool, err error) {
	var express uint64
	if d.expr.watchers != nil {
		c, err := d.dp.Counters()
		if err != nil {
			return 0, false, err
		}
		express = c.Express
	}
	rate, known = d.tunnels.read(now, d.scanner, d.snap.Tunnels, express)
	return rate, known, nil
}

// comes tells whether packets come fast, and the overlay's are among them: for what else the node
// receives there is nothing to do.
func (d *Daemon) comes(now time.Time) (bool, error) {
	all, err := d.softnet.read(now)
	if err != nil {
		return false, err
	}
	overlay, known, err := d.overlay(now)
	return all >= d.opts.AsleepBelow && (!known || overlay >= d.opts.AsleepBelow/overlayPart), err
}

// overlayPart is the part of what wakes the daemon that the overlay has to have. Packets that GRO has
// joined count once: of TCP at a gigabit a second there may be two thousand.
const overlayPart = 10
