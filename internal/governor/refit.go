// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"slices"
	"time"
)

// Refit tells when lanes do not fit any more, and are to be placed anew: what is in place is taken off
// first, its flows drained. The zero value is ready.
type Refit struct {
	since time.Time // when it was first seen
	acted time.Time // when that was said last
}

const (
	// refitFor is how long it must be so: an operator, or irqbalance, may move several interrupts, or
	// move them back.
	refitFor = 2 * time.Second
	// refitAgain is the least time from one placement for it to the next. irqbalance looks every 10 s.
	refitAgain = 30 * time.Second
	// grown is the part of a core by which the path of what a lane polls itself must have grown since. Loads
	// that go up and down by a third move no lane, however full it is.
	grown = 0.5
)

// InPlace is a placement that is in place.
type InPlace struct {
	Layout Layout
	// Cores are the machine's, as they were when it was made.
	Cores map[int]Core
}

// Step takes a window: what is in place, what the governor decided, and the placement that would be made
// now. It returns why lanes are to be placed anew, or nothing.
func (r *Refit) Step(in Input, at InPlace, dec Decision, would Layout) string {
	why := misfit(in, at, dec, would)
	if !lasts(&r.since, in.Now, why != "", refitFor) || !r.acted.IsZero() && in.Now.Sub(r.acted) < refitAgain {
		return ""
	}
	r.since, r.acted = time.Time{}, in.Now
	return why
}

// Leave is for a window in which no lane is in place that could be another.
func (r *Refit) Leave() { r.since = time.Time{} }

// moved tells whether NICs are polled only where lanes are, and on no core that polled them when these were placed:
// an operator or irqbalance has moved the interrupt.
func (in Input) moved(at InPlace) (core int, yes bool) {
	polled, lanes := Input{Cores: at.Cores}.Pollers(), at.Layout.Cores()
	stays := func(core int) bool { return !slices.Contains(lanes, core) || slices.Contains(polled, core) }
	now := in.Pollers()
	if len(now) == 0 || slices.ContainsFunc(now, stays) {
		return 0, false
	}
	return now[0], true
}

func misfit(in Input, at InPlace, dec Decision, would Layout) string {
	lanes := at.Layout.Cores()
	if at.Layout.Split {
		for _, core := range dec.Avoid {
			more := dec.State != Active || len(would.Cores()) > len(lanes)-len(dec.Avoid)
			if more && !would.None() && !slices.Contains(would.Cores(), core) {
				return fmt.Sprintf("tasks need core %d, and there are others", core)
			}
		}
		for _, s := range would.Sets {
			if at.Layout.Lacks([]int{s.Of}) {
				return fmt.Sprintf("core %d polls elephants, and there are cores for branches of their own", s.Of)
			}
		}
		return ""
	}
	for _, core := range lanes {
		if c := in.Cores[core]; in.path(c)-in.path(at.Cores[core]) >= grown && c.Load > 1-least {
			return fmt.Sprintf("core %d is full, and polls the NIC for %.0f %% of its time, %.0f %% when it became a lane", core, in.path(c)*100, in.path(at.Cores[core])*100)
		}
	}
	if moved, ok := in.moved(at); ok {
		return fmt.Sprintf("the NIC is polled on core %d since, which takes work of its own", moved)
	}
	if would.None() {
		return ""
	}
	for _, core := range dec.Avoid {
		if !slices.Contains(would.Cores(), core) && len(would.Cores()) >= len(lanes) {
			return fmt.Sprintf("tasks need core %d, and there are others", core)
		}
	}
	if helps := at.Layout.Helps; helps > 0 && len(dec.Short) > helps && would.Helps > helps {
		return fmt.Sprintf("%d cores are saturated, and the lanes keep up with %d", len(dec.Short), helps)
	}
	return ""
}
