// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// priority lets flows of the latency class overtake bulk. It is in place as long as
// there are rules: bulk makes way only while latency traffic is about.
type priority struct {
	dp       *datapath.Priority
	attached map[node.DevKey]io.Closer
	skipped  []plan.Skip // underlays with somebody else's XDP program
	since    time.Time
}

// bulkTuning: latency traffic that pauses for longer than the window finds bulk on
// the stock path again; a lane with so much room delays what is in it by no more
// than about a millisecond.
var bulkTuning = datapath.PriorityTuning{Window: 50 * time.Millisecond, Room: 512}

// ErrTierXDP says that two mechanisms want the NIC's XDP hook.
var ErrTierXDP = errors.New("priority and the pipeline's tier xdp cannot be combined: set \"tier: tc\", or \"priority: {mode: off}\"")

// useRules puts lists of rules in force: those that were added at run time, then those
// of the configuration. An error changes nothing.
func (d *Daemon) useRules(ctx context.Context, added, configured []rules.Rule) error {
	list := slices.Concat(added, configured)
	for i, r := range list {
		if slices.ContainsFunc(list[:i], func(o rules.Rule) bool { return o.Name == r.Name }) {
			return fmt.Errorf("there is a rule %q already", r.Name)
		}
	}
	table, err := rules.Compile(list)
	if err != nil {
		return err
	}
	switch {
	case len(list) == 0:
		_, err = d.stopPriority(ctx)
	case d.prio == nil:
		err = d.startPriority(table)
	default:
		err = d.prio.dp.SetRules(table)
	}
	if err == nil {
		d.added, d.opts.Rules = added, configured
	}
	return err
}

// startPriority puts priority in place.
func (d *Daemon) startPriority(table *rules.Table) error {
	if d.opts.Tier == governor.XDP {
		return ErrTierXDP
	}
	p := &priority{attached: map[node.DevKey]io.Closer{}, since: time.Now()}
	var err error
	if p.dp, err = d.dp.LoadPriority(); err != nil {
		return err
	}
	d.prio = p
	// Bulk stays where it is until the NICs' threads are where they will be.
	err = errors.Join(p.dp.SetTuning(datapath.PriorityTuning{}), p.dp.SetRules(table), p.dp.StartLanes(d.cores))
	if err == nil {
		err = d.followPriority()
	}
	if err == nil {
		err = p.dp.SetTuning(bulkTuning)
	}
	if err != nil {
		_, undo := d.stopPriority(context.Background())
		return errors.Join(err, undo)
	}
	return nil
}

// followPriority hangs the hook on the underlays that lack it.
func (d *Daemon) followPriority() error {
	if d.prio == nil {
		return nil
	}
	p := d.prio
	want := map[node.DevKey]bool{}
	var errs []error
	p.skipped = nil
	for _, u := range d.snap.Underlays {
		want[u.Key()] = true
		switch {
		case p.attached[u.Key()] != nil:
			continue
		case u.VLANs:
			p.skipped = append(p.skipped, plan.Skip{What: u.Dev.String(), Reason: noXDPUnderVLANs})
			continue
		}
		l, err := d.pipe.hang(u.Dev, p.dp.AttachXDP)
		switch {
		case err == nil:
			p.attached[u.Key()] = l
			if err := d.threadNAPI(u); err != nil {
				d.log.Warn("the NIC is polled in softirq: bulk may starve under overload", "device", u.Dev, "reason", err)
			}
		case errors.Is(err, node.ErrGone):
		case errors.Is(err, datapath.ErrForeignXDP):
			p.skipped = append(p.skipped, plan.Skip{What: u.Dev.String(), Reason: foreignXDP})
		case errors.Is(err, unix.EOPNOTSUPP):
			p.skipped = append(p.skipped, plan.Skip{What: u.Dev.String(), Reason: NoNativeXDP})
		default:
			errs = append(errs, err)
		}
	}
	for key, l := range p.attached {
		if !want[key] {
			errs = append(errs, l.Close())
			delete(p.attached, key)
		}
	}
	return errors.Join(errs...)
}

