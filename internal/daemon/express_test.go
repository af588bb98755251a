// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/shortcut"
)

// A pod that does not keep up for ten seconds has its ways judged at once, and then ever more
// rarely; one that begins to drop after a pause at once again.
func TestDropsRaiseDoubtsEverMoreRarely(t *testing.T) {
	var d doubt
	judged, last := 0, time.Duration(0)
	for now := time.Duration(0); now < 10*time.Second; now += shortcut.PollEvery {
		if d.raised(true, now-last) {
			judged, last = judged+1, now
			if now == 0 && judged != 1 {
				t.Error("not judged at the first drop")
			}
		}
	}
	if judged < 10 || judged > 16 {
		t.Errorf("judged %d times in ten seconds, want about once a second", judged)
	}
	if d.raised(false, time.Hour) {
		t.Error("judged without a drop")
	}
	if !d.raised(true, 0) {
		t.Error("not judged at the first drop after a pause")
	}
}
