// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"time"

	"github.com/overlane/overlane/internal/polled"
)

// Softirqs turns the kernel's count of the time in softirqs into shares of each core.
type Softirqs struct {
	last  map[int]time.Duration
	when  time.Time
	share map[int]float64
}

// softirqsEvery is how long a window must be for it: the kernel may count in ticks of up to 10 ms, and
// hundreds of cores are a long text to read.
const softirqsEvery = time.Second

// Read returns the share of each core's time that softirqs took lately.
func (r *Softirqs) Read(now time.Time) (map[int]float64, error) {
	since := now.Sub(r.when)
	if r.last != nil && since >= 0 && since < softirqsEvery {
		return r.share, nil
	}
	took, err := polled.Softirqs()
	if err != nil {
		*r = Softirqs{}
		return nil, err
	}
	share := map[int]float64{}
	for cpu, t := range took {
		// After a pause the mean of it says nothing of now.
		if was, known := r.last[cpu]; known && since > 0 && since < 3*softirqsEvery {
			share[cpu] = min(max(float64(t-was)/float64(since), 0), 1)
		}
	}
	r.last, r.when, r.share = took, now, share
	return share, nil
}
