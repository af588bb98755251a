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
	runs := AggregationWindow{Packets: 5000, Datagrams: 4000, Supers: 100}
	for _, step := range []struct {
		what   string
		long   time.Duration
		w      AggregationWindow
		want   State
		reason string
	}{
		{"an idle node", time.Second, AggregationWindow{Rate: 500}, Standby, "fewer than 10000 packets a second"},
		{"traffic", 100 * time.Millisecond, busy, Active, "one packet"},
		{"datagrams in runs", 20 * time.Second, runs, Active, "80 % of the overlay's packets cross it as super-packets, of 40 datagrams each"},
		{"a short pause", 9 * time.Second, AggregationWindow{}, Active, "super-packets"},
		{"datagrams again", 5 * time.Second, runs, Active, "super-packets"},
		{"a long pause", 11 * time.Second, AggregationWindow{}, Standby, "hardly a packet comes out of the tunnels"},
		{"what comes too soon", 20 * time.Second, busy, Standby, "looked at again every 30s"},
		{"later", 15 * time.Second, AggregationWindow{Rate: 50_000, Packets: 5000, Datagrams: 4900, Supers: 100}, Active, "98 %"},
		{"nothing in runs", 2 * time.Second, AggregationWindow{Packets: 5000, Datagrams: 100, Supers: 50}, Standby, "2 % of the overlay's packets are datagrams that come in a row"},
	} {
		d := after(a, &now, step.long, step.w)
		if d.State != step.want || !strings.Contains(d.Reason, step.reason) {
			t.Fatalf("%s: %v, %q; want %v, %q", step.what, d.State, d.Reason, step.want, step.reason)
		}
	}
}

func TestAggregationIsTriedBriefly(t *testing.T) {
	a, now := NewAggregation(Auto), time.Unix(1000, 0)
	alone := AggregationWindow{Rate: 50_000, Packets: 5000}
	if d := after(a, &now, 200*time.Millisecond, alone); d.State != Active {
		t.Fatalf("while it is tried: %+v", d)
	}
	if d := after(a, &now, 300*time.Millisecond, alone); d.State != Standby || !strings.Contains(d.Reason, "0 % of the overlay's packets") {
		t.Errorf("after a try in vain: %+v", d)
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
