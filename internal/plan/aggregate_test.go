// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"
)

func TestAggregationChangesOnlyWhatNoOtherProgramDecides(t *testing.T) {
	u := Target{42, 2, "u0"}
	off := Aggregator{Target: Target{42, 5, "vx0"}, GRO: "off", Forwarding: "off", List: "off"}
	ready := Aggregator{Target: u, GRO: "on", Forwarding: "off", List: "off"}
	with := func(change func(*Aggregator)) Aggregator {
		n := ready
		change(&n)
		return n
	}
	// A tunnel joins what comes from an underlay that cannot.
	on := off
	on.GRO = "on"
	if p := Aggregate(AggregateInput{Underlays: []Aggregator{{Target: u, Unfit: "not this one"}}, Tunnels: []Aggregator{on}}); len(p.Steps) != 1 || p.Steps[0].Target != on.Target || len(p.Attach) != 1 {
		t.Errorf("beside an underlay that cannot: %+v", p)
	}
	// GRO has come to hold packets back since.
	late := Aggregator{Target: u, GRO: "on", Forwarding: "on", List: "off", Hold: time.Microsecond}
	p := Aggregate(AggregateInput{Underlays: []Aggregator{late}, Owned: map[Setting]Owned{Aggregates(u): {First: "off", Wrote: "on"}}})
	if err := ValidateSteps(p.Steps); err != nil || len(p.Steps) != 1 || p.Steps[0].Want != "off" || p.Steps[0].Was != "on" || len(p.Skipped) != 1 {
		t.Errorf("once packets are held back: %v, %+v", err, p)
	}
	ours := map[Setting]Owned{Aggregates(u): {First: "off", Wrote: "on"}}
	for _, tt := range []struct {
		what  string
		nic   Aggregator
		owned map[Setting]Owned
		step  bool   // it is switched on
		skip  string // why not
	}{
		{what: "a NIC that could", nic: ready, step: true},
		{what: "on by another program", nic: with(func(n *Aggregator) { n.Forwarding = "on" })},
		{what: "on by us", nic: with(func(n *Aggregator) { n.Forwarding = "on" }), owned: ours},
		{what: "off again", nic: ready, owned: ours, skip: "another program has switched it off again"},
		{what: "GRO is off", nic: with(func(n *Aggregator) { n.GRO = "off" }), skip: "ethtool -K u0 gro on"},
		{what: "an old kernel", nic: with(func(n *Aggregator) { n.Forwarding = "" }), skip: "Linux 5.12"},
		{what: "lists", nic: with(func(n *Aggregator) { n.List = "on" }), skip: "rx-gro-list"},
		{what: "GRO holds packets back", nic: with(func(n *Aggregator) { n.Hold = 20 * time.Microsecond }), skip: "20µs (gro_flush_timeout)"},
		{what: "unknown", nic: with(func(n *Aggregator) { n.Unfit = "left alone: no such device" }), skip: "no such device"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := Aggregate(AggregateInput{Underlays: []Aggregator{tt.nic}, Tunnels: []Aggregator{off}, Owned: tt.owned})
			if err := ValidateSteps(p.Steps); err != nil {
				t.Fatal(err)
			}
			if got := len(p.Steps) == 1; got != tt.step || got && (p.Steps[0].Want != "on" || p.Steps[0].First != "off" || p.Steps[0].Reason == "") {
				t.Errorf("steps %+v", p.Steps)
			}
			if skipped := len(p.Skipped) == 2; skipped != (tt.skip != "") || skipped && !strings.Contains(p.Skipped[0].Reason, tt.skip) {
				t.Errorf("skipped %+v, want %q", p.Skipped, tt.skip)
			}
			// Nothing is counted where nothing is joined, and a NIC's order is watched with the tunnel's packets.
			if counted := len(p.Attach) == 2; counted == (tt.skip != "") || counted && p.Attach[0].Program != OrderProgram {
				t.Errorf("attached %+v", p.Attach)
			}
		})
	}
}

// A tunnel that is not counted has no program; one that joins already goes on.
func TestTunnelsThatAreNotCountedGetNoProgram(t *testing.T) {
	nic := Aggregator{Target: Target{42, 2, "u0"}, GRO: "on", Forwarding: "off", List: "off"}
	busy, joins, idle := nic, nic, Aggregator{Target: Target{42, 7, "vx2"}, Unfit: "others receive more", Uncounted: true}
	busy.Target = Target{42, 5, "vx0"}
	joins.Target, joins.Forwarding, joins.Uncounted = Target{42, 6, "vx1"}, "on", true
	p := Aggregate(AggregateInput{
		Underlays: []Aggregator{nic}, Tunnels: []Aggregator{busy, joins, idle},
		Owned: map[Setting]Owned{Aggregates(joins.Target): {First: "off", Wrote: "on"}},
	})
	if len(p.Attach) != 2 || p.Attach[0].Target != nic.Target || p.Attach[1].Target != busy.Target {
		t.Errorf("programs %+v, want one on %s and one on %s", p.Attach, nic.Target, busy.Target)
	}
	if len(p.Steps) != 2 || len(p.Skipped) != 1 || p.Skipped[0].Target != idle.Target {
		t.Errorf("steps %+v, skipped %+v", p.Steps, p.Skipped)
	}
}
