// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// traffic is what comes out of tunnels in each window.
type traffic struct {
	packets uint64  // a window
	udp     float64 // of these
	rows    float64 // of those, in a row
	runs    float64 // datagrams that GRO finds at a time
	hidden  bool    // GRO joins none of them
	short   bool    // a core is short of time
	cost    float64 // ns a packet
	joined  float64 // the same, as one
	unread  float64 // sockets have no room for, as one
}

// window is one, beside what is decided.
func (tr traffic) window(a *Aggregation) AggregationWindow {
	p := float64(tr.packets)
	datagrams := p * tr.udp
	w := AggregationWindow{Rate: 10 * p, Short: tr.short}
	if !a.Counts() {
		return w
	}
	w.Packets, w.UDP = tr.packets, uint64(datagrams)
	cost, lost := tr.cost, 0.0
	rows, found := datagrams*tr.rows, datagrams*(1-1/max(tr.runs, 1))
	switch {
	case a.Joins() && !tr.hidden && tr.runs > 1:
		w.Datagrams = uint64(rows)
		w.Supers = uint64(rows / tr.runs)
		w.Rate -= 10 * (rows - rows/tr.runs)
		cost, lost = tr.joined, tr.unread
	default:
		w.Follows, w.Together = uint64(rows), uint64(min(found, rows))
	}
	if a.Costs() {
		w.Busy, w.Unread = time.Duration(cost*p), uint64(lost*p)
	}
	return w
}

// comes has traffic come for a while.
func (tr traffic) comes(a *Aggregation, now *time.Time, d time.Duration) Decision {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(100 * time.Millisecond)
		a.Step(*now, tr.window(a))
	}
	return a.Last()
}

var (
	// gso is sent 16 at a time, single one at a time; torrent is more than a core can do.
	gso     = traffic{packets: 3000, udp: 1, rows: 1, runs: 16, cost: 5000, joined: 3200}
	single  = traffic{packets: 3000, udp: 1, rows: 1, runs: 2.2, cost: 7300, joined: 7200}
	torrent = traffic{packets: 90_000, udp: 1, rows: 1, runs: 40, short: true, cost: 1100, joined: 620}
	tcp     = traffic{packets: 20_000, cost: 300}
	alone   = traffic{packets: 5000, udp: 1, rows: 0.02, runs: 1, cost: 5000}
	idle    = traffic{packets: 50}
)

func TestAggregationComesWithTrafficAndStaysWhileItIsWorthIt(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	for _, step := range []struct {
		what   string
		long   time.Duration
		tr     traffic
		want   State
		reason string
	}{
		{"an idle node", time.Second, idle, Standby, "fewer than 10000 packets a second come out of the tunnels"},
		{"traffic", 100 * time.Millisecond, gso, Parked, "it is watched"},
		{"datagrams that could be joined", 1000 * time.Millisecond, gso, Active, "cross the overlay as one packet"},
		{"datagrams in runs", 20 * time.Second, gso, Active, "100 % of the overlay's packets cross it as super-packets, of 16 datagrams each"},
		{"a short pause", 9 * time.Second, traffic{}, Active, "super-packets"},
		{"datagrams again", 5 * time.Second, gso, Active, "super-packets"},
		{"a long pause", 12 * time.Second, traffic{}, Standby, "fewer than 10000 packets a second come out of the tunnels"},
		{"traffic again, which is seen at once", 1100 * time.Millisecond, gso, Active, "one packet"},
		{"the same", 2 * time.Second, gso, Active, "super-packets"},
		{"nothing in runs", 3 * time.Second, alone, Standby, "2 % of the overlay's packets are datagrams that come in a row"},
		{"more than a core can do", 2500 * time.Millisecond, torrent, Active, "of 40 datagrams each"},
	} {
		d := step.tr.comes(a, &now, step.long)
		if d.State != step.want || !strings.Contains(d.Reason, step.reason) {
			t.Fatalf("%s: %v, %q; want %v, %q", step.what, d.State, d.Reason, step.want, step.reason)
		}
	}
}

// What was seen of TCP says nothing of UDP that comes after it, or beside it, be it fewer packets.
func TestAggregationSeesUDPAfterTCP(t *testing.T) {
	beside := traffic{packets: 23_000, udp: 3.0 / 23, rows: 1, runs: 16, cost: 900, joined: 600}
	for what, udp := range map[string]traffic{"after it": gso, "beside it": beside} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		if d := tcp.comes(a, &now, 2*time.Second); d.State != Standby || !strings.Contains(d.Reason, "0 % of the overlay's packets are datagrams that come in a row") {
			t.Fatalf("TCP: %+v", d)
		}
		if d := udp.comes(a, &now, 1300*time.Millisecond); d.State != Active {
			t.Errorf("UDP %s: %+v", what, d)
		}
	}
}

