// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Realtime decides on which cores the threads that poll NICs run in real time: where they are not
// flooded. By the fair scheduler a thread that wakes up right after it has slept preempts another one only
// if it has not had more than its share; if it has, it waits for the next tick, up to 10 ms,
// whatever its weight. In real time it does not, but must not take the core altogether.
// The zero value is ready.
type Realtime struct {
	flooded map[int]flood
}

type flood struct {
	until time.Time // not before
	share float64   // of the core, when it was last too much
}

const (
	// realtimeMost is how much of a core a thread may take in real time: the kernel lets all of
	// them have 95 %, in a second.
	realtimeMost  = 0.9
	realtimePause = 10 * time.Second
)

// Step takes a window: the share of each core that these threads took. It returns the cores on which
// they do not run in real time after it, sorted, and why.
func (r *Realtime) Step(now time.Time, polling map[int]float64) (flooded []int, why string) {
	if r.flooded == nil {
		r.flooded = map[int]flood{}
	}
	for core, share := range polling {
		if share > realtimeMost {
			r.flooded[core] = flood{now.Add(realtimePause), share}
		}
	}
	maps.DeleteFunc(r.flooded, func(_ int, f flood) bool { return !now.Before(f.until) })
	flooded = slices.Sorted(maps.Keys(r.flooded))
	if len(flooded) == 0 {
		return nil, ""
	}
	worst := slices.MaxFunc(flooded, func(a, b int) int { return cmp.Compare(r.flooded[a].share, r.flooded[b].share) })
	why = fmt.Sprintf("on core %d not in real time: the NIC's threads take %.0f %% of it", worst, r.flooded[worst].share*100)
	if n := len(flooded) - 1; n > 0 {
		why += fmt.Sprintf(" (and on %d more)", n)
	}
	return flooded, why
}
