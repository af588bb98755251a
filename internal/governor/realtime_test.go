// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

func TestRealTimeEndsInAFlood(t *testing.T) {
	var r Realtime
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		what    string
		long    time.Duration
		polling float64
		want    bool
	}{
		{"nothing", time.Second, 0, true},
		{"much", time.Minute, 0.85, true},
		{"a flood", 100 * time.Millisecond, 0.91, false},
		{"a flood goes on", time.Minute, 0.95, false},
		{"it has just ended", 9 * time.Second, 0.3, false},
		{"it has ended", 2 * time.Second, 0.3, true},
	} {
		var on bool
		var why string
		for end := now.Add(step.long); now.Before(end); {
			now = now.Add(100 * time.Millisecond)
			on, why = r.Step(now, step.polling)
		}
		if on != step.want || strings.HasPrefix(why, "not in real time") == on {
			t.Fatalf("%s: %v, %q", step.what, on, why)
		}
	}
}

// Who is flooded only in real time is so for one window in a hundred.
func TestRealTimeDoesNotStarveAnybody(t *testing.T) {
	var r Realtime
	now, on, windows := time.Unix(1000, 0), 0, 6000
	for range windows {
		now = now.Add(100 * time.Millisecond)
		if is, _ := r.Step(now, 0.5); is {
			on++
			now = now.Add(100 * time.Millisecond)
			r.Step(now, 0.95)
		}
	}
	if share := float64(on) / float64(windows); share > 0.011 {
		t.Errorf("in %.1f %% of the time", share*100)
	}
}
