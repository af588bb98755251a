// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

// Lanes follow a NIC whose polls have moved to them, however little comes; they stay where some core polls on that
// polled it when they were placed.
func TestLanesFollowANICThatMoves(t *testing.T) {
	l := Layout{Tunnel: []int{1}, Pod: []int{0}}
	for _, tt := range []struct {
		name  string
		then  map[int]Core
		now   map[int]Core
		moves bool
	}{
		{"moved", map[int]Core{0: {Overlay: 5000}}, map[int]Core{1: {Overlay: 5000}}, true},
		{"as it was", map[int]Core{0: {Overlay: 5000}}, map[int]Core{0: {Overlay: 5000}}, false},
		{"on a lane as well", map[int]Core{0: {Overlay: 5000}}, map[int]Core{0: {Overlay: 5000}, 1: {Overlay: 5000}}, false},
		{"to a core that is no lane", map[int]Core{0: {Overlay: 5000}}, map[int]Core{2: {Overlay: 5000}}, false},
		{"nothing comes", map[int]Core{0: {Overlay: 5000}}, map[int]Core{}, false},
	} {
		var r Refit
		why := ""
		for now := time.Unix(1000, 0); now.Before(time.Unix(1000, 0).Add(3*refitFor)) && why == ""; now = now.Add(100 * time.Millisecond) {
			in := Input{Now: now, Layout: l, Cores: tt.now}
			why = r.Step(in, InPlace{l, tt.then}, Decision{State: Active}, l)
		}
		if moves := strings.Contains(why, "polled on core 1 since"); moves != tt.moves || !moves && why != "" {
			t.Errorf("%s: %q", tt.name, why)
		}
	}
}
