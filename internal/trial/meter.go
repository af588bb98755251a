// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/sense"
)

// Totals are what has been counted since the daemon started, on some cores or on all.
type Totals struct {
	At            time.Time
	Waited        uint64 // ns, in NICs: for each frame that polls claim
	Queued        uint64 // ns that packets waited in backlogs, which lanes are
	NS, Busy, All [datapath.Stages]uint64
	Dropped       uint64
	Came, Polled  uint64 // frames that NICs received, and that their polls claim, on all cores
	Acted, Could  uint64 // packets on which the mechanism acted, of so many
}

// Share tells on how many of how many packets a mechanism acted, by what programs have counted.
type Share func(datapath.Counters) (acted, of uint64, err error)

// Source reads what counts for a trial, of the given cores or, if there are none, of all.
type Source func(of Share, cores []int) (Totals, error)

// Meter measures windows of the whole receive path.
type Meter struct{ from Totals }

// Begin has a window begin here.
func (m *Meter) Begin(t Totals) { m.from = t }

// leastWait is added to each wait: what waits for less is not told apart.
const leastWait = time.Microsecond

// Window is what came since the last call, or since it began; nothing if there was none.
func (m *Meter) Window(t Totals, saturated bool) governor.Window {
	was := m.from
	m.from = t
	if was.At.IsZero() {
		return governor.Window{}
	}
	claimed := float64(t.All[datapath.NIC] - was.All[datapath.NIC])
	frames := claimed * sense.Came(t.Came-was.Came, t.Polled-was.Polled)
	w := governor.Window{Elapsed: t.At.Sub(was.At), Frames: uint64(frames), Dropped: t.Dropped - was.Dropped, Saturated: saturated}
	if w.Frames == 0 {
		return w
	}
	for st := range datapath.Stages {
		if n := t.Busy[st] - was.Busy[st]; n > 0 {
			w.Cost += float64(t.NS[st]-was.NS[st]) / float64(n) * float64(t.All[st]-was.All[st]) / frames
		}
	}
	w.Wait = leastWait + time.Duration(float64(t.Waited-was.Waited)/claimed+float64(t.Queued-was.Queued)/frames)
	if n := t.Could - was.Could; n > 0 {
		w.Acted = min(float64(t.Acted-was.Acted)/float64(n), 1)
	}
	return w
}
