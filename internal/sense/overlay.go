// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"time"

	"github.com/overlane/overlane/internal/node"
)

// Overlay turns the kernel's counts of packets that came out of tunnels into a rate. What GRO has
// joined counts as one.
type Overlay struct {
	files statistics
	last  map[node.DevKey]uint64
	other uint64 // that passed the tunnels by
	when  time.Time
	rate  float64
	known bool
}

// Read returns the packets a second of all tunnels since the last call, and of those that express handed
// past them; false: there was no call before. For the same time it is read once.
func (o *Overlay) Read(now time.Time, s *node.Scanner, tunnels []node.Tunnel, express uint64) (float64, bool) {
	if now.Equal(o.when) {
		return o.rate, o.known
	}
	var devs []node.Dev
	for _, t := range tunnels {
		devs = append(devs, t.Dev)
	}
	counts := o.files.read(s, devs)
	took := now.Sub(o.when)
	o.rate, o.known = 0, !o.when.IsZero() && took > 0
	if o.known {
		packets := since(o.last, counts)
		if express >= o.other {
			packets += express - o.other
		}
		o.rate = float64(packets) / took.Seconds()
	}
	o.last, o.other, o.when = counts, express, now
	return o.rate, o.known
}

// Close lets go of the files.
func (o *Overlay) Close() { o.files.keep(nil) }