// Nothing is joined, and nothing has to be taken back, where it would be in vain.
func TestAggregationWatchesFirst(t *testing.T) {
	for what, tr := range map[string]traffic{
		"6 % of the overlay's packets": {packets: 5000, udp: 1, rows: 0.06, runs: 1.06, cost: 5000},
		"GRO would find 2.2 datagrams": single,
		"GRO would find 1.0 datagrams": {packets: 5000, udp: 1, rows: 1, runs: 1, cost: 5000},
	} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		watched := 0
		for range 6000 {
			was := a.Last().State
			d := tr.comes(a, &now, 100*time.Millisecond)
			if a.Joins() || d.State == Active {
				t.Fatalf("%s: %+v", what, d)
			}
			if d.State == Parked && was != Parked {
				watched++
			}
		}
		if d := tr.comes(a, &now, time.Second); d.State != Standby || !strings.Contains(d.Reason, what) || watched > 6 {
			t.Errorf("%s: watched %d times in 10 minutes, %+v", what, watched, d)
		}
		// What differs is looked at at once.
		if d := torrent.comes(a, &now, 2*time.Second); d.State != Active {
			t.Errorf("a flood after that: %+v", d)
		}
	}
}

// Until something was joined it is not called active, and where nothing is it goes within two seconds.
func TestAggregationThatJoinsNothingGoes(t *testing.T) {
	tr := gso
	tr.hidden = true
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	var joined time.Duration
	for range 100 {
		if d := tr.comes(a, &now, 100*time.Millisecond); d.State == Active {
			t.Fatalf("%+v", d)
		}
		if a.Joins() {
			joined += 100 * time.Millisecond
		}
	}
	if d := a.Last(); joined == 0 || joined > 2*time.Second || d.State != Standby || !strings.Contains(d.Reason, "100 % of the overlay's packets are datagrams that come in a row, and 0 % are joined; looked at again in 30s") {
		t.Errorf("tried for %v: %+v", joined, d)
	}
}

// tries tells when joining was tried, and for how long, while something comes.
func tries(a *Aggregation, now *time.Time, tr traffic, d time.Duration) (gaps []time.Duration, longest time.Duration) {
	var begun time.Time
	ended := *now
	for end := now.Add(d); now.Before(end); {
		was := a.Joins()
		tr.comes(a, now, 100*time.Millisecond)
		switch {
		case a.Joins() && !was:
			gaps, begun = append(gaps, now.Sub(ended).Round(time.Second)), *now
		case !a.Joins() && was:
			longest, ended = max(longest, now.Sub(begun)), *now
		}
	}
	return gaps, longest
}

// Where a packet costs no less it goes within two seconds, and is tried ever more rarely, until another load comes.
func TestAggregationHasToSaveTime(t *testing.T) {
	for what, tr := range map[string]traffic{
		"a packet costs 1.00 times what it did without":                   {packets: 3000, udp: 1, rows: 1, runs: 16, cost: 5000, joined: 5000},
		"a packet costs 0.95 times what it did without":                   {packets: 3000, udp: 1, rows: 1, runs: 16, cost: 5000, joined: 4750},
		"sockets have no room for 9 % of what comes joined, and for 0 % ": {packets: 3000, udp: 1, rows: 1, runs: 16, cost: 5000, joined: 3200, unread: 0.09},
		"a packet costs at least 1.30 times what it did without":          {packets: 90_000, udp: 1, rows: 1, runs: 40, short: true, cost: 1000, joined: 1300},
		"whether it pays could not be measured":                           {packets: 3000, udp: 1, rows: 1, runs: 16},
	} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		gaps, longest := tries(a, &now, tr, 90*time.Minute)
		want := []time.Duration{1, 31, 61, 121, 241, 481, 961, 961, 961}
		if d := a.Last(); d.State != Standby || !strings.Contains(d.Reason, what) || longest > 2*time.Second && tr.cost > 0 {
			t.Errorf("%s: tried for %v, %+v", what, longest, d)
		}
		if len(gaps) < len(want) {
			t.Fatalf("%s: tried after %v", what, gaps)
		}
		for i, g := range want {
			if off := gaps[i] - g*time.Second; off < -2*time.Second || off > 6*time.Second {
				t.Errorf("%s: tried after %v, want about %v s", what, gaps, want)
				break
			}
		}
		other := tr
		other.packets *= 2
		if gaps, _ := tries(a, &now, other, 2*time.Minute); len(gaps) < 3 || gaps[0] > 2*time.Second {
			t.Errorf("%s: with twice as much, tried after %v", what, gaps)
		}
	}
}

// What paid once is not held against what did not before.
func TestAggregationForgetsFailuresWhereItPays(t *testing.T) {
	dear := gso
	dear.joined = dear.cost
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	tries(a, &now, dear, 10*time.Minute)
	if d := torrent.comes(a, &now, 20*time.Second); d.State != Active {
		t.Fatalf("%+v", d)
	}
	idle.comes(a, &now, 30*time.Second)
	if gaps, _ := tries(a, &now, dear, 2*time.Minute); len(gaps) < 2 || gaps[1] > 35*time.Second {
		t.Errorf("after it paid, tried after %v", gaps)
	}
}

