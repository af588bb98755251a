// SPDX-License-Identifier: Apache-2.0

// Package bridgehooks has bridges leave out netfilter's hooks of IP as long as they are unused. The hooks are
// policy: what comes to them finds them called again.
package bridgehooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// name as status and log have it.
const name = string(plan.ByBridging)

// Hooks are the mechanism.
type Hooks struct {
	mechanism.Base
	host mechanism.Host
	// calls looks by which settings the node's bridges call netfilter, and what is at these hooks.
	calls func(node.Snapshot, *shortcut.Watchers) ([]plan.BridgeCall, error)
	on    bool

	watchers *shortcut.Watchers // nil while it does not act
	made     plan.Plan
	settings int                  // that are there
	here     map[plan.Target]bool // namespaces with a bridge that has a tunnel
	since    time.Time
	// checked is when all was checked, back when a setting was last put back.
	checked, back, retry time.Time
	err                  error // why the last attempt failed
}

// calmFor is how long the hooks must have been unused before they are left out again: what
// comes and goes makes no setting flap.
const calmFor = 10 * time.Second

// New is the mechanism of a daemon that began then.
func New(host mechanism.Host, on bool, began time.Time) *Hooks {
	return &Hooks{host: host, calls: calls, on: on, since: began}
}

// Configure switches it on or off, from the next step on.
func (h *Hooks) Configure(on bool) { h.on = on }

// Step is mechanism.Mechanism's: decide, act.
func (h *Hooks) Step(_ context.Context, now time.Time) error {
	if !h.on {
		_, err := h.stop(now)
		return err
	}
	awake, err := h.host.Awake(now)
	if err != nil {
		return err
	}
	awake = awake && now.After(h.retry)
	switch {
	case !awake && !h.Polls():
	case !awake:
		_, err := h.stop(now)
		return err
	case !h.Polls() || now.Sub(h.checked) >= mechanism.CheckEvery:
		return h.try(now)
	}
	return nil
}

// Polls is mechanism.Mechanism's: it may have changed something.
func (h *Hooks) Polls() bool { return h.watchers != nil }

// Changed is mechanism.Mechanism's: somewhere a rule, a program or a setting has come or gone.
func (h *Hooks) Changed() <-chan struct{} { return h.watchers.Changed() }

// Rescanned is mechanism.Mechanism's: the next step is a full scan.
func (h *Hooks) Rescanned(context.Context) error {
	h.checked = time.Time{}
	return nil
}

// Poll is mechanism.Mechanism's.
func (h *Hooks) Poll(_ context.Context, now time.Time) error {
	if h.Polls() && h.watchers.Poll() {
		return h.try(now)
	}
	return nil
}

// Meanwhile is mechanism.Mechanism's: it puts back what a rule or program needs.
func (h *Hooks) Meanwhile(now time.Time) {
	if !h.Polls() || !h.watchers.Stale(now) {
		return
	}
	if err := h.try(now); err != nil {
		h.host.Log().Warn("bridges may leave out netfilter for longer than they should", "mechanism", name, "reason", err)
	}
}

// Follow is mechanism.Mechanism's.
func (h *Hooks) Follow(_ context.Context, now time.Time) error { return h.try(now) }

// try makes it fit the node; where that fails, it leaves no trace.
func (h *Hooks) try(now time.Time) error {
	if h.err = h.follow(now); h.err != nil {
		h.retry = now.Add(mechanism.RetryAfter)
		h.host.Log().Error("bridge-netfilter could not be put in place", "mechanism", name, "reason", h.err, "again_in", mechanism.RetryAfter)
		_, err := h.stop(now)
		return err
	}
	return nil
}

