// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"testing"
	"time"
)

// Whatever a look costs, and however fast changes come, a twentieth of the time goes into looks;
// but a node is never left alone for long.
func TestLooksAtTheNodeTakeATwentiethOfTheTime(t *testing.T) {
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
		if share := float64(spent) / float64(now.Sub(begin)); share > 1.01/LookShare {
			t.Errorf("looks of %s take %.3f of the time", cost, share)
		}
		if p.Looks < 2 {
			t.Errorf("with looks of %s, %d in a minute", cost, p.Looks)
		}
	}
	var p Pace
	p.Took(time.Unix(1000, 0), time.Minute)
	if !p.Due(time.Unix(1000, 0).Add(time.Minute)) {
		t.Error("after a look that took a minute, the node is left alone for longer than another one")
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
