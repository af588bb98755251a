// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/governor"
)

// An elephant is much for its own core, however much the other cores of the node receive.
func TestAnElephantIsSeenAmongManyOtherFlows(t *testing.T) {
	costs := governor.Costs{NIC: 900, Tunnel: 1200, Pod: 600}
	for _, c := range []struct {
		name             string
		elephant, others float64 // frames a second
		fruitless        bool
	}{
		{"alone", 300e3, 0, false},
		{"a twentieth of the node's", 300e3, 6e6, false},
		{"no elephant", 3e3, 6e6, true},
		{"little, on an idle node", 30e3, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := microflows{}
			in := governor.Input{Costs: costs, Cores: map[int]governor.Core{0: {Rate: c.elephant + c.others}}}
			for s := range 3 {
				in.Now = time.Unix(1000+int64(s), 0)
				m.look(in, splitOn{
					all:   []uint64{0, uint64((c.elephant + c.others/2) * float64(s)), uint64(c.others / 2 * float64(s))},
					split: []uint64{0, uint64(c.elephant * float64(s)), 0},
				})
			}
			if got := m.fruitless(in.Now); got != c.fruitless {
				t.Errorf("fruitless: %t, elephants take %v of a core", got, m.elephants)
			}
			if len(m.elephants) != 1 || m.elephants[1] == 0 {
				t.Errorf("elephants are polled on cores %v", m.elephants)
			}
			if want := []int{1, 2}; c.others > c.elephant && !slices.Equal(m.nic, want) {
				t.Errorf("cores %v poll, want %v", m.nic, want)
			}
		})
	}
}
