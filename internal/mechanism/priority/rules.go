// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// useRules puts lists of rules in force: those that were added at run time, then those
// of the configuration. An error changes nothing.
func (p *Priority) useRules(ctx context.Context, added, configured []rules.Rule) error {
	table, err := compile(added, configured)
	if err != nil {
		return err
	}
	list := slices.Concat(added, configured)
	switch {
	case !p.opts.prioritises(len(list)) && (p.opts.Off || p.opts.No != nil || !p.demand.on):
		_, err = p.Stop(ctx)
	case p.placed == nil:
		err = p.start(ctx, table)
	default:
		err = p.replaceRules(ctx, table, p.opts.prioritises(len(list)))
	}
	if err != nil {
		return err
	}
	p.host.RulesChanged(plan.ByPriority, p.rules(), list)
	p.added, p.opts.Rules = added, configured
	return nil
}

// compile makes a table of rules, whose names differ.
func compile(added, configured []rules.Rule) (*rules.Table, error) {
	list := slices.Concat(added, configured)
	for i, r := range list {
		if slices.ContainsFunc(list[:i], func(o rules.Rule) bool { return o.Name == r.Name }) {
			return nil, fmt.Errorf("there is a rule %q already", r.Name)
		}
	}
	return rules.Compile(list)
}

// replaceRules has other rules in force where priority is in place. asked: what demand has put in place stays, and is
// not on trial any more. An error changes nothing.
func (p *Priority) replaceRules(ctx context.Context, table *rules.Table, asked bool) error {
	frames, err := p.ruleFrames()
	if err == nil {
		err = p.placed.dp.SetRules(table)
	}
	if err != nil {
		return err
	}
	p.placed.frames = frames // counted anew from here on
	p.demand.on = p.demand.on && !asked
	// A NIC that was left alone by itself may be asked for now.
	p.keepUp(ctx)
	return nil
}

// rules are all that there are: those that were added at run time, then those of the configuration.
func (p *Priority) rules() []rules.Rule { return slices.Concat(p.added, p.opts.Rules) }

// ruleFrames counts the frames of each rule in force, by name.
func (p *Priority) ruleFrames() (map[string]uint64, error) {
	sum := map[string]uint64{}
	if p.placed == nil {
		return sum, nil
	}
	now, err := p.placed.dp.RuleFrames()
	if err != nil {
		return nil, err
	}
	for i, r := range p.rules() {
		if i < len(now) {
			sum[r.Name] = p.placed.frames[r.Name] + now[i]
		}
	}
	return sum, nil
}

// maxSparse bounds what status tells of flows.
const maxSparse = 50

// sparseFlows tells which flows are latency by themselves, and why.
func (p *Priority) sparseFlows() (list []control.SparseFlow, err error) {
	if p.placed == nil || !p.opts.Auto && !p.demand.on {
		return nil, nil
	}
	flows, err := p.placed.dp.SparseFlows()
	if err != nil {
		return nil, err
	}
	for _, f := range flows[:min(len(flows), maxSparse)] {
		where := fmt.Sprintf("vni %d", f.VNI)
		if f.Host {
			where = "host"
		}
		list = append(list, control.SparseFlow{
			Flow: fmt.Sprintf("%s %s > %s, %s", rules.ProtoName(f.Proto), f.Src, f.Dst, where),
			Core: f.Core,
			Reason: fmt.Sprintf("at most %d packets and %d bytes in a tenth of a second, for %s; %d and %d in the last",
				sparseFrames, sparseBytes, f.For, f.Frames, f.Bytes),
		})
	}
	return list, nil
}

// AddRule puts one more rule in force. An error changes nothing.
func (p *Priority) AddRule(ctx context.Context, r rules.Rule) error {
	return p.useRules(ctx, append(slices.Clone(p.added), r), p.opts.Rules)
}

// DelRule takes away a rule that was added at run time. An error changes nothing.
func (p *Priority) DelRule(ctx context.Context, ruleName string) error {
	named := func(r rules.Rule) bool { return r.Name == ruleName }
	switch {
	case slices.ContainsFunc(p.added, named):
		return p.useRules(ctx, slices.DeleteFunc(slices.Clone(p.added), named), p.opts.Rules)
	case slices.ContainsFunc(p.opts.Rules, named):
		return fmt.Errorf("rule %q is the configuration's: take it out of the file, and send the daemon SIGHUP", ruleName)
	}
	return fmt.Errorf("there is no rule %q", ruleName)
}
