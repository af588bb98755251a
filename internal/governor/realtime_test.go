// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"slices"
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
		var flooded []int
		var why string
		for end := now.Add(step.long); now.Before(end); {
			now = now.Add(100 * time.Millisecond)
			flooded, why = r.Step(now, map[int]float64{3: step.polling})
		}
		on := len(flooded) == 0
		if on != step.want || strings.Contains(why, "core 3 not in real time") == on {
			t.Fatalf("%s: %v, %q", step.what, flooded, why)
		}
	}
}

// A flood of one queue is no matter of the other queues' cores.
func TestRealTimeEndsWhereTheFloodIs(t *testing.T) {
	var r Realtime
	now := time.Unix(1000, 0)
	for range 20 {
		now = now.Add(100 * time.Millisecond)
		got, why := r.Step(now, map[int]float64{0: 0.2, 1: 0.97, 2: 0.5, 5: 0.95})
		if !slices.Equal(got, []int{1, 5}) || !strings.Contains(why, "core 1") || !strings.Contains(why, "1 more") {
			t.Fatalf("flooded are %v, %q", got, why)
		}
	}
}

// A thread that floods its core only in real time does so in one window of a hundred.
func TestRealTimeStarvesNoOtherTask(t *testing.T) {
	var r Realtime
	now, on, windows := time.Unix(1000, 0), 0, 6000
	for range windows {
		now = now.Add(100 * time.Millisecond)
		if flooded, _ := r.Step(now, map[int]float64{0: 0.5}); len(flooded) == 0 {
			on++
			now = now.Add(100 * time.Millisecond)
			r.Step(now, map[int]float64{0: 0.95})
		}
	}
	if share := float64(on) / float64(windows); share > 0.011 {
		t.Errorf("in %.1f %% of the time", share*100)
	}
}
