// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

// after steps through windows of a tenth of a second.
func after(a *Aggregation, now *time.Time, d time.Duration, w AggregationWindow) Decision {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(100 * time.Millisecond)
		a.Step(*now, w)
	}
	return a.Last()
}

func TestAggregationComesWithTrafficAndStaysWhileItIsWorthIt(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	busy := AggregationWindow{Rate: 50_000}
	could := AggregationWindow{Packets: 5000, Follows: 4000}
	runs := AggregationWindow{Packets: 5000, Datagrams: 4000, Supers: 100}
	alone := AggregationWindow{Packets: 5000, Datagrams: 100, Supers: 50}
	for _, step := range []struct {
		what   string
		long   time.Duration
		w      AggregationWindow
		want   State
		reason string
	}{
		{"an idle node", time.Second, AggregationWindow{Rate: 500}, Standby, "fewer than 10000 packets a second come out of the tunnels"},
		{"traffic", 100 * time.Millisecond, busy, Parked, "it is watched"},
		{"datagrams that could be joined", 600 * time.Millisecond, could, Active, "one packet"},
		{"datagrams in runs", 20 * time.Second, runs, Active, "80 % of the overlay's packets cross it as super-packets, of 40 datagrams each"},
		{"a short pause", 9 * time.Second, AggregationWindow{}, Active, "super-packets"},
		{"datagrams again", 5 * time.Second, runs, Active, "super-packets"},
		{"nothing in runs, briefly", 9 * time.Second, alone, Active, "super-packets"},
		{"datagrams once more", 5 * time.Second, runs, Active, "super-packets"},
		{"a long pause", 11 * time.Second, AggregationWindow{}, Standby, "fewer than 10000 packets a second come out of the tunnels"},
		{"traffic again, which is seen at once", 600 * time.Millisecond, AggregationWindow{Rate: 50_000, Packets: 5000, Follows: 4900}, Active, "one packet"},
		{"nothing in runs", 12 * time.Second, alone, Standby, "2 % of the overlay's packets are datagrams that come in a row"},
	} {
		d := after(a, &now, step.long, step.w)
		if d.State != step.want || !strings.Contains(d.Reason, step.reason) {
			t.Fatalf("%s: %v, %q; want %v, %q", step.what, d.State, d.Reason, step.want, step.reason)
		}
	}
}

// Nothing is joined, and nothing has to be taken back, where it would be in vain.
func TestAggregationWatchesFirst(t *testing.T) {
	for what, w := range map[string]AggregationWindow{
		"6 % of the overlay's packets": {Rate: 50_000, Packets: 5000, Follows: 300},
	} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		for range 600 {
			now = now.Add(100 * time.Millisecond)
			if d := a.Step(now, w); d.State == Active {
				t.Fatalf("%s: %+v", what, d)
			}
		}
		// At the next try.
		if d := after(a, &now, 5*time.Second, w); d.State != Standby || !strings.Contains(d.Reason, what) {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// It looks away for half a minute from a load that it could do nothing for, and not from another one.
func TestAggregationSeesAnotherLoadAtOnce(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	alone := AggregationWindow{Rate: 20_000, Packets: 2000}
	for _, step := range []struct {
		what string
		long time.Duration
		w    AggregationWindow
		want State
	}{
		{"packets alone", time.Second, alone, Standby},
		{"the same, a little more", 10 * time.Second, AggregationWindow{Rate: 25_000}, Standby},
		{"a flood", 100 * time.Millisecond, AggregationWindow{Rate: 200_000}, Parked},
		{"the flood's datagrams come in a row", 600 * time.Millisecond, AggregationWindow{Rate: 200_000, Packets: 20_000, Follows: 19_000}, Active},
	} {
		if d := after(a, &now, step.long, step.w); d.State != step.want {
			t.Fatalf("%s: %+v", step.what, d)
		}
	}
}

// What stands in its way is said, and ends it; forced by configuration it acts all the same.
func TestAggregationIsRefused(t *testing.T) {
	busy := AggregationWindow{Rate: 50_000, Packets: 5000, Follows: 4900, Datagrams: 4900, Supers: 100}
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	after(a, &now, 2*time.Second, busy)
	a.Refuse(now, "a rule is in the way")
	if d := a.Last(); d.State != Standby || d.Reason != "a rule is in the way; looked at again every 30s" {
		t.Errorf("%+v", d)
	}
	if d := after(a, &now, 29*time.Second, busy); d.State != Standby {
		t.Errorf("before it is looked at again: %+v", d)
	}
	if d := after(a, &now, 3*time.Second, busy); d.State != Active {
		t.Errorf("later: %+v", d)
	}
	f := NewAggregation(Forced)
	f.Step(now, busy)
	f.Refuse(now, "a rule is in the way")
	if d := f.Step(now, busy); d.State != Active {
		t.Errorf("forced: %+v", d)
	}
}

func TestAggregationSwitchesRarely(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	switches := 0
	for range 10 * 60 * 10 { // ten minutes, of what is never worth it
		was := a.Last().State
		now = now.Add(100 * time.Millisecond)
		if a.Step(now, AggregationWindow{Rate: 1e6, Packets: 1e5}).State != was {
			switches++
		}
	}
	if perMinute := float64(switches) / 10; perMinute > 4 {
		t.Errorf("%.1f switches a minute", perMinute)
	}
}

func TestAggregationDoesAsItIsTold(t *testing.T) {
	a, now := NewAggregation(Forced), time.Unix(1000, 0)
	if d := a.Step(now, AggregationWindow{}); d.State != Active {
		t.Errorf("forced, without traffic: %+v", d)
	}
	a.Reconfigure(Off)
	if d := a.Step(now.Add(time.Second), AggregationWindow{Rate: 1e6, Packets: 1e5, Datagrams: 1e5}); d.State != Standby || d.Since != now.Add(time.Second) {
		t.Errorf("off, with traffic: %+v", d)
	}
}

// Where super-packets are taken apart again behind the NIC, nothing is saved, and it ends.
func TestAggregationEndsWhereItSavesNothing(t *testing.T) {
	for behind, want := range map[float64]State{0.3: Active, 1.9: Active, 2.1: Active, 2.5: Standby, 0: Active} {
		a, now := NewAggregation(Auto), time.Unix(1000, 0)
		after(a, &now, 100*time.Millisecond, AggregationWindow{Rate: 50_000})
		for a.Last().State == Parked {
			after(a, &now, 100*time.Millisecond, AggregationWindow{Packets: 5000, Follows: 4000, Behind: 2})
		}
		if d := a.Last(); d.State != Active {
			t.Fatalf("%v, %s", d.State, d.Reason)
		}
		d := after(a, &now, 3*time.Second, AggregationWindow{Packets: 5000, Datagrams: 4500, Supers: 100, Behind: behind})
		if d.State != want {
			t.Errorf("frames cost %.1f times the NIC's stage behind it, 2 without: %v, %s", behind, d.State, d.Reason)
		}
		if want == Standby && !strings.Contains(d.Reason, "cost at least 1.25 times what they did without; looked at again every 10m") {
			t.Error(d.Reason)
		}
	}
}
