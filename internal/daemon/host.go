// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
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

// pollTimes is the time to look for what makes no event, while something rests on that.
func (d *Daemon) pollTimes(tick <-chan time.Time) <-chan time.Time {
	if !d.expr.glancing() && !d.bridge.Acts() {
		return nil
	}
	return tick
}

// poll looks for what makes no event.
func (d *Daemon) poll(ctx context.Context, now time.Time) error {
	err := d.bridge.Poll(now)
	if d.expr.glancing() {
		err = errors.Join(err, d.glanceExpress(ctx, now))
	}
	return err
}
