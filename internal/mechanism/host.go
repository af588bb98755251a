// SPDX-License-Identifier: Apache-2.0

// Package mechanism is what stands between the daemon's loop and its mechanisms, each of which is a package below
// this one. A mechanism knows the daemon only as its Host, of which unit tests have a fake (mechanismtest).
package mechanism

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// Host is what a mechanism borrows of the daemon. All of it is for the goroutine of the daemon's loop alone.
type Host interface {
	Log() *slog.Logger
	// Snapshot is the node as it was last scanned.
	Snapshot() node.Snapshot
	// Awake tells whether packets come, or did until a moment ago.
	Awake(now time.Time) (bool, error)
	// Watchers are new, to be closed. They share the program that reads tcx hooks.
	Watchers() *shortcut.Watchers
	// Owned are the settings that the mechanism has changed.
	Owned(by plan.Owner) map[plan.Setting]plan.Owned
	// Restore takes back what the mechanism has changed; which: of that, nil: all.
	Restore(by plan.Owner, which func(plan.Setting) bool) (apply.Report, error)
	// RestoreUnneeded takes back what the mechanism has changed and needs no more, as of a device that has left the
	// overlay and lives on. It forgets what is of devices that are gone.
	RestoreUnneeded(by plan.Owner, needed func(plan.Setting) bool) (apply.Report, error)
	// Forget drops entries from the journal.
	Forget(which func(apply.Entry) bool) error
	// Attach attaches a program of overlane's to a device, and has the log tell of it. node.ErrGone: the device has gone.
	Attach(dev node.Dev, attach func(datapath.Device) (io.Closer, error)) (io.Closer, error)
	// Scanner reads the node as it is now. Owns tells of a BPF program that it is overlane's.
	Scanner() *node.Scanner
	Owns(progID uint32) bool
	// Begins says in the status that the mechanism is being put in place, until over is called.
	Begins(name string) (over func())
	// CarryOut writes the journal and then the settings. A device that refuses one is left alone: refused says why.
	CarryOut(steps []plan.Step) (refused map[plan.Target]string, err error)
}

// DrainFor is for how long flows are waited for that are to leave lanes, before what they were steered by goes.
const DrainFor = time.Second

// RetryAfter is the pause after an attempt to put a mechanism in place failed.
const RetryAfter = 10 * time.Second

// CheckEvery is how often a mechanism checks whether another program has changed what is its own: a write to sysfs
// makes no event.
const CheckEvery = time.Second

// EndCensus ends the one that is under way, if there is one.
func EndCensus(c *datapath.FlowCounts) error {
	if *c == nil {
		return nil
	}
	err := (*c).End()
	*c = nil
	return err
}

// Told is what the log has of a mechanism's decisions. The zero value: that it stands by, which it does as well where it
// could not be put in place.
type Told struct{ state governor.State }

// Decided logs a decision where the log has another one; acts: the mechanism is in place, without which it is not called
// active. quiet: what leads neither to Active nor from there is for --verbose.
func (t *Told) Decided(log *slog.Logger, name string, dec governor.Decision, acts, quiet bool) {
	before := t.state
	if dec.State == before || dec.State == governor.Active && !acts {
		return
	}
	t.state = dec.State
	level := slog.LevelInfo
	if quiet && dec.State != governor.Active && before != governor.Active {
		level = slog.LevelDebug
	}
	log.Log(context.Background(), level, name+" "+dec.State.String(), "mechanism", name, "reason", dec.Reason)
}

// State is a decision as a status has it.
func State(mode governor.Mode, s governor.State) control.MechanismState {
	switch {
	case mode == governor.Off:
		return control.Off
	case s == governor.Active:
		return control.Active
	}
	return control.Standby
}
