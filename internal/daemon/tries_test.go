// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
)

// overlays is a host whose tunnels carry 100000 packets a second, and that loads no program.
type overlays struct{ *mechanismtest.Host }

func (overlays) Rate(time.Time) (float64, error)             { return 1e5, nil }
func (overlays) Behind() float64                             { return 0 }
func (overlays) SkipsTunnels() bool                          { return false }
func (overlays) HasLanes() bool                              { return false }
func (overlays) Relearn()                                    {}
func (overlays) LoadAggregation() (aggregate.Program, error) { return nil, errors.ErrUnsupported }
func (overlays) SetApart(bool) (bool, error)                 { return false, nil }

// Status says which mechanism is being tried out: its state changes with each window then.
func TestStatusTellsWhatIsBeingTriedOut(t *testing.T) {
	all := []string{"pipeline", "priority", "microflows", "aggregate", "express", "bridge-netfilter"}
	now := time.Now()
	for name, begin := range map[string]func(*Daemon){
		"pipeline":   func(d *Daemon) { d.trial.Judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"microflows": func(d *Daemon) { d.micro.trial.Judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"priority":   func(d *Daemon) { d.demand.trial.Judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"express":    func(d *Daemon) { d.expr.Trial.Judge.Step(now, governor.Situation{Rate: 1e5}, governor.Window{}) },
		"aggregate":  func(d *Daemon) { _ = d.aggr.Step(now) }, // and waits for its program
		"":           func(*Daemon) {},
	} {
		d := &Daemon{}
		d.newTrials()
		d.aggr = aggregate.New(overlays{mechanismtest.New(nil)}, governor.Auto)
		begin(d)
		for _, m := range all {
			if got := d.tries(m); got != (m == name) {
				t.Errorf("while %q is tried out, %s is: %t", name, m, got)
			}
		}
	}
}

// What waits for its programs does not act yet: the kernel looks at them for seconds on a slow machine,
// and status is asked meanwhile.
func TestWhatWaitsForItsProgramsDoesNotActYet(t *testing.T) {
	d := &Daemon{}
	d.newTrials()
	d.aggr = aggregate.New(overlays{mechanismtest.New(nil)}, governor.Forced)
	d.host = &host.Host{}
	over := d.host.Begins("microflows")
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