// On machines of any speed, on which windows differ by themselves, what saves a third stays and what saves nothing goes.
func TestAggregationIsJudgedOnAnyMachine(t *testing.T) {
	for _, tt := range []struct {
		saves       float64
		short       bool
		scatter     float64 // of a window's cost
		least, most float64 // of machines, those on which it stays
	}{
		{0.37, false, 0.1, 0.97, 1}, {0.37, false, 0.3, 0.85, 1},
		{0, false, 0.1, 0, 0.1}, {0, false, 0.3, 0, 0.35}, {-0.2, false, 0.3, 0, 0.1},
		{0.43, true, 0.3, 0.99, 1}, {0, true, 0.1, 0.99, 1}, {-0.6, true, 0.1, 0, 0.15},
	} {
		const machines = 500
		dice, stays := rand.New(rand.NewPCG(1, 2)), 0
		for range machines {
			a, now := NewAggregation(Auto), time.Unix(1000, 0)
			speed := math.Exp(dice.NormFloat64())
			for range 40 {
				tr := traffic{packets: 3000, udp: 1, rows: 1, runs: 16, short: tt.short}
				tr.cost = 5000 * speed * math.Exp(tt.scatter*dice.NormFloat64())
				tr.joined = tr.cost * (1 - tt.saves)
				tr.comes(a, &now, 100*time.Millisecond)
			}
			if a.Joins() {
				stays++
			}
		}
		name := fmt.Sprintf("saves %.2f, a core is short of time: %t, windows differ by %.1f", tt.saves, tt.short, tt.scatter)
		if part := float64(stays) / machines; part < tt.least || part > tt.most {
			t.Errorf("%s: it stays on %.2f of the machines, want %.2f to %.2f", name, part, tt.least, tt.most)
		}
	}
}

// What stands in its way is said, and ends it; forced by configuration it acts all the same.
func TestAggregationIsRefused(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	gso.comes(a, &now, 3*time.Second)
	a.Refuse(now, "a rule is in the way")
	if d := a.Last(); d.State != Standby || d.Reason != "a rule is in the way; looked at again every 30s" || a.Joins() || a.Counts() {
		t.Errorf("%+v", d)
	}
	if d := gso.comes(a, &now, 29*time.Second); d.State != Standby {
		t.Errorf("before it is looked at again: %+v", d)
	}
	if d := gso.comes(a, &now, 3*time.Second); d.State != Active {
		t.Errorf("later: %+v", d)
	}
	f := NewAggregation(Forced)
	gso.comes(f, &now, time.Second)
	f.Refuse(now, "a rule is in the way")
	if d := gso.comes(f, &now, time.Second); d.State != Active {
		t.Errorf("forced: %+v", d)
	}
}

func TestAggregationSwitchesRarely(t *testing.T) {
	for _, tr := range []traffic{tcp, single, alone, {packets: 1e5}} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		switches := 0
		for range 10 * 60 * 10 { // ten minutes, of what is never worth it
			was := a.Last().State
			if tr.comes(a, &now, 100*time.Millisecond).State != was {
				switches++
			}
		}
		if perMinute := float64(switches) / 10; perMinute > 2 {
			t.Errorf("%+v: %.1f switches a minute", tr, perMinute)
		}
	}
}

func TestAggregationDoesAsItIsTold(t *testing.T) {
	a, now := NewAggregation(Forced), time.Unix(1000, 0)
	if d := a.Step(now, AggregationWindow{}); d.State != Active || !a.Joins() || a.Judges() {
		t.Errorf("forced, without traffic: %+v", d)
	}
	a.Reconfigure(Off)
	if d := a.Step(now.Add(time.Second), AggregationWindow{Rate: 1e6, Packets: 1e5, Datagrams: 1e5}); d.State != Standby || d.Since != now.Add(time.Second) || a.Counts() {
		t.Errorf("off, with traffic: %+v", d)
	}
	// What was forced is not taken back because it is left to it: it goes where it joins nothing.
	a.Reconfigure(Forced)
	gso.comes(a, &now, time.Second)
	a.Reconfigure(Auto)
	if d := gso.comes(a, &now, time.Minute); d.State != Active {
		t.Errorf("forced before: %+v", d)
	}
}

// A clock that jumps back has nothing last for ever.
func TestAggregationAfterTheClockJumpedBack(t *testing.T) {
	dear := gso
	dear.joined = dear.cost
	a, now := NewAggregation(Auto), time.Unix(100_000, 0)
	tries(a, &now, dear, 10*time.Minute)
	now = time.Unix(1000, 0)
	if d := gso.comes(a, &now, 5*time.Second); d.State != Active {
		t.Errorf("%+v", d)
	}
}