// renewLanes makes new bulk lanes on cores that were offline, or were about to be: the
// threads of the old ones may run elsewhere, and the hook knows.
func (d *Daemon) renewLanes() error {
	if d.prio == nil {
		return nil
	}
	strayed, err := d.dp.StrayedLanes()
	if err != nil {
		return err
	}
	back := func(core int) bool { return slices.Contains(strayed, core) && slices.Contains(d.cores, core) }
	if !slices.ContainsFunc(strayed, back) {
		return nil
	}
	if err := d.dp.EndLanes(back); err != nil {
		return err
	}
	for _, core := range strayed {
		d.lost[core] = true
	}
	err = d.prio.dp.StartLanes(d.cores)
	d.placeThreads()
	return err
}

// stopPriority takes it off, once bulk is on the stock path again.
func (d *Daemon) stopPriority(ctx context.Context) (rep apply.Report, err error) {
	if d.prio == nil {
		return rep, nil
	}
	err = d.bulkHome(ctx)
	for _, l := range d.prio.attached {
		err = errors.Join(err, l.Close())
	}
	clear(d.prio.attached)
	past, e := d.priorityCounters()
	if err = errors.Join(err, e); e == nil {
		d.prioPast = past
	}
	rep, e = d.restoreThreads()
	err = errors.Join(err, e, d.prio.close())
	d.prio = nil
	return rep, err
}

// priorityCounters counts since the daemon started.
func (d *Daemon) priorityCounters() (datapath.PriorityCounters, error) {
	if d.prio == nil {
		return d.prioPast, nil
	}
	now, err := d.prio.dp.Counters()
	return d.prioPast.Add(now), err
}

// waitPromoted waits until no core sends bulk to its lane, and the lanes are empty.
func (d *Daemon) waitPromoted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		demoted, err := d.prio.dp.Demoted()
		if err != nil || demoted == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bulk is in the lanes of %d cores: %w", demoted, errFlowsOut)
		case <-tick.C:
		}
	}
}

func (p *priority) close() error {
	var errs []error
	for _, l := range p.attached {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.dp.Close())...)
}

// AddRule implements control.Handler.
func (d *Daemon) AddRule(ctx context.Context, r rules.Rule) error {
	return d.changeRules(ctx, func() ([]rules.Rule, error) { return append(slices.Clone(d.added), r), nil })
}

// DelRule implements control.Handler.
func (d *Daemon) DelRule(ctx context.Context, name string) error {
	return d.changeRules(ctx, func() ([]rules.Rule, error) {
		named := func(r rules.Rule) bool { return r.Name == name }
		if slices.ContainsFunc(d.added, named) {
			return slices.DeleteFunc(slices.Clone(d.added), named), nil
		}
		if slices.ContainsFunc(d.opts.Rules, named) {
			return nil, fmt.Errorf("rule %q is the configuration's: take it out of the file, and send the daemon SIGHUP", name)
		}
		return nil, fmt.Errorf("there is no rule %q", name)
	})
}

func (d *Daemon) changeRules(ctx context.Context, change func() ([]rules.Rule, error)) error {
	var err error
	e := d.do(ctx, func() {
		var added []rules.Rule
		if added, err = change(); err == nil {
			err = d.useRules(ctx, added, d.opts.Rules)
		}
	})
	return errors.Join(e, err)
}

// priorityMechanism is what priority does.
func (d *Daemon) priorityMechanism() control.Mechanism {
	m := control.Mechanism{Name: "priority", State: control.Off, Reason: "there are no rules", Since: d.since}
	if d.prio == nil {
		return m
	}
	n := len(d.added) + len(d.opts.Rules)
	m.State, m.Since = control.Active, d.prio.since
	m.Reason = fmt.Sprintf("%d rules; bulk makes way while latency traffic is about", n)
	if n == 1 {
		m.Reason = "1 rule; bulk makes way while latency traffic is about"
	}
	if len(d.prio.attached) == 0 {
		m.State, m.Reason = control.Standby, "no underlay takes its program, see the devices"
	}
	return m
}
