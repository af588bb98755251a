// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Histogram counts times from sending to the socket layer by buckets: one for each
// of the first 32 ns, then 16 for each power of two.
type Histogram []uint64

// Times returns those of the checker's latency flow so far.
func (c *Checker) Times() (Histogram, error) {
	h := make(Histogram, c.objs.Latency.MaxEntries())
	for i := range h {
		var cores []uint64
		if err := c.objs.Latency.Lookup(uint32(i), &cores); err != nil {
			return nil, fmt.Errorf("read checker: times: %w", err)
		}
		h[i] = sum(cores)
	}
	return h, nil
}

// Since returns what was added after an earlier reading.
func (h Histogram) Since(before Histogram) Histogram { return minus(h, before) }

// bucket returns the times that bucket i stands for: from is the first of them, to
// the first after them.
func bucket(i int) (from, to uint64) {
	if i < 32 {
		return uint64(i), uint64(i) + 1
	}
	e := i/16 - 1
	v := uint64(i - 16*e)
	return v << e, (v + 1) << e
}

// Latencies describes the times, at least one. Within a bucket they are taken for evenly
// spread, so a figure is wrong by the sixteenth part at most.
func (h Histogram) Latencies() (l Latencies, err error) {
	var sum float64
	last := 0
	for i, n := range h {
		if n == 0 {
			continue
		}
		from, to := bucket(i)
		if l.Received == 0 {
			l.Min = time.Duration(from)
		}
		l.Received += n
		sum += float64(n) * (float64(from) + float64(to)) / 2
		last = i
	}
	if l.Received == 0 {
		return l, errors.New("no datagram that says when it was sent has arrived")
	}
	l.Sent = l.Received
	l.Mean = time.Duration(sum / float64(l.Received))
	l.P50, l.P99, l.P999 = h.at(l.Received, 0.5), h.at(l.Received, 0.99), h.at(l.Received, 0.999)
	_, to := bucket(last)
	l.Max = time.Duration(to)
	return l, nil
}

func (h Histogram) at(total uint64, q float64) time.Duration {
	rank := q * float64(total)
	for i, n := range h {
		if n > 0 && rank <= float64(n) {
			from, to := bucket(i)
			return time.Duration(float64(from) + float64(to-from)*max(rank, 0)/float64(n))
		}
		rank -= float64(n)
	}
	return math.MaxInt64
}
