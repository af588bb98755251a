// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/bridgehooks"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/trial"
)

// mechanisms are all that there are. all has them in the order in which they decide in a window: of two that could
// be tried out, the first is. They are stopped, and stand in a status, in the opposite order. The arbiter knows them
// by name.
type mechanisms struct {
	all []registered

	priority  *priority.Priority
	aggregate *aggregate.Aggregate
	bridge    *bridgehooks.Hooks
	express   *express.Express
	pipeline  *pipeline.Pipeline
}

// registered is a mechanism, with what gives it its part of the daemon's options.
type registered struct {
	mechanism.Mechanism
	configure func(context.Context, Options) error
}

// newMechanisms makes them, with nothing in place.
func newMechanisms(a arbiter, opts Options) *mechanisms {
	m := &mechanisms{
		priority:  priority.New(a, a.d.dp, opts.Priority, a.d.since),
		aggregate: aggregate.New(a, opts.Aggregate),
		bridge:    bridgehooks.New(a, opts.SkipUnusedHooks, a.d.since),
		express:   express.New(a, a.d.dp, opts.Express, a.d.since),
		pipeline:  pipeline.New(a, a.d.dp, opts.Pipeline),
	}
	m.all = []registered{
		{m.priority, func(ctx context.Context, o Options) error { return m.priority.Configure(ctx, o.Priority) }},
		{m.aggregate, func(_ context.Context, o Options) error { m.aggregate.Configure(o.Aggregate); return nil }},
		{m.bridge, func(_ context.Context, o Options) error { m.bridge.Configure(o.SkipUnusedHooks); return nil }},
		{m.express, func(_ context.Context, o Options) error { m.express.Configure(o.Express); return nil }},
		{m.pipeline, func(_ context.Context, o Options) error { m.pipeline.Configure(o.Pipeline); return nil }},
	}
	return m
}

// configure gives each its part of the options. priority is the first, as it may refuse them: then nothing has
// changed.
func (m *mechanisms) configure(ctx context.Context, opts Options) error {
	for _, r := range m.all {
		if err := r.configure(ctx, opts); err != nil {
			return err
		}
	}
	return nil
}

// each has all of them do something, also those behind one that fails.
func (m *mechanisms) each(do func(registered) error) error {
	var errs []error
	for _, r := range m.all {
		errs = append(errs, do(r))
	}
	return errors.Join(errs...)
}

// any tells whether it is so of one of them.
func (m *mechanisms) any(is func(mechanism.Mechanism) bool) bool {
	for _, r := range m.all {
		if is(r) {
			return true
		}
	}
	return false
}

// stop takes back what each of them has changed.
func (m *mechanisms) stop(ctx context.Context) (all apply.Report, err error) {
	for i := len(m.all) - 1; i >= 0; i-- {
		rep, e := m.all[i].Stop(ctx)
		all.Add(rep)
		err = errors.Join(err, e)
	}
	return all, err
}

// tracing is what they need to have traced, together.
func (m *mechanisms) tracing() (t mechanism.Tracing) {
	for _, r := range m.all {
		t = t.Or(r.Tracing())
	}
	return t
}

// tries are the trials of all of them.
func (m *mechanisms) tries() (list []*trial.Trial) {
	for _, r := range m.all {
		list = append(list, r.Tries()...)
	}
	return list
}
