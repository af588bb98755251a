// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// host is what mechanisms see of the daemon (mechanism.Host).
type host struct{ d *Daemon }

func (h host) Log() *slog.Logger { return h.d.log }

func (h host) Snapshot() node.Snapshot { return h.d.snap }

func (h host) Awake(now time.Time) (bool, error) { return h.d.isAwake(now) }

func (h host) Watchers() *shortcut.Watchers { return h.d.newWatchers() }

func (h host) Owned(by plan.Owner) map[plan.Setting]plan.Owned { return h.d.owned(by) }

func (h host) Restore(by plan.Owner, which func(plan.Setting) bool) (apply.Report, error) {
	return h.d.restore(by, which)
}

func (h host) CarryOut(steps []plan.Step) (map[plan.Target]string, error) {
	return h.d.carryOutEach(steps)
}

func (h host) Forget(which func(apply.Entry) bool) error { return h.d.locked.Forget(which) }

func (h host) Gone(t plan.Target) bool { return h.d.pipe.gone(t) }

func (h host) Attach(dev node.Dev, attach func(datapath.Device) (io.Closer, error)) (io.Closer, error) {
	return h.d.pipe.attach(dev, attach)
}

func (h host) Scanner() *node.Scanner { return h.d.scanner }

func (h host) Owns(progID uint32) bool { return h.d.dp.Owns(progID) }

func (h host) Begins(name string) (over func()) { return h.d.begins(name) }

// What aggregation asks besides (aggregate.Host).

func (h host) Rate(now time.Time) (float64, error) {
	rate, _, err := h.d.overlay(now)
	return rate, err
}

func (h host) Behind() float64 { return h.d.sensor.Behind }

func (h host) SkipsTunnels() bool { return h.d.expr.HasPaths() }

func (h host) HasLanes() bool { return h.d.prio != nil }

func (h host) Relearn() {
	if !h.d.pipe.armed {
		h.d.sensor.Relearn()
	}
}

func (h host) LoadAggregation() (aggregate.Program, error) { return h.d.dp.LoadAggregation() }

func (h host) SetApart(on bool) (fresh bool, err error) { return h.d.dp.SetApart(on) }

// What express asks besides (express.Host).

func (h host) Readings() (mechanism.Reader, map[plan.Setting]plan.Owned) {
	ours := h.d.readings.now(h.d.locked.Entries())
	return h.d.readings, ours
}

func (h host) Cookie() uint64 { return h.d.cookie }

func (h host) Places() *xdp.Places { return h.d.places }

func (h host) Found(cookie uint64) bool { return h.d.pipe.found(cookie) }

func (h host) Passed(ctx context.Context) error { return h.d.pipe.passed(ctx, graceTimeout) }

func (h host) PriorityOnNIC() bool { return h.d.prio.onNIC() }

func (h host) PriorityCounters() (datapath.PriorityCounters, error) { return h.d.priorityCounters() }

func (h host) Split() bool { return h.d.pipe.armed && h.d.pipe.layout.Split }

func (h host) Aggregation() governor.State { return h.d.aggr.State() }

func (h host) AggregationMode() governor.Mode { return h.d.opts.Aggregate }

func (h host) Trials() *trial.Trials { return h.d.trials }

func (h host) BeginCensus() (express.Census, error) {
	c, err := h.d.beginCensus()
	if err != nil {
		return nil, err // and no census that is a nil pointer
	}
	return c, nil
}

func (h host) Kernel() express.Kernel { return h.d.dp }

// newWatchers share the program that reads tcx hooks.
func (d *Daemon) newWatchers() *shortcut.Watchers {
	if d.hooks == nil {
		var err error
		if d.hooks, err = shortcut.LoadHooks(); err != nil {
			d.log.Debug("each device is asked for its tcx hooks", "reason", err)
		}
	}
	return shortcut.NewWatchers(d.scanner, d.dp.Owns, d.hooks)
}

// pollTimes is the time to poll for what makes no event, while something rests on that.
func (d *Daemon) pollTimes(tick <-chan time.Time) <-chan time.Time {
	if !d.expr.Polls() && !d.bridge.Acts() {
		return nil
	}
	return tick
}

// poll reads again what makes no event.
func (d *Daemon) poll(ctx context.Context, now time.Time) error {
	err := d.bridge.Poll(now)
	if d.expr.Polls() {
		err = errors.Join(err, d.expr.Poll(ctx, now))
	}
	return err
}
