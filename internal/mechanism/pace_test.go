// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"testing"
	"testing/synctest"
	"time"
)

// Whatever a full scan costs, and however fast changes come, a twentieth of the time goes into scans;
// but a node is never left alone for long.
func TestFullScansTakeATwentiethOfTheTime(t *testing.T) {
	for _, cost := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 40 * time.Millisecond, scanPause / ScanShare} {
		var p Pace
		begin := time.Unix(1000, 0)
		now, spent := begin, time.Duration(0)
		for now.Sub(begin) < 2*time.Minute {
			if p.Due(now) {
				now = now.Add(cost)
				spent += cost
				p.Took(now, cost)
			}
			now = now.Add(100 * time.Microsecond) // something has changed
		}
		if share := float64(spent) / float64(now.Sub(begin)); share > 1.01/ScanShare {
			t.Errorf("scans of %s take %.3f of the time", cost, share)
		}
		if p.Scans < 2 {
			t.Errorf("with scans of %s, %d in two minutes", cost, p.Scans)
		}
	}
	var p Pace
	ended := time.Unix(1000, 0)
	p.Took(ended, time.Minute)
	if p.Due(ended) || !p.Due(ended.Add(scanPause)) {
		t.Errorf("after a scan that took a minute, the node is not left alone for %s", scanPause)
	}
}

// A pause counts from when a scan or a check has ended, however long it took.
func TestAPauseFollowsWhatTookLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Pace
		var c Check
		began := time.Now()
		time.Sleep(time.Minute)
		p.Scanned(began)
		c.Made(began)
		if p.Due(time.Now()) || c.Due(time.Now()) {
			t.Error("the next one is due at once")
		}
	})
}

// A check comes each second, and later where it takes long, but not for ever.
func TestChecksTakeAShareOfTheTime(t *testing.T) {
	for _, tc := range []struct{ took, next time.Duration }{
		{0, CheckEvery}, {CheckEvery / checkShare, CheckEvery},
		{3 * CheckEvery / checkShare, 3 * CheckEvery}, {time.Minute, checkPause},
	} {
		var c Check
		ended := time.Now()
		if !c.Due(ended) {
			t.Fatal("the first is not due")
		}
		c.Took(ended, tc.took)
		if c.Due(ended.Add(tc.next-1)) || !c.Due(ended.Add(tc.next)) {
			t.Errorf("one of %s: the next is not due after %s", tc.took, tc.next)
		}
		c.Again()
		if !c.Due(ended) {
			t.Errorf("one of %s: not due when asked for", tc.took)
		}
	}
}
