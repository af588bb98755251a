// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"time"

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
	rules    []rules.Rule
	since    time.Time
}

// bulkTuning: latency traffic that pauses for longer than the window finds bulk on
// the stock path again; a lane with so much room delays what is in it by no more
// than about a millisecond.
var bulkTuning = datapath.PriorityTuning{Window: 50 * time.Millisecond, Room: 512}

// ErrTierXDP says that two mechanisms want the NIC's XDP hook.
var ErrTierXDP = errors.New("priority and the pipeline's tier xdp cannot be combined: set \"tier: tc\", or \"priority: {mode: off}\"")

// startPriority puts priority in place for rules.
func (d *Daemon) startPriority(list []rules.Rule) error {
	if d.opts.Tier == governor.XDP {
		return ErrTierXDP
	}
	table, err := rules.Compile(list)
	if err != nil {
		return err
	}
	p := &priority{attached: map[node.DevKey]io.Closer{}, rules: list, since: time.Now()}
	if p.dp, err = d.dp.LoadPriority(); err != nil {
		return err
	}
	d.prio = p
	if err := errors.Join(p.dp.SetTuning(bulkTuning), p.dp.SetRules(table), p.dp.StartLanes(d.cores)); err != nil {
		return err
	}
	return d.followPriority()
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
		case errors.Is(err, node.ErrGone):
		case errors.Is(err, datapath.ErrForeignXDP):
			p.skipped = append(p.skipped, plan.Skip{What: u.Dev.String(), Reason: foreignXDP})
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

// stopPriority takes it off. Frames in the lanes are still handled by their threads.
func (d *Daemon) stopPriority() error {
	if d.prio == nil {
		return nil
	}
	var errs []error
	for _, l := range d.prio.attached {
		errs = append(errs, l.Close())
	}
	errs = append(errs, d.prio.dp.Close())
	d.prio = nil
	return errors.Join(errs...)
}

// priorityMechanism is what priority does.
func (d *Daemon) priorityMechanism() control.Mechanism {
	m := control.Mechanism{Name: "priority", State: control.Off, Reason: "no rules", Since: d.since}
	if d.prio == nil {
		return m
	}
	m.State, m.Since = control.Active, d.prio.since
	m.Reason = fmt.Sprintf("%d rules; bulk makes way while latency traffic is about", len(d.prio.rules))
	return m
}
