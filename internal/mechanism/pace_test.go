// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"testing"
	"time"
)

// Whatever a scan costs, and however fast changes come, a twentieth of the time goes into scans;
// but a node is never left alone for long.
func TestScansOfTheNodeTakeATwentiethOfTheTime(t *testing.T) {
	for _, cost := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 40 * time.Millisecond} {
		var p Pace
		begin := time.Unix(1000, 0)
		now, spent := begin, time.Duration(0)
		for now.Sub(begin) < time.Minute {
			if p.Due(now) {
				p.Took(now, cost)
				spent += cost
				now = now.Add(cost)
			}
			now = now.Add(100 * time.Microsecond) // something has changed
		}
		if share := float64(spent) / float64(now.Sub(begin)); share > 1.01/ScanShare {
			t.Errorf("scans of %s take %.3f of the time", cost, share)
		}
		if p.Scans < 2 {
			t.Errorf("with scans of %s, %d in a minute", cost, p.Scans)
		}
	}
	var p Pace
	p.Took(time.Unix(1000, 0), time.Minute)
	if !p.Due(time.Unix(1000, 0).Add(time.Minute)) {
		t.Error("after a scan that took a minute, the node is left alone for longer than another one")
	}
}

// A check comes each second, and later where it takes long, but not for ever.
func TestChecksTakeAShareOfTheTime(t *testing.T) {
	for _, tc := range []struct{ took, next time.Duration }{
		{0, CheckEvery}, {CheckEvery / checkShare, CheckEvery},
		{3 * CheckEvery / checkShare, 3 * CheckEvery}, {time.Minute, checkPause},
	} {
		var c Check
		began := time.Now()
		if !c.Due(began) {
			t.Fatal("the first is not due")
		}
		c.Took(began, tc.took)
		if c.Due(began.Add(tc.next-1)) || !c.Due(began.Add(tc.next)) {
			t.Errorf("one of %s: the next is not due after %s", tc.took, tc.next)
		}
		c.Again()
		if !c.Due(began) {
			t.Errorf("one of %s: not due when asked for", tc.took)
		}
	}
}
