// SPDX-License-Identifier: Apache-2.0

// Package mechanism is what stands between the daemon's loop and its mechanisms, each of which is a package below
// this one. A mechanism knows the daemon only as its Host, of which unit tests have a fake (mechanismtest).
package mechanism

import (
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
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
	// CarryOut writes the journal and then the settings. A device that refuses one is left alone: refused says why.
	CarryOut(steps []plan.Step) (refused map[plan.Target]string, err error)
}

// RetryAfter is the pause after an attempt to put a mechanism in place failed.
const RetryAfter = 10 * time.Second

// CheckEvery is how often a mechanism looks whether another program has changed what is its own: a write to sysfs
// makes no event.
const CheckEvery = time.Second
