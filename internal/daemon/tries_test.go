// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/governor"
)

// Status says which mechanism is being tried out: its state changes with each window then.
func TestStatusTellsWhatIsBeingTriedOut(t *testing.T) {
	all := []string{"pipeline", "priority", "microflows", "aggregate", "express", "bridge-netfilter"}
	now := time.Now()
	for name, begin := range map[string]func(*Daemon){
		"pipeline":   func(d *Daemon) { d.trial.judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"microflows": func(d *Daemon) { d.micro.trial.judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"priority":   func(d *Daemon) { d.demand.trial.judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"express":    func(d *Daemon) { d.expr.trial.judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"aggregate":  func(d *Daemon) { d.aggr.gov.Step(now, governor.AggregationWindow{Rate: 1e5}) },
		"":           func(*Daemon) {},
	} {
		d := &Daemon{}
		d.trial, d.micro.trial, d.demand.trial, d.expr.trial = newTrial(forGoodput), newTrial(forGoodput), newTrial(forLatency), newTrial(forGoodput)
		d.aggr.gov = governor.NewAggregation(governor.Auto)
		begin(d)
		for _, m := range all {
			if got := d.tries(m); got != (m == name) {
				t.Errorf("while %q is tried out, %s is: %t", name, m, got)
			}
		}
	}
	d := &Daemon{}
	d.aggr.gov = governor.NewAggregation(governor.Auto)
	d.expr.trial = newTrial(forGoodput)
	for range 2 { // no core is short of time for a second yet
		d.expr.gov.Step(now, governor.ExpressWindow{Saturated: 1, Ways: 1})
		now = now.Add(2 * time.Second)
	}
	if !d.tries("express") {
		t.Errorf("while it is looked what there is for express: %+v", d.expr.gov.Last())
	}
}

// What waits for its programs does not act yet: the kernel looks at them for seconds on a slow machine,
// and status is asked meanwhile.
func TestWhatWaitsForItsProgramsDoesNotActYet(t *testing.T) {
	d := &Daemon{}
	d.trial, d.micro.trial, d.demand.trial, d.expr.trial = newTrial(forGoodput), newTrial(forGoodput), newTrial(forLatency), newTrial(forGoodput)
	d.aggr.gov = governor.NewAggregation(governor.Forced)
	over := d.begins("microflows")
	told := func(name string) control.Mechanism {
		m := control.Mechanism{Name: name, State: control.Active, Reason: "forced by configuration"}
		d.unsettled(&m)
		return m
	}
	if m := told("microflows"); m.State != control.Standby || !m.Trying || !strings.Contains(m.Reason, "being loaded") {
		t.Errorf("while its programs are loaded: %+v", m)
	}
	if m := told("aggregate"); m.State != control.Active || m.Trying {
		t.Errorf("while those of others are: %+v", m)
	}
	over()
	if m := told("microflows"); m.State != control.Active || m.Trying || m.Reason != "forced by configuration" {
		t.Errorf("once they are there: %+v", m)
	}
}
