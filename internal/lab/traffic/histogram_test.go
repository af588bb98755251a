// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/datagram"
)

func TestBucketsFollowOneAnother(t *testing.T) {
	end := uint64(0)
	for i := range 900 {
		from, to := bucket(i)
		if from != end || to <= from {
			t.Fatalf("bucket %d is %d to %d, the one before ends at %d", i, from, to, end)
		}
		if from >= 32 && float64(to-from)/float64(from) > 1./16 {
			t.Errorf("bucket %d, %d to %d, is too wide", i, from, to)
		}
		end = to
	}
}

func TestHistogramIsDescribed(t *testing.T) {
	if _, err := make(Histogram, 976).Latencies(); err == nil {
		t.Error("no time at all is described")
	}
	h := make(Histogram, 976)
	put := func(ns uint64, n uint64) {
		for i := range h {
			if from, to := bucket(i); from <= ns && ns < to {
				h[i] += n
			}
		}
	}
	put(10_000, 980)
	put(1_000_000, 19)
	put(50_000_000, 1)
	l, err := h.Latencies()
	if err != nil {
		t.Fatal(err)
	}
	near := func(name string, got, want time.Duration) {
		t.Helper()
		if d := float64(got-want) / float64(want); d < -1./16 || d > 1./16 {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
	near("min", l.Min, 10*time.Microsecond)
	near("p50", l.P50, 10*time.Microsecond)
	near("p99", l.P99, time.Millisecond)
	near("p99.9", l.P999, time.Millisecond)
	near("longest", l.Max, 50*time.Millisecond)
	near("mean", l.Mean, (980*10+19*1000+50_000)*time.Microsecond/1000)
	if l.Received != 1000 {
		t.Errorf("%d times", l.Received)
	}
}

// The kernel side sorts into the buckets that are read here. The times are so long
// that a slow machine adds nothing to them.
func TestCheckerSortsTimesOfItsFlow(t *testing.T) {
	c, send := newChecker(t, 3)
	stamped := func(flow uint16, seq uint64, ago time.Duration) {
		p := make([]byte, datagram.StampedSize)
		datagram.Put(p, flow, seq, monotonic()-uint64(ago))
		send(p)
	}
	const first, then = 1000 * time.Second, 4000 * time.Second
	stamped(3, 0, first)
	before, err := c.Times()
	if err != nil {
		t.Fatal(err)
	}
	stamped(3, 1, then)
	stamped(3, 2, then)
	stamped(3, 2, first) // a duplicate
	stamped(4, 0, first) // of another flow
	after, err := c.Times()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		h    Histogram
		n    uint64
		want time.Duration
	}{{before, 1, first}, {after.Since(before), 2, then}} {
		l, err := tc.h.Latencies()
		if err != nil {
			t.Fatal(err)
		}
		if l.Received != tc.n || l.Min > tc.want || l.Max < tc.want || l.Max > tc.want+tc.want/8 {
			t.Errorf("%d times from %s to %s, sent: %d of %s", l.Received, l.Min, l.Max, tc.n, tc.want)
		}
	}
}
