// SPDX-License-Identifier: Apache-2.0

package governor

import "time"

// Delay finds out how much later packets of split flows have to go on so that each branch has
// brought what comes before them, where they are put in order by time: twice as long as the
// longest of the ways through branches lately took.
type Delay struct {
	unit, most time.Duration
	lately     []waysOf // windows with packets, at most delayWindows
}

// waysOf is what one window showed.
type waysOf struct {
	need           time.Duration
	packets, later uint64 // later than the most that is allowed
}

const (
	delayWindows = 100
	// surely is how many windows are to be seen before less than the most is enough.
	surely = 8
	// One packet of so many may come late before that makes all the others wait.
	fewLate = 10_000
	// tooLate is the share of packets later than the most that ends it, of so many at least.
	tooLate     = 0.01
	lateOfPacks = 1000
)

// NewDelay begins with the most that is allowed. Ways are measured in the unit.
func NewDelay(unit, most time.Duration) *Delay { return &Delay{unit: unit, most: most} }

// Step takes the packets of a window by how long their way took, in units.
func (d *Delay) Step(ways []uint64) {
	var w waysOf
	for i, n := range ways {
		w.packets += n
		if time.Duration(i)*d.unit >= d.most {
			w.later += n
		}
	}
	if w.packets == 0 {
		return
	}
	later := uint64(0)
	for i := len(ways) - 1; i >= 0; i-- {
		if later += ways[i]; later > w.packets/fewLate {
			w.need = time.Duration(i+1) * d.unit
			break
		}
	}
	if len(d.lately) == delayWindows {
		d.lately = d.lately[1:]
	}
	d.lately = append(d.lately, w)
}

// Now is how much later packets are to go on than they were split.
func (d *Delay) Now() time.Duration {
	if len(d.lately) < surely {
		return d.most
	}
	need := time.Duration(0)
	for _, w := range d.lately {
		need = max(need, w.need)
	}
	return min(2*need, d.most)
}

// Exceeded is the share of packets that took longer than is allowed, where that is too much.
func (d *Delay) Exceeded() (share float64, is bool) {
	var packets, later uint64
	for _, w := range d.lately {
		packets += w.packets
		later += w.later
	}
	if packets < lateOfPacks {
		return 0, false
	}
	share = float64(later) / float64(packets)
	return share, share > tooLate
}
