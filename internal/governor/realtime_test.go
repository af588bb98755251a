// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

func TestRealTimeIsForCoresThatProgramsWant(t *testing.T) {
	var r Realtime
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		what string
		long time.Duration
		w    RealtimeWindow
		want bool
	}{
		{"nobody", time.Second, RealtimeWindow{}, false},
		{"hardly anybody", 20 * time.Second, RealtimeWindow{Tasks: 0.09, Polling: 0.9}, false},
		{"a program", 100 * time.Millisecond, RealtimeWindow{Tasks: 0.5, Polling: 0.3}, true},
		{"less of it", 20 * time.Second, RealtimeWindow{Tasks: 0.05, Polling: 0.3}, true},
		{"a pause", 9 * time.Second, RealtimeWindow{Polling: 0.3}, true},
		{"again", time.Second, RealtimeWindow{Tasks: 0.5, Polling: 0.3}, true},
		{"a long pause", 11 * time.Second, RealtimeWindow{Polling: 0.3}, false},
		{"once more", 100 * time.Millisecond, RealtimeWindow{Tasks: 0.5}, true},
		{"a flood", 100 * time.Millisecond, RealtimeWindow{Tasks: 0.1, Polling: 0.91}, false},
		{"a flood goes on", 9 * time.Second, RealtimeWindow{Tasks: 0.5, Polling: 0.91}, false},
		{"a flood has ended", 2 * time.Second, RealtimeWindow{Tasks: 0.5, Polling: 0.3}, true},
	} {
		var on bool
		var reason string
		for end := now.Add(step.long); now.Before(end); {
			now = now.Add(100 * time.Millisecond)
			on, reason = r.Step(now, step.w)
		}
		if on != step.want || strings.Contains(reason, "programs want") != on {
			t.Fatalf("%s: %v, %q", step.what, on, reason)
		}
	}
}

// In a flood that does not end, the NIC's thread runs in real time for one window in a hundred.
func TestRealTimeDoesNotStarveAnybody(t *testing.T) {
	var r Realtime
	now, on, windows := time.Unix(1000, 0), 0, 6000
	for range windows {
		now = now.Add(100 * time.Millisecond)
		if is, _ := r.Step(now, RealtimeWindow{Tasks: 0.2, Polling: 0.95}); is {
			on++
		}
	}
	if share := float64(on) / float64(windows); share > 0.011 {
		t.Errorf("in %.1f %% of the time", share*100)
	}
}
