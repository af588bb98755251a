// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"
)

// Whoever moves interrupts to and fro moves nothing of ours with them.
func TestPlacementFollowsPollsThatStay(t *testing.T) {
	lanes := []int{0, 1} // the pod stage comes back to the core that polls
	begin := time.Unix(1000, 0)
	count := func(m *movedPolls, polls func(at time.Duration) []int, from, to time.Duration) (n int) {
		for at := from; at < to; at += 100 * time.Millisecond {
			if core, anew := m.look(begin.Add(at), polls(at), lanes); anew {
				if core != 1 {
					t.Errorf("placed anew for core %d", core)
				}
				n++
			}
		}
		return n
	}
	stay := func(core int) func(time.Duration) []int { return func(time.Duration) []int { return []int{core} } }
	for _, tt := range []struct {
		name  string
		polls func(time.Duration) []int
		want  int
	}{
		{"where it was", stay(0), 0},
		{"on a core without lanes", stay(2), 0},
		{"moved", stay(1), 2}, // nothing has been placed anew here, so it is asked for again
		{"to and fro", func(at time.Duration) []int { return []int{int(at / time.Second % 2)} }, 0},
		{"gone for a window", func(at time.Duration) []int {
			if at%time.Second == 0 {
				return nil
			}
			return []int{1}
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n := count(&movedPolls{at: []int{0}}, tt.polls, 0, 40*time.Second); n != tt.want {
				t.Errorf("placed anew %d times, want %d", n, tt.want)
			}
		})
	}
	m := &movedPolls{at: []int{0}}
	if n := count(m, stay(1), 0, 3*time.Second); n != 1 {
		t.Errorf("placed anew %d times, want once", n)
	}
	m.at = []int{1} // as it was placed then
	if n := count(m, stay(1), 3*time.Second, 100*time.Second); n != 0 {
		t.Errorf("placed anew %d times, and it polls where it did", n)
	}
}
