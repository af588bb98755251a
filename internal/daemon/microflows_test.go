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

// Where datagrams are joined UDP flows stay whole: nothing is loaded and attached to find that out, unless
// enough of a core goes to other frames.
func TestWhatIsJoinedIsNotTriedToSplit(t *testing.T) {
	costs := governor.Costs{NIC: 2000, Tunnel: 300, Pod: 2500} // a core is saturated by 208e3 frames a second
	for _, c := range []struct {
		name      string
		aggregate governor.Mode
		joins     float64
		micro     Microflows
		whole     bool
	}{
		{"all is joined", governor.Forced, 207e3, Microflows{}, true},
		{"nearly all", governor.Forced, 170e3, Microflows{}, true},
		{"half", governor.Forced, 104e3, Microflows{}, false},
		{"nothing", governor.Forced, 0, Microflows{}, false},
		{"it is watched", governor.Auto, 0, Microflows{}, true},
		{"no aggregation", governor.Off, 0, Microflows{}, false},
		{"forced", governor.Forced, 207e3, Microflows{Mode: governor.Forced}, false},
		{"in no order", governor.Forced, 207e3, Microflows{Unordered: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Daemon{opts: Options{Microflows: c.micro}}
			d.aggr.gov = governor.NewAggregation(c.aggregate)
			d.aggr.gov.Step(time.Unix(1000, 0), governor.AggregationWindow{Rate: 207e3})
			d.aggr.joins = c.joins
			why := d.wholeAnyway(governor.Input{Costs: costs, Cores: map[int]governor.Core{0: {Rate: 207e3}, 1: {}}})
			if (why != "") != c.whole {
				t.Errorf("whole: %q", why)
			}
		})
	}
}
