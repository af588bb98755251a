// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// bridging has bridges leave out netfilter's hooks of IP as long as they are unused. The hooks are
// policy: what comes to them finds them called again.
type bridging struct {
	judges *judges // nil while it does not act
	made   plan.Plan
	calls  int // settings that are there
	since  time.Time
	// checked is when all was looked at, back when a setting was last put back.
	checked, back, retry time.Time
	err                  error // why the last attempt failed
}

// calmFor is how long the hooks must have been unused before they are left out again: what
// comes and goes makes no setting flap.
const calmFor = 10 * time.Second

// stepBridging takes one window: decide, act.
func (d *Daemon) stepBridging(now time.Time) error {
	b := &d.bridge
	if !d.opts.SkipUnusedHooks {
		_, err := d.stopBridging()
		return err
	}
	active, err := d.isAwake(now)
	if err != nil {
		return err
	}
	active = active && now.After(b.retry)
	switch {
	case !active && b.judges == nil:
	case !active:
		_, err := d.stopBridging()
		return err
	case b.judges == nil || now.Sub(b.checked) >= checkEvery:
		return d.tryBridging(now)
	}
	return nil
}

// tryBridging makes it fit the node; where that fails, it leaves no trace.
func (d *Daemon) tryBridging(now time.Time) error {
	b := &d.bridge
	if b.err = d.followBridging(now); b.err != nil {
		b.retry = now.Add(retryAfter)
		d.log.Error("bridge-netfilter could not be put in place", "mechanism", "bridge-netfilter", "reason", b.err, "again_in", retryAfter)
		_, err := d.stopBridging()
		return err
	}
	return nil
}

// followBridging looks who is at the hooks, puts back first, and then leaves out.
func (d *Daemon) followBridging(now time.Time) error {
	b := &d.bridge
	if b.judges == nil {
		b.judges, b.since = d.newJudges(), now
	}
	b.checked = now
	calls, err := bridgeCalls(d.snap, b.judges)
	if err != nil {
		return err
	}
	b.calls = 0
	unused, here := map[plan.Setting]bool{}, map[plan.Target]bool{}
	for _, c := range calls {
		here[c.Target] = true
		unused[c.Setting] = c.Used == ""
		if c.Value != "" {
			b.calls++
		}
	}
	owned := d.owned(plan.ByBridging)
	over := func(s plan.Setting) bool { return !unused[s] }
	if back := slices.DeleteFunc(slices.Collect(maps.Keys(owned)), func(s plan.Setting) bool { return !over(s) }); len(back) > 0 {
		_, err = d.restore(plan.ByBridging, over)
		if slices.ContainsFunc(back, func(s plan.Setting) bool { return here[s.Target] }) {
			b.back = now
			d.log.Info("bridges call netfilter again", "mechanism", "bridge-netfilter", "settings", len(back))
		}
	}
	b.made = plan.BridgeCalls(calls, owned)
	if err == nil && now.Sub(b.back) >= calmFor {
		var refused map[plan.Target]string
		refused, err = d.carryOutEach(b.made.Steps)
		for target, why := range refused {
			b.made.Skipped = append(b.made.Skipped, plan.Skip{What: target.String(), Reason: why, Target: target})
		}
	}
	return err
}

// watchBridging puts back what a rule or program needs, while the daemon waits for something else.
func (d *Daemon) watchBridging() {
	now := time.Now()
	if d.bridge.judges == nil || !d.bridge.judges.stirred(now) {
		return
	}
	if err := d.tryBridging(now); err != nil {
		d.log.Warn("bridges may leave out netfilter for longer than they should", "mechanism", "bridge-netfilter", "reason", err)
	}
}

// stopBridging leaves no trace of it.
func (d *Daemon) stopBridging() (rep apply.Report, err error) {
	b := &d.bridge
	if b.judges == nil {
		return rep, nil
	}
	rep, err = d.restore(plan.ByBridging, nil)
	err = errors.Join(err, b.judges.close())
	b.judges, b.made, b.calls, b.since = nil, plan.Plan{}, 0, time.Now()
	return rep, err
}

// bridgeCalls looks at the namespaces in which a tunnel is a port of a bridge.
func bridgeCalls(snap node.Snapshot, by *judges) ([]plan.BridgeCall, error) {
	bridged := map[uint64]bool{}
	var calls []plan.BridgeCall
	var errs []error
	for _, t := range snap.Tunnels {
		if t.Bridge == nil || bridged[t.NetnsCookie] {
			continue
		}
		bridged[t.NetnsCookie] = true
		w, err := by.watcher(t.NetnsCookie)
		if err != nil {
			if !errors.Is(err, node.ErrGone) {
				errs = append(errs, err)
			}
			continue
		}
		for _, c := range w.BridgeCalls() {
			calls = append(calls, plan.BridgeCall{Setting: plan.CallsNetfilter(t.NetnsCookie, c.Sysctl), Value: c.Value, Used: c.Used})
		}
	}
	errs = append(errs, by.keep(func(cookie uint64) bool { return bridged[cookie] }))
	return calls, errors.Join(errs...)
}

// BridgingPlan says what leaving out unused hooks would change on a node. own tells of BPF programs
// that they are overlane's.
func BridgingPlan(s *node.Scanner, snap node.Snapshot, owned map[plan.Setting]plan.Owned, own func(progID uint32) bool) (plan.Plan, error) {
	j := newJudges(s, own)
	calls, err := bridgeCalls(snap, j)
	return plan.BridgeCalls(calls, owned), errors.Join(err, j.close())
}

// bridgingMechanism is what it does.
func (d *Daemon) bridgingMechanism() control.Mechanism {
	b := &d.bridge
	m := control.Mechanism{Name: "bridge-netfilter", State: control.Standby, Since: b.since}
	if m.Since.IsZero() {
		m.Since = d.since
	}
	left := ""
	if len(b.made.Skipped) > 0 {
		left = b.made.Skipped[0].What + ": " + b.made.Skipped[0].Reason
	}
	off := 0
	for s := range d.owned(plan.ByBridging) {
		if !slices.ContainsFunc(b.made.Skipped, func(k plan.Skip) bool { return k.What == s.String() }) {
			off++
		}
	}
	switch {
	case !d.opts.SkipUnusedHooks:
		m.State, m.Reason = control.Off, "netfilter's hooks are left as they are"
	case b.err != nil:
		m.Reason = fmt.Sprintf("could not be put in place, and is tried again every %s: %v", retryAfter, b.err)
	case b.judges == nil:
		m.Reason = "hardly a packet comes"
	case off > 0:
		m.State, m.Reason = control.Active, fmt.Sprintf("%d of %d settings by which bridges call netfilter are off: the hooks are unused", off, b.calls)
		if left != "" {
			m.Reason += "; " + left
		}
	case left != "":
		m.Reason = left
	case b.calls == 0:
		m.Reason = "no bridge with a tunnel calls netfilter"
	default:
		m.Reason = "nothing is to be left out"
	}
	return m
}