// follow reads what uses the hooks, puts back first, and then leaves out.
func (h *Hooks) follow(now time.Time) error {
	if h.watchers == nil {
		h.watchers, h.since = h.host.Watchers(), now
	}
	h.checked = now
	calls, err := h.calls(h.host.Snapshot(), h.watchers)
	if err != nil {
		return err
	}
	h.settings, h.here = 0, map[plan.Target]bool{}
	unused := map[plan.Setting]bool{}
	for _, c := range calls {
		h.here[c.Target] = true
		unused[c.Setting] = c.Used == ""
		if c.Value != "" {
			h.settings++
		}
	}
	owned := h.host.Owned(plan.ByBridging)
	rep, err := h.host.RestoreUnneeded(plan.ByBridging, func(s plan.Setting) bool { return unused[s] })
	// A rule may wait for the hooks: nothing more is left out beside. Of a namespace without such a bridge the
	// journal and the status have what is kept, and no other namespace waits for it.
	rep.Results = slices.DeleteFunc(rep.Results, func(r apply.Result) bool { return !h.here[r.Target] })
	err = errors.Join(err, rep.Left())
	if back := len(rep.Results); back > 0 {
		h.back = now
		h.host.Log().Info("bridges call netfilter again", "mechanism", name, "settings", back)
	}
	h.made = plan.BridgeCalls(calls, owned)
	if err == nil && now.Sub(h.back) >= calmFor {
		var refused map[plan.Target]string
		refused, err = h.host.CarryOut(h.made.Steps)
		for target, why := range refused {
			h.made.Skipped = append(h.made.Skipped, plan.Skip{What: target.String(), Reason: "left alone: " + why, Target: target})
		}
	}
	return err
}

// Stop is mechanism.Mechanism's.
func (h *Hooks) Stop(context.Context) (apply.Report, error) { return h.stop(time.Now()) }

// stop leaves no trace of it.
func (h *Hooks) stop(now time.Time) (rep apply.Report, err error) {
	if !h.Polls() {
		return rep, nil
	}
	rep, err = h.host.Restore(plan.ByBridging, nil)
	err = errors.Join(err, h.watchers.Close())
	h.watchers, h.made, h.settings, h.since = nil, plan.Plan{}, 0, now
	return rep, err
}

// calls checks the namespaces in which a tunnel is a port of a bridge.
func calls(snap node.Snapshot, by *shortcut.Watchers) ([]plan.BridgeCall, error) {
	var bridged []uint64
	for _, t := range snap.Tunnels {
		if t.Bridge != nil && !slices.Contains(bridged, t.NetnsCookie) {
			bridged = append(bridged, t.NetnsCookie)
		}
	}
	var calls []plan.BridgeCall
	err := by.Each(bridged, func(_ uint64, w *shortcut.Watcher) { calls = append(calls, w.BridgeCalls()...) })
	return calls, err
}

// Foresee says what changes at bridges that call netfilter's hooks though these are unused; on: they are to leave
// them out.
func Foresee(v *mechanism.View, on bool) ([]mechanism.Outlook, error) {
	if !on {
		return nil, nil
	}
	ws := shortcut.NewWatchers(v.Scanner, v.Owns, nil)
	all, err := calls(v.Snapshot, ws)
	if err := errors.Join(err, ws.Close()); err != nil {
		return nil, err
	}
	out := mechanism.Outlook{Name: name, Plan: plan.BridgeCalls(all, v.Owned(plan.ByBridging))}
	switch {
	case len(out.Steps) == 0 && len(out.Skipped) > 0:
		out.When = "run would have bridges call netfilter as they do:"
	case len(out.Steps) == 0:
		out.When = "no bridge with a tunnel calls netfilter"
	default:
		out.When = "once packets come fast, run would have bridges leave out netfilter's unused hooks:"
	}
	return []mechanism.Outlook{out}, nil
}

// Report is mechanism.Mechanism's.
func (h *Hooks) Report() []control.Mechanism {
	m := control.Mechanism{Name: name, State: control.Standby, Since: h.since}
	left := ""
	if len(h.made.Skipped) > 0 {
		left = h.made.Skipped[0].What + ": " + h.made.Skipped[0].Reason
	}
	off := 0
	for s := range h.host.Owned(plan.ByBridging) {
		if h.here[s.Target] && !slices.ContainsFunc(h.made.Skipped, func(k plan.Skip) bool { return k.What == s.String() }) {
			off++
		}
	}
	switch {
	case !h.on:
		m.State, m.Reason = control.Off, "netfilter's hooks are left as they are"
	case h.err != nil:
		m.Reason = fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, h.err)
	case !h.Polls():
		m.Reason = "hardly a packet comes"
	case off > 0:
		m.State, m.Reason = control.Active, fmt.Sprintf("%d of %d settings by which bridges call netfilter are off: the hooks are unused", off, h.settings)
		if left != "" {
			m.Reason += "; " + left
		}
	case left != "":
		m.Reason = left
	case h.settings == 0:
		m.Reason = "no bridge with a tunnel calls netfilter"
	default:
		m.Reason = "nothing is to be left out"
	}
	return []control.Mechanism{m}
}
