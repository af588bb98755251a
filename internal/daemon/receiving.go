// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"github.com/overlane/overlane/internal/polled"
)

// receiving turns the kernel's count of the time in softirqs into shares of each core.
type receiving struct {
	last  map[int]time.Duration
	when  time.Time
	share map[int]float64
}

// receivingEvery is how long a window must be for it: the kernel may count in ticks of up to 10 ms, and
// hundreds of cores are a long text to read.
const receivingEvery = time.Second

// look returns the share of each core's time that softirqs took lately.
func (r *receiving) look(now time.Time) (map[int]float64, error) {
	since := now.Sub(r.when)
	if r.last != nil && since >= 0 && since < receivingEvery {
		return r.share, nil
	}
	took, err := polled.Softirqs()
	if err != nil {
		*r = receiving{}
		return nil, err
	}
	share := map[int]float64{}
	for cpu, t := range took {
		// After a pause the mean of it says nothing of now.
		if was, known := r.last[cpu]; known && since > 0 && since < 3*receivingEvery {
			share[cpu] = min(max(float64(t-was)/float64(since), 0), 1)
		}
	}
	r.last, r.when, r.share = took, now, share
	return share, nil
}
