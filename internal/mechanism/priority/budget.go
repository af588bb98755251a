// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"fmt"
	"time"
)

// budget watches for a latency class that takes more of a core than it may.
type budget struct {
	excess uint64            // frames beyond, when it last was too much
	frames map[string]uint64 // of latency rules, then
	cause  string            // what brought most of the class when it last was too much
	seen   time.Time         // that
}

// exceededFor is how long after it happened status tells.
const exceededFor = time.Minute

// exceeded notes that there is more beyond than before.
func (b *budget) exceeded(now time.Time, excess uint64, frames map[string]uint64) {
	b.seen, b.cause = now, "what is small and sparse"
	var most uint64
	for name, n := range frames {
		if more := n - min(b.frames[name], n); more > most {
			most, b.cause = more, fmt.Sprintf("rule %q", name)
		}
	}
	b.excess, b.frames = excess, frames
}

// reason says it in words, or nothing.
func (b *budget) reason(now time.Time) string {
	if b.seen.IsZero() || now.Sub(b.seen) > exceededFor {
		return ""
	}
	return b.cause + " is over budget: latency traffic wants more of a core than it may have, what is beyond joins bulk"
}
