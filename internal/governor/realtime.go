// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"time"
)

// Realtime decides when the threads that poll NICs run in real time. By the fair scheduler, one
// that wakes up right after it has slept preempts a task only if it has not had more than its
// share; if it has, it waits for the next tick, up to 10 ms, whatever its weight. Where nobody
// but the lanes wants the core, they soon run empty, and the fair scheduler does better. In real
// time it must not take the core altogether: who is flooded goes back at once.
type Realtime struct {
	on     bool
	reason string
	quiet  time.Time // since when tasks hardly want the cores
	pause  time.Time // not before
}

// RealtimeWindow is what was seen since the last one.
type RealtimeWindow struct {
	// Tasks is the largest share of a NIC's core that programs had, 0 to 1.
	Tasks float64
	// Polling is the largest share of a core that a thread took which polls a NIC.
	Polling float64
}

const (
	// realtimeFrom and realtimeUntil are shares of a core that programs have.
	realtimeFrom  = 0.1
	realtimeUntil = 0.03
	realtimeFor   = 10 * time.Second
	// realtimeMost is how much of a core one may take in real time: the kernel lets no
	// real-time task have more than 95 %, in a second.
	realtimeMost  = 0.9
	realtimePause = 10 * time.Second
)

// Step takes a window. It returns whether they run in real time after it, and why, "" if not.
func (r *Realtime) Step(now time.Time, w RealtimeWindow) (on bool, reason string) {
	if w.Tasks >= realtimeUntil {
		r.quiet = now
	}
	switch {
	case r.on && w.Polling > realtimeMost:
		r.on, r.pause = false, now.Add(realtimePause)
	case r.on && now.Sub(r.quiet) >= realtimeFor:
		r.on = false
	case !r.on && w.Tasks >= realtimeFrom && !now.Before(r.pause):
		r.on = true
		r.reason = fmt.Sprintf("real time for the NICs' threads: programs want their cores (%.0f %% of one)", w.Tasks*100)
	}
	if !r.on {
		r.reason = ""
	}
	return r.on, r.reason
}
