// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
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
	all []mechanism.Mechanism

	aggregate *aggregate.Aggregate
	bridge    *bridgehooks.Hooks
	priority  *priority.Priority
	express   *express.Express
	pipeline  *pipeline.Pipeline
}

// newMechanisms makes them, with nothing in place.
func newMechanisms(a arbiter, opts Options) *mechanisms {
	m := &mechanisms{
		aggregate: aggregate.New(a, opts.Aggregate),
		bridge:    bridgehooks.New(a, opts.SkipUnusedHooks, a.d.since),
		priority:  priority.New(a, priority.OnNode(a.d.dp), opts.Priority, a.d.since),
		express:   express.New(a, a.d.dp, opts.Express, a.d.since),
		pipeline:  pipeline.New(a, a.d.dp, opts.Pipeline),
	}
	m.all = []mechanism.Mechanism{m.aggregate, m.bridge, m.priority, m.express, m.pipeline}
	return m
}

// configure gives each its part of the options. Priority alone may refuse its part: then the others keep theirs.
func (m *mechanisms) configure(ctx context.Context, opts Options) error {
	if err := m.priority.Configure(ctx, opts.Priority); err != nil {
		return err
	}
	m.aggregate.Configure(opts.Aggregate)
	m.bridge.Configure(opts.SkipUnusedHooks)
	m.express.Configure(opts.Express)
	m.pipeline.Configure(opts.Pipeline)
	return nil
}

// each has all of them do something, also those behind one that fails.
func (m *mechanisms) each(do func(mechanism.Mechanism) error) error {
	var errs []error
	for _, r := range m.all {
		errs = append(errs, do(r))
	}
	return errors.Join(errs...)
}

// any tells whether it is so of one of them.
func (m *mechanisms) any(is func(mechanism.Mechanism) bool) bool {
	return slices.ContainsFunc(m.all, is)
}

// stop takes back what each of them has changed.
func (m *mechanisms) stop(ctx context.Context) (all apply.Report, err error) {
	for _, one := range slices.Backward(m.all) {
		rep, e := one.Stop(ctx)
		all.Add(rep)
		err = errors.Join(err, e)
	}
	return all, err
}

// changes are what they are told of while they wait for it.
func (m *mechanisms) changes(ctx context.Context) (list []event) {
	for _, one := range m.all {
		list = append(list, on(one.Changed(), func(struct{}) error { return one.Follow(ctx, time.Now()) }))
	}
	return list
}

// tracing is what they need to have traced, together.
func (m *mechanisms) tracing() (t mechanism.Tracing) {
	for _, r := range m.all {
		t = t.Or(r.Tracing())
	}
	return t
}

// drops are the packets that were lost through one of them.
func (m *mechanisms) drops(c datapath.Counters) (all uint64, err error) {
	err = m.each(func(r mechanism.Mechanism) error {
		n, err := r.Drops(c)
		all += n
		return err
	})
	return all, err
}

// tries are the trials of all of them.
func (m *mechanisms) tries() (list []*trial.Trial) {
	for _, r := range m.all {
		list = append(list, r.Tries()...)
	}
	return list
}

// Foresee says what each would change on a node with these options, in the order of a status.
func Foresee(v *mechanism.View, opts Options) (all []mechanism.Outlook, err error) {
	opts.Priority.Tier = opts.Pipeline.Tier
	if err := opts.Priority.Fits(); err != nil {
		return nil, err
	}
	for _, foresee := range []func() ([]mechanism.Outlook, error){
		func() ([]mechanism.Outlook, error) { return aggregate.Foresee(v, opts.Aggregate) },
		func() ([]mechanism.Outlook, error) { return bridgehooks.Foresee(v, opts.SkipUnusedHooks) },
		func() ([]mechanism.Outlook, error) { return priority.Foresee(v, opts.Priority) },
		func() ([]mechanism.Outlook, error) { return express.Foresee(v, opts.Express, opts.Aggregate) },
		func() ([]mechanism.Outlook, error) { return pipeline.Foresee(v, opts.Pipeline) },
	} {
		list, err := foresee()
		if err != nil {
			return nil, err
		}
		all = append(list, all...)
	}
	return all, nil
}
