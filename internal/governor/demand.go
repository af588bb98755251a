// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"time"
)

// Demand tells whether flows would profit from priority where the operator has named none: small,
// sparse flows that come beside bulk through a core that is short of time. A census of the flows
// tells, which costs: it is taken only where a core is short of time, and meanwhile the decision is
// Parked; it is Active where priority is worth a trial. The zero value is ready.
type Demand struct {
	inForce
	short time.Time // since when a core has been short of time
	spare time.Time // since when none has
	pause time.Time // no census before
	begun time.Time // of the census
}

// Census is what came out of tunnels while it was taken.
type Census struct {
	// Sparse are the flows that brought little, and what they brought; All is what all did.
	Flows       int
	Sparse, All uint64
}

const (
	// shortFrom is the share of a core's time in saturated polls from which latency suffers,
	// shortFor how long it must last, spareFor how long there must have been none of it until
	// priority goes.
	shortFrom = 0.2
	shortFor  = time.Second
	spareFor  = time.Minute
	// CensusFor is how long a census takes, censusPause the time between two.
	CensusFor   = 300 * time.Millisecond
	censusPause = 20 * time.Second
	// mostSparse is the share of packets above which flows that are sparse by themselves are no
	// few among many: there is no bulk to make way.
	mostSparse = 0.3
)

// Step takes a window: the largest share of a core's time in saturated polls of overlay packets.
func (d *Demand) Step(now time.Time, saturated float64) Decision {
	if d.pause.Sub(now) > censusPause {
		d.pause = now // the clock jumped back
	}
	short := saturated >= shortFrom
	longShort, longSpare := lasts(&d.short, now, short, shortFor), lasts(&d.spare, now, !short, spareFor)
	switch d.last.State {
	case Active:
		if longSpare {
			d.decide(now, Standby, "no core has been short of time for a while")
		}
	case Parked:
	default:
		switch {
		case !short:
			d.decide(now, Standby, "no core is short of time")
		case now.Before(d.pause):
		case !longShort:
			d.decide(now, Standby, "a core has just become short of time")
		default:
			d.begun = now
			d.decide(now, Parked, "it is looked which flows there are")
		}
	}
	return d.last
}

// Counted takes a census.
func (d *Demand) Counted(now time.Time, c Census) Decision {
	d.pause = now.Add(censusPause)
	share := float64(c.Sparse) / float64(max(c.All, 1))
	switch {
	case c.Flows == 0:
		d.decide(now, Standby, fmt.Sprintf("no small, sparse flow comes beside bulk; looked at again every %v", censusPause))
	case share > mostSparse:
		d.decide(now, Standby, fmt.Sprintf("%.0f %% of the packets are of small, sparse flows: there is little bulk to make way; looked at again every %v", share*100, censusPause))
	default:
		d.decide(now, Active, fmt.Sprintf("%d small, sparse flows come beside bulk, through a core that is short of time", c.Flows))
	}
	return d.last
}

// Over tells that a census has lasted long enough.
func (d *Demand) Over(now time.Time) bool { return now.Sub(d.begun) >= CensusFor }

// Refuse ends it for a while.
func (d *Demand) Refuse(now time.Time, why string) {
	d.pause = now.Add(censusPause)
	d.decide(now, Standby, why)
}
