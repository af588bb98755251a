// SPDX-License-Identifier: Apache-2.0

package mechanism

import (
	"context"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/trial"
)

// Mechanism is one way in which overlane changes how a node receives. The daemon's loop knows it by this alone, and
// calls it from its own goroutine. Base has what a mechanism does not need.
type Mechanism interface {
	// Report is what it does, for the status: itself, and what it has besides.
	Report() []control.Mechanism
	// Fill writes what else a status has of it: counters, lanes, paths.
	Fill(*control.Status, names.Names) error
	// Skipped are devices that it leaves alone, and why.
	Skipped() []plan.Skip
	// Drops are the packets that were lost through it since the daemon started: a trial counts them. What programs
	// have counted is read once for all mechanisms.
	Drops(datapath.Counters) (uint64, error)

	// Step comes with each window, whether anything was measured in it or not.
	Step(ctx context.Context, now time.Time) error
	// Decide takes a window of measurements.
	Decide(ctx context.Context, in governor.Input) error
	// Rescanned tells that the node was scanned anew.
	Rescanned(context.Context) error
	// CoreLost tells that a core has gone offline, CoresChanged that there are other cores to steer to.
	CoreLost(core int)
	CoresChanged() error

	// Changed is readable when what it rests on may have changed: Follow is called then. nil: it is not told.
	Changed() <-chan struct{}
	Follow(ctx context.Context, now time.Time) error
	// Polls tells whether it rests on something that makes no event: Poll is called often then.
	Polls() bool
	Poll(ctx context.Context, now time.Time) error
	// Meanwhile is called while the daemon waits for the kernel, also in the middle of a call of another mechanism:
	// what it rests on is looked at, and nothing is loaded.
	Meanwhile(now time.Time)

	// Tracing is what it needs to be measured. Busy tells whether there is something to decide soon.
	Tracing() Tracing
	Busy(governor.Input) bool
	// Steers tells what becomes of flows while the daemon does not decide.
	Steers() Steering

	// Tries are its trials, of which one runs at a time on a node.
	Tries() []*trial.Trial

	// Stop takes back all that it has changed.
	Stop(context.Context) (apply.Report, error)
	// Close lets go of what Stop has left, at the end of the daemon.
	Close() error
}

// Tracing is what a mechanism needs to have traced of the traffic.
type Tracing struct {
	// Windows: it decides by what is measured while there is load.
	Windows bool
	// Steady: a load for which there is nothing to do is traced all the time, not now and then.
	Steady bool
	// Always: also while hardly a packet comes. The order guards know from polls how far queues are.
	Always bool
}

// Or is what either needs.
func (t Tracing) Or(o Tracing) Tracing {
	return Tracing{Windows: t.Windows || o.Windows, Steady: t.Steady || o.Steady, Always: t.Always || o.Always}
}

// Steering is what flows do without a daemon that decides.
type Steering int

const (
	// NotSteered: none takes another path than the stock one because the daemon decides so.
	NotSteered Steering = iota
	// Kept: they stay where they are while the daemon waits for the kernel.
	Kept
	// EachWindow: they have to drain, for the daemon decides on them in each window.
	EachWindow
)

// Base is a mechanism that does nothing, to be embedded.
type Base struct{}

func (Base) Fill(*control.Status, names.Names) error      { return nil }
func (Base) Skipped() []plan.Skip                         { return nil }
func (Base) Drops(datapath.Counters) (uint64, error)      { return 0, nil }
func (Base) Step(context.Context, time.Time) error        { return nil }
func (Base) Decide(context.Context, governor.Input) error { return nil }
func (Base) Rescanned(context.Context) error              { return nil }
func (Base) CoreLost(int)                                 {}
func (Base) CoresChanged() error                          { return nil }
func (Base) Changed() <-chan struct{}                     { return nil }
func (Base) Follow(context.Context, time.Time) error      { return nil }
func (Base) Polls() bool                                  { return false }
func (Base) Poll(context.Context, time.Time) error        { return nil }
func (Base) Meanwhile(time.Time)                          {}
func (Base) Tracing() Tracing                             { return Tracing{} }
func (Base) Busy(governor.Input) bool                     { return false }
func (Base) Steers() Steering                             { return NotSteered }
func (Base) Tries() []*trial.Trial                        { return nil }
func (Base) Close() error                                 { return nil }
