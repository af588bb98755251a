// SPDX-License-Identifier: Apache-2.0

// Package mechanismtest has a Host for unit tests of mechanisms: a node that is a map of settings.
package mechanismtest

import (
	"bytes"
	"fmt"
	"log/slog"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// Host is a mechanism.Host.
type Host struct {
	Node     node.Snapshot
	IsAwake  bool
	Values   map[plan.Setting]string // what the kernel has
	Refuses  map[plan.Target]string  // devices that take no value, and why
	Logged   bytes.Buffer
	Fails    error // of the next that is asked of it
	journal  map[plan.Setting]plan.Step
	Restored int // times that something was taken back
}

// New is a node with such settings, on which packets come.
func New(values map[plan.Setting]string) *Host {
	return &Host{IsAwake: true, Values: values, Refuses: map[plan.Target]string{}, journal: map[plan.Setting]plan.Step{}}
}

func (h *Host) fail() error {
	err := h.Fails
	h.Fails = nil
	return err
}

// Log is mechanism.Host's.
func (h *Host) Log() *slog.Logger { return slog.New(slog.NewTextHandler(&h.Logged, nil)) }

// Snapshot is mechanism.Host's.
func (h *Host) Snapshot() node.Snapshot { return h.Node }

// Awake is mechanism.Host's.
func (h *Host) Awake(time.Time) (bool, error) { return h.IsAwake, h.fail() }

// Watchers is mechanism.Host's: they watch nothing.
func (h *Host) Watchers() *shortcut.Watchers { return shortcut.NewWatchers(nil, nil, nil) }

// Owned is mechanism.Host's.
func (h *Host) Owned(by plan.Owner) map[plan.Setting]plan.Owned {
	owned := map[plan.Setting]plan.Owned{}
	for s, step := range h.journal {
		if step.By == by {
			owned[s] = plan.Owned{First: step.Was, Wrote: step.Want}
		}
	}
	return owned
}

// Restore is mechanism.Host's.
func (h *Host) Restore(by plan.Owner, which func(plan.Setting) bool) (rep apply.Report, err error) {
	for s, owned := range h.Owned(by) {
		if which == nil || which(s) {
			h.Values[s] = owned.First
			delete(h.journal, s)
			h.Restored++
			rep.Results = append(rep.Results, apply.Result{Setting: s})
		}
	}
	return rep, h.fail()
}

// CarryOut is mechanism.Host's.
func (h *Host) CarryOut(steps []plan.Step) (map[plan.Target]string, error) {
	refused := map[plan.Target]string{}
	for _, s := range steps {
		if why := h.Refuses[s.Target]; why != "" {
			refused[s.Target] = why
			continue
		}
		if h.Values[s.Setting] != s.Was {
			return refused, fmt.Errorf("%s is %q, and was to be %q", s.Setting, h.Values[s.Setting], s.Was)
		}
		h.Values[s.Setting], h.journal[s.Setting] = s.Want, s
	}
	return refused, h.fail()
}
