// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// others is the host, with what mechanisms ask about each other.
type others struct {
	*host.Host
	d *Daemon
}

// Awake is mechanism.Host's.
func (h others) Awake(now time.Time) (bool, error) { return h.d.isAwake(now) }

// What aggregation asks besides (aggregate.Host).

func (h others) Rate(now time.Time) (float64, error) {
	rate, _, err := h.d.overlay(now)
	return rate, err
}

func (h others) Behind() float64 { return h.d.sensor.Behind }

func (h others) SkipsTunnels() bool { return h.d.expr.HasPaths() }

func (h others) HasLanes() bool { return h.d.prio != nil }

func (h others) Relearn() {
	if !h.d.pipe.armed {
		h.d.sensor.Relearn()
	}
}

func (h others) LoadAggregation() (aggregate.Program, error) { return h.d.dp.LoadAggregation() }

func (h others) SetApart(on bool) (fresh bool, err error) { return h.d.dp.SetApart(on) }

// What express asks besides (express.Host).

func (h others) Cookie() uint64 { return h.d.cookie }

func (h others) Places() *xdp.Places { return h.d.places }

func (h others) PriorityOnNIC() bool { return h.d.prio.onNIC() }

func (h others) PriorityCounters() (datapath.PriorityCounters, error) { return h.d.priorityCounters() }

func (h others) Split() bool { return h.d.pipe.armed && h.d.pipe.layout.Split }

func (h others) Aggregation() governor.State { return h.d.aggr.State() }

func (h others) AggregationMode() governor.Mode { return h.d.opts.Aggregate }

func (h others) Trials() *trial.Trials { return h.d.trials }

func (h others) BeginCensus() (express.Census, error) {
	c, err := h.d.beginCensus()
	if err != nil {
		return nil, err // and no census that is a nil pointer
	}
	return c, nil
}

func (h others) Kernel() express.Kernel { return h.d.dp }

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
