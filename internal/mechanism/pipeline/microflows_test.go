// SPDX-License-Identifier: Apache-2.0

package pipeline

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
				m.sample(in, splitOn{
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
			g := governor.NewAggregation(c.aggregate)
			g.Step(time.Unix(1000, 0), governor.AggregationWindow{Rate: 207e3})
			why := wholeAnyway(c.micro, g.Last().State, c.joins, governor.Input{Costs: costs, Cores: map[int]governor.Core{0: {Rate: 207e3}, 1: {}}})
			if (why != "") != c.whole {
				t.Errorf("whole: %q", why)
			}
		})
	}
}

// An XDP program alone may cost a NIC's TCP more than micro-flows bring back. A trial switches only these.
func TestMicroflowsAreHeldAgainstWhatCameBeforeTheirProgram(t *testing.T) {
	second := func(frames uint64) governor.Window {
		return governor.Window{Elapsed: time.Second, Frames: frames, Acted: 1, Saturated: true}
	}
	for name, tt := range map[string]struct {
		before, off, on uint64 // frames a second
		want            governor.Outcome
	}{
		"the program costs more":  {270_000, 154_000, 199_000, governor.Worse},
		"the program costs less":  {270_000, 260_000, 350_000, governor.Better},
		"it is not known":         {0, 154_000, 199_000, governor.Better},
		"a sender that is faster": {199_000 / 2, 154_000, 199_000, governor.Better},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(nil, nil, Options{})
			for range 3 {
				p.micro.saw(second(tt.before))
			}
			in := governor.Input{Now: time.Unix(1000, 0), Layout: governor.Layout{NIC: []int{1}, Split: true}}
			if s := p.situationOf(p.trial, in); s.Without != 0 {
				t.Errorf("the pipeline needs no program there: %+v", s)
			}
			j := p.micro.trial.Judge
			on, _ := j.Step(in.Now, p.situationOf(p.micro.trial, in), governor.Window{})
			for j.Trying() {
				in.Now = in.Now.Add(55 * time.Millisecond)
				w := second(tt.off)
				if w.Acted = 0; on {
					w = second(tt.on)
				}
				on, _ = j.Step(in.Now, p.situationOf(p.micro.trial, in), w)
			}
			if got := j.Known()[0]; got.Outcome != tt.want {
				t.Errorf("%s: %s", got.Outcome, got.Reason)
			}
		})
	}
}
