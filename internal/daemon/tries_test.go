// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

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
