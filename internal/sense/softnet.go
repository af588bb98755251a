// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"maps"
	"math"
	"time"

	"github.com/prometheus/procfs"

	"github.com/overlane/overlane/internal/polled"
)

// Softnet turns the kernel's count of received packets into rates.
type Softnet struct {
	last map[uint32]uint32 // by core
	when time.Time
	Rate float64 // then
}

// Read returns the packets per second of the core that received most since the
// last call; infinite if there was none lately. For the same time it is read once.
func (s *Softnet) Read(now time.Time) (float64, error) {
	if s.last != nil && now.Equal(s.when) {
		return s.Rate, nil
	}
	stats, err := polled.Softnet()
	if err != nil {
		return 0, err
	}
	last, since := s.last, now.Sub(s.when)
	s.last, s.when = map[uint32]uint32{}, now
	most := 0.0
	if last == nil || since <= 0 || since > time.Second {
		most = math.Inf(1)
	}
	for _, c := range stats {
		s.last[c.Index] = c.Processed
		// Both are cut to 32 bits; a core that has just come had nothing.
		if before, ok := last[c.Index]; ok {
			most = max(most, float64(c.Processed-before)/since.Seconds())
		}
	}
	s.Rate = most
	return most, nil
}

// Backlogs adds up what each core's backlog has dropped.
type Backlogs struct {
	last map[uint32]uint32 // by core
	sum  map[int]uint64
}

// Drops returns the packets since the first call, by core. A core that is offline keeps what it had.
func (b *Backlogs) Drops() (map[int]uint64, error) {
	stats, err := polled.Softnet()
	if err != nil {
		return nil, err
	}
	return b.add(stats), nil
}

func (b *Backlogs) add(stats []procfs.SoftnetStat) map[int]uint64 {
	if b.last == nil {
		b.last, b.sum = map[uint32]uint32{}, map[int]uint64{}
	}
	for _, c := range stats {
		// Both are cut to 32 bits; what a core dropped before it was first seen is not told.
		if before, ok := b.last[c.Index]; ok {
			b.sum[int(c.Index)] += uint64(c.Dropped - before)
		}
		b.last[c.Index] = c.Dropped
	}
	return maps.Clone(b.sum)
}
