// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/xdp"
)

// Foresee says what rules change as soon as they are in force, and what a trial changes without them. It tells the view
// which cores threads of NICs are bound to, or will be.
func Foresee(v *mechanism.View, opts Options) ([]mechanism.Outlook, error) {
	asked := opts.prioritises(len(opts.Rules))
	tries := opts.OnDemand && !opts.Off && len(opts.Rules) == 0 && opts.mayTry()
	switch {
	case opts.No != nil && !opts.Off && (tries || opts.Auto || len(opts.Rules) > 0):
		return []mechanism.Outlook{{Name: name, Plan: plan.Priority(plan.PriorityInput{}), When: opts.No.Error()}}, nil
	case !asked && !tries:
		return nil, nil
	}
	attached := func(u node.Underlay) bool {
		return !u.ForeignXDP && slices.Contains([]string{plan.PriorityProgram, plan.TwoLanesProgram}, foreign.ProgramName(u.XDPProgID))
	}
	in := planInput(v.Scanner, v.Snapshot, v.Cores, v.Owned(plan.ByPriority), attached, v.Places, xdp.Want{By: xdp.Priority, Asked: asked})
	in.NoThreads, in.Realtime, in.Flooded = opts.NoThreads, !opts.NoThreads && !opts.Fair, notInRealtime(v.Changed)
	if opts.Sync {
		in.Tunnels = syncTunnels(v.Snapshot)
	}
	for i, nic := range in.NICs {
		noXDP := func(f probe.Feature) bool {
			return f.ID == probe.NativeXDP && f.Device == nic.Name && f.State == probe.Unsupported
		}
		if nic.Unfit == "" && !nic.Attached && slices.ContainsFunc(v.Features, noXDP) {
			in.NICs[i].Unfit = "no XDP program: its driver has no native XDP with the present settings"
		}
	}
	out := mechanism.Outlook{Name: name, Plan: plan.Priority(in)}
	v.Polled = polled(in, out.Plan)
	out.Attach = v.Missing(out.Attach)
	for _, nic := range in.NICs {
		if asked && nic.Unfit == "" {
			if v.Prioritised == nil {
				v.Prioritised = map[node.DevKey]bool{}
			}
			v.Prioritised[node.Dev(nic.Target).Key()] = true
		}
	}
	by := "small, sparse flows"
	if n := len(opts.Rules); n > 0 {
		by = printable.Plural(n, "rule")
	}
	switch {
	case out.Empty() && len(in.NICs) == 0:
		out.When = "for priority, run would wait for an underlay: there is none yet"
	case out.Empty() && slices.ContainsFunc(in.NICs, func(u plan.Underlay) bool { return u.Attached }):
		out.When = "for priority, nothing is to be changed: the running daemon has done it"
	case out.Empty():
		out.When = "for priority, run would change nothing here now"
	case asked:
		out.When = fmt.Sprintf("for priority (%s), run would do this at once:", by)
	default:
		out.When = "once small, sparse flows have to wait behind others, run would do this, on trial:"
	}
	return []mechanism.Outlook{out}, nil
}

// polled are the cores that threads of NICs are bound to by a plan, and where another program has bound them.
func polled(in plan.PriorityInput, p plan.Plan) (cores []int) {
	for _, nic := range in.NICs {
		for _, th := range nic.Threads {
			moves := func(s plan.Step) bool { return s.Setting == plan.Thread(nic.Target, th.ID) }
			if len(th.Sched.Cores) == 1 && !slices.ContainsFunc(p.Steps, moves) {
				cores = append(cores, th.Sched.Cores...)
			}
		}
	}
	for _, s := range p.Steps {
		if want, err := plan.ParseSched(s.Want); s.Kind == plan.ThreadSched && err == nil {
			cores = append(cores, want.Cores...)
		}
	}
	for _, f := range p.Future {
		cores = append(cores, in.Cores[:min(f.Count, len(in.Cores))]...)
	}
	slices.Sort(cores)
	return slices.Compact(cores)
}

// notInRealtime are the cores on which the running daemon has threads that it does not run in real time.
func notInRealtime(changed []apply.Entry) (cores []int) {
	for _, e := range changed {
		if sched, err := plan.ParseSched(e.Wrote); e.By == plan.ByPriority && err == nil && sched.Policy != "fifo" {
			cores = append(cores, sched.Cores...)
		}
	}
	return cores
}
