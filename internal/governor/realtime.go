// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"time"
)

// Realtime decides when the threads that poll NICs run in real time: unless they are flooded. By
// the fair scheduler a thread that wakes up right after it has slept preempts another one only if
// it has not had more than its share; if it has, it waits for the next tick, up to 10 ms,
// whatever its weight. In real time it does not, but must not take the core altogether.
// The zero value is ready.
type Realtime struct {
	flooded bool
	pause   time.Time // not before
	reason  string
}

const (
	// realtimeMost is how much of a core a thread may take in real time: the kernel lets all of
	// them have 95 %, in a second.
	realtimeMost  = 0.9
	realtimePause = 10 * time.Second
)

// Step takes a window: the largest share of a core that these threads took. It returns
// whether they run in real time after it, and if not, why.
func (r *Realtime) Step(now time.Time, polling float64) (on bool, why string) {
	switch {
	case polling > realtimeMost:
		r.flooded, r.pause = true, now.Add(realtimePause)
		r.reason = fmt.Sprintf("not in real time: NICs' threads take %.0f %% of a core", polling*100)
	case !now.Before(r.pause):
		r.flooded, r.reason = false, ""
	}
	return !r.flooded, r.reason
}
