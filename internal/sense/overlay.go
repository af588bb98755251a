// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"cmp"
	"slices"
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
	load  map[node.DevKey]float64 // packets of each tunnel, the older the less
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
	load := map[node.DevKey]float64{}
	for key := range counts {
		load[key] = loadKept*o.load[key] + float64(since(o.last, map[node.DevKey]uint64{key: counts[key]}))
	}
	o.last, o.other, o.when, o.load = counts, express, now, load
	return o.rate, o.known
}

// loadKept is what is kept of a tunnel's load from one window to the next: half of it for a second or two.
const loadKept = 0.9

// Busiest are the tunnels that have received most lately, at most so many. One that stays has to be overtaken by twice
// as much.
func (o *Overlay) Busiest(tunnels []node.Tunnel, most int, stays func(node.DevKey) bool) []node.Tunnel {
	if len(tunnels) <= most {
		return tunnels
	}
	weight := func(t node.Tunnel) float64 {
		if stays(t.Key()) {
			return 2*o.load[t.Key()] + 1
		}
		return o.load[t.Key()]
	}
	sorted := slices.Clone(tunnels)
	slices.SortStableFunc(sorted, func(a, b node.Tunnel) int { return cmp.Compare(weight(b), weight(a)) })
	return sorted[:most]
}

// Close lets go of the files.
func (o *Overlay) Close() { o.files.keep(nil) }
