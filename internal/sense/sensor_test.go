// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"math"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

// A machine that slept, or was stopped and went on, has a window of hours in which nothing came;
// and a time that does not go on makes none. Neither is a reason to act, or to crash.
func TestAClockThatJumpsIsNoLoad(t *testing.T) {
	const configured = 2
	begin := time.Unix(1_000_000, 0)
	total := datapath.Core{}
	busy := func(d time.Duration, part float64) []datapath.Core {
		for st := range datapath.Stages {
			total.StageNs[st] += uint64(part * float64(d) / float64(datapath.Stages))
			total.StagePackets[st] += 10000
			total.Packets[st] += 10000
		}
		return []datapath.Core{total, {}}
	}
	for _, tc := range []struct {
		name string
		jump time.Duration
		want bool // that there is a window
	}{
		{"asleep for eight hours", 8 * time.Hour, true},
		{"stopped for a minute", time.Minute, true},
		{"stands still", 0, false},
		{"goes back", -time.Hour, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Sensor
			g := governor.New(governor.Auto, governor.DefaultLimits())
			now := begin
			s.Read(now, busy(0, 0), []int{0, 1}, nil, 0, true)
			// Its work of the usual time, seen after the jump.
			in, ok := s.Read(now.Add(tc.jump), busy(100*time.Millisecond, 1), []int{0, 1}, nil, 0, true)
			if ok != tc.want {
				t.Fatalf("there is a window: %t, want %t", ok, tc.want)
			}
			now = now.Add(tc.jump)
			if ok {
				if c := in.Cores[0]; !(c.Saturated >= 0 && c.Saturated < 0.01) || math.IsInf(c.Rate, 0) || math.IsNaN(c.Rate) {
					t.Errorf("the window across the jump: %+v", c)
				}
				in.Layout = governor.Place(governor.TC, governor.Machine{Cores: []int{0, 1}, NIC: []int{0}}, in.Costs)
				if d := g.Step(in); d.State != governor.Standby {
					t.Errorf("acts for it: %+v", d)
				}
			}
			// Then the clock goes on, and load is seen as it is.
			now = now.Add(100 * time.Millisecond)
			in, ok = s.Read(now, busy(100*time.Millisecond, 0.9), []int{0, 1}, nil, 0, true)
			if !ok || in.Cores[0].Saturated < 0.8 || len(in.Cores) != configured {
				t.Errorf("the window after it: %t %+v", ok, in.Cores)
			}
		})
	}
}

// Once datagrams are joined frames cost something else, and stages have few packets. What they cost before is
// forgotten at once: by it the wrong stage would hop.
func TestCostsAreLearnedAnewWhenDatagramsAreJoined(t *testing.T) {
	var s Sensor
	now, total := time.Unix(1_000_000, 0), datapath.Core{}
	window := func(packets [datapath.Stages]uint64, ns [datapath.Stages]uint64) governor.Costs {
		now = now.Add(100 * time.Millisecond)
		for st := range datapath.Stages {
			total.Packets[st] += packets[st]
			total.StagePackets[st] += packets[st]
			total.StageNs[st] += ns[st] * packets[datapath.NIC]
		}
		in, _ := s.Read(now, []datapath.Core{total}, []int{0}, nil, 0, true)
		return in.Costs
	}
	const frames = 10000
	single, joined := [datapath.Stages]uint64{frames, frames, frames}, [datapath.Stages]uint64{frames, frames / 64, frames / 64}
	before, after := [datapath.Stages]uint64{4000, 4500, 2700}, [datapath.Stages]uint64{2800, 200, 1800}
	costs := func(c [datapath.Stages]uint64) governor.Costs {
		return governor.Costs{NIC: float64(c[datapath.NIC]), Tunnel: float64(c[datapath.Tunnel]), Pod: float64(c[datapath.Pod])}
	}
	s.Read(now, []datapath.Core{total}, []int{0}, nil, 0, true)
	if got := window(single, before); got != costs(before) {
		t.Fatalf("at first: %+v", got)
	}
	s.Relearn()
	if got := window(single, before); got.Known() {
		t.Errorf("the window before the change tells of it: %+v", got)
	}
	if got := window(joined, after); got != costs(after) {
		t.Errorf("after the change: %+v", got)
	}
}

// What drivers have sent and count as received makes neither a higher rate nor cheaper frames.
func TestFramesThatOnlyPollsClaimMakeNoneCheaper(t *testing.T) {
	const claimed, came = 10_000, 4000
	now := time.Unix(1_000_000, 0)
	read := func(came uint64) governor.Input {
		var s Sensor
		core := datapath.Core{}
		s.Read(now, []datapath.Core{core}, []int{0}, nil, 0, true)
		for st := range datapath.Stages {
			core.Packets[st], core.StagePackets[st], core.StageNs[st] = claimed, claimed, 400*claimed
		}
		in, _ := s.Read(now.Add(time.Second), []datapath.Core{core}, []int{0}, nil, came, true)
		return in
	}
	for frames, want := range map[uint64]float64{claimed: 400, came: 1000} {
		in := read(frames)
		if c := (governor.Costs{NIC: want, Tunnel: want, Pod: want}); in.Costs != c || in.Cores[0].Rate != float64(frames) {
			t.Errorf("%d came: %+v, %v a second", frames, in.Costs, in.Cores[0].Rate)
		}
	}
}
