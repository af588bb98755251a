// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/mechanism/bridgehooks"
	"github.com/overlane/overlane/internal/mechanism/express"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/xdp"
)

// outlook is what plan prints.
type outlook struct {
	Schema int `json:"schema"`
	plan.Plan
	Placement placement `json:"placement"`
	// When says under which condition `run` carries the plan out.
	When string `json:"when"`
	// Priority has a plan of its own: with rules it does not wait for load, and where flows
	// are evaluated by what a trial shows it waits for more. Nil where neither is asked for.
	Priority *priorityOutlook `json:"priority,omitempty"`
	// Microflows have a plan of their own as well; nil where flows are not to be split.
	Microflows *plannedOutlook `json:"microflows,omitempty"`
	// Aggregate has one, too; nil where it is switched off.
	Aggregate *plannedOutlook `json:"aggregate,omitempty"`
	// Express has one where it is asked for.
	Express *plannedOutlook `json:"express,omitempty"`
	// BridgeNetfilter as well.
	BridgeNetfilter *plannedOutlook `json:"bridge_netfilter,omitempty"`
	// Namespaces are what the namespaces are that targets have a number of.
	Namespaces []node.Place `json:"namespaces"`

	names names.Names
}

// plannedOutlook is the plan of one mechanism.
type plannedOutlook struct {
	plan.Plan
	When string `json:"when"`
}

type priorityOutlook struct {
	plan.PriorityPlan
	When string `json:"when"`
	// bound are the cores of threads that stay where another program has bound them.
	bound []int
}

// placement is which cores the stages go on on.
type placement struct {
	NIC    config.CPUList `json:"nic"`
	Tunnel config.CPUList `json:"tunnel"`
	Pod    config.CPUList `json:"pod"`
	Reason string         `json:"reason"`
	// inPlace: a running daemon has its programs attached already.
	inPlace bool
}

func newPlanCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "What run would change on this node, with the way back",
		Long: `Shows what "overlane run" would change once it acts. Nothing is changed by plan.

Each step has the setting, its value now and the new one, the reason, and what
takes it back. Then come the programs that would be attached, and the devices
that are left as they are, with the reason.

Priority rules of the configuration act at once, without waiting for load; they
have a part of their own.

Without a running daemon nothing has been measured yet. The cores are then chosen
by typical costs, and by which core has received most since boot. The daemon
decides by what it measures.`,
		Example: `  overlane plan
  overlane plan --config /etc/overlane/config.yaml
  overlane plan --json | jq .steps,.priority.steps`,
		Args: cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{
			cli.ExitOK:      "the plan is printed, also when there is nothing to change",
			cli.ExitVerdict: "",
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot("plan"); err != nil {
				return err
			}
			if err := needCapabilities(); err != nil {
				return err
			}
			cfg, err := loadConfig(file)
			if err != nil {
				return err
			}
			out, err := makePlan(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if global.json {
				return cli.JSON(cmd.OutOrStdout(), out)
			}
			return out.show(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE`; without, the defaults")
	return cmd
}

func (o outlook) show(w io.Writer) error {
	s := newScreen(w)
	// write prints a part with the names of containers in the place of numbers.
	write := func(part interface{ WriteText(io.Writer) error }) error {
		var b strings.Builder
		if err := part.WriteText(&b); err != nil {
			return err
		}
		_, err := io.WriteString(w, printable.Lines(o.names.Text(b.String())))
		return err
	}
	s.line(cell{o.When, bold})
	if !o.Empty() || len(o.Skipped) > 0 {
		s.line(cell{"placement by " + o.Placement.Reason, dim})
		if err := write(o.Plan); err != nil {
			return err
		}
	}
	if o.Priority != nil {
		s.line()
		s.line(cell{o.Priority.When, bold})
		if !o.Priority.Empty() || len(o.Priority.Skipped) > 0 {
			if err := write(o.Priority); err != nil {
				return err
			}
		}
	}
	for _, m := range []*plannedOutlook{o.Microflows, o.Aggregate, o.Express, o.BridgeNetfilter} {
		if m == nil {
			continue
		}
		s.line()
		s.line(cell{m.When, bold})
		if m.Empty() && len(m.Skipped) == 0 {
			continue
		}
		if err := write(m); err != nil {
			return err
		}
	}
	return nil
}

func makePlan(ctx context.Context, cfg *config.Config) (outlook, error) {
	out := outlook{Schema: control.Schema, Namespaces: []node.Place{}, Plan: plan.Plan{Steps: []plan.Step{}, Attach: []plan.Attachment{}, Skipped: []plan.Skip{}}}
	if prioritises(cfg) && cfg.Tier == config.TierXDP {
		return out, priority.ErrTierXDP // as run says
	}
	cores, err := coresOf(cfg)
	if err != nil {
		return out, err
	}
	s, l, err := scanNode(ctx, cfg.Underlays, ownIfRunning())
	if err != nil {
		return out, err
	}
	defer s.Close()
	out.names = names.New(s, l.snap)
	out.Namespaces = out.names.Places()
	if err := requireTier(cfg, l.tiers); err != nil {
		return out, err
	}
	if cfg.Pipeline == config.ModeOff {
		out.When = "the pipeline is switched off by configuration"
		if !prioritises(cfg) && !triesPriority(cfg) && !splits(cfg, l) && cfg.Aggregate == config.ModeOff && cfg.Express == config.ModeOff && cfg.BridgeNetfilter == config.HooksKept {
			out.When = "run would only watch: " + out.When
			return out, nil
		}
	}
	changed, err := changedSettings()
	if err != nil {
		return out, err
	}
	if cfg.Aggregate != config.ModeOff {
		if out.Aggregate, err = planAggregate(cfg.Aggregate, s, l, changed); err != nil {
			return out, err
		}
	}
	if cfg.Express != config.ModeOff {
		if out.Express, err = planExpress(cfg, s, l, changed); err != nil {
			return out, err
		}
	}
	if cfg.BridgeNetfilter != config.HooksKept {
		if out.BridgeNetfilter, err = planBridging(s, l, changed); err != nil {
			return out, err
		}
	}
	switch no := l.noPriority(); {
	case !prioritises(cfg) && !triesPriority(cfg):
	case no != nil:
		out.Priority = &priorityOutlook{When: no.Error()}
	default:
		out.Priority = planPriority(cfg, cores, s, l, changed)
	}
	if splits(cfg, l) && !prioritises(cfg) {
		if out.Microflows, err = planMicroflows(cfg, cores, s, l, changed); err != nil {
			return out, err
		}
	}
	if out.When == "" {
		if err := out.pipeline(ctx, cfg, cores, s, l, changed); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (o *outlook) pipeline(ctx context.Context, cfg *config.Config, cores config.CPUList, s *node.Scanner, l nodeState, changed []apply.Entry) (err error) {
	var beside *priorityOutlook
	if prioritises(cfg) {
		beside = o.Priority
	}
	if o.Placement, err = place(ctx, cfg, cores, beside, l); err != nil {
		return err
	}
	layout := governor.Layout{NIC: o.Placement.NIC, Tunnel: o.Placement.Tunnel, Pod: o.Placement.Pod}
	in := pipeline.PlanInput(s, l.snap, layout, apply.Owned(changed, plan.ByPipeline), l.places, xdp.Want{By: xdp.Pipeline, Asked: true})
	if o.Placement.inPlace {
		in.Attach = nil
	}
	o.Plan = plan.Pipeline(in)
	o.When = "run would do this once receive processing saturates a core:"
	switch {
	case o.Empty() && len(l.snap.Tunnels) == 0:
		o.When = "run would only watch: there is no VXLAN or Geneve tunnel yet"
	case o.Empty() && o.Placement.inPlace:
		o.When = "nothing to change: the running daemon has done it"
	case o.Empty():
		o.When = "run would change nothing here now"
	case o.Placement.inPlace:
		o.When = "the running daemon is about to do this:"
	case cfg.Pipeline == config.ModeForced:
		o.When = "run would do this as soon as overlay packets arrive:"
	}
	return nil
}

// notInRealtime are the cores on which the running daemon has threads that it does not run in real time.
func notInRealtime(changed []apply.Entry) (cores []int) {
	for _, e := range changed {
		if sched, err := plan.ParseSched(e.Wrote); e.Kind == plan.ThreadSched && err == nil && sched.Policy != "fifo" {
			cores = append(cores, sched.Cores...)
		}
	}
	return cores
}

// planPriority is what the rules change as soon as they are in force, and what a trial changes
// without them.
func planPriority(all *config.Config, cores config.CPUList, s *node.Scanner, l nodeState, changed []apply.Entry) *priorityOutlook {
	cfg := all.Priority
	attached := func(u node.Underlay) bool {
		return !u.ForeignXDP && slices.Contains([]string{plan.PriorityProgram, plan.TwoLanesProgram}, foreign.ProgramName(u.XDPProgID))
	}
	in := priority.PlanInput(s, l.snap, slices.Sorted(slices.Values(cores)), apply.Owned(changed, plan.ByPriority), attached, l.places, xdp.Want{By: xdp.Priority, Asked: prioritises(all)})
	in.NoThreads = cfg.Threads == config.ThreadsOff
	in.Realtime, in.Flooded = cfg.Threads == config.ThreadsAuto, notInRealtime(changed)
	if cfg.Mode == config.PrioritySync {
		in.Tunnels = priority.SyncTunnels(l.snap)
	}
	for i, nic := range in.NICs {
		noXDP := func(f probe.Feature) bool {
			return f.ID == probe.NativeXDP && f.Device == nic.Name && f.State == probe.Unsupported
		}
		if nic.Unfit == "" && !nic.Attached && slices.ContainsFunc(l.features, noXDP) {
			in.NICs[i].Unfit = "no XDP program: its driver has no native XDP with the present settings"
		}
	}
	out := &priorityOutlook{PriorityPlan: plan.Priority(in)}
	for _, nic := range in.NICs {
		for _, th := range nic.Threads {
			moves := func(s plan.Step) bool { return s.Setting == plan.Thread(nic.Target, th.ID) }
			if len(th.Sched.Cores) == 1 && !slices.ContainsFunc(out.Steps, moves) {
				out.bound = append(out.bound, th.Sched.Cores...)
			}
		}
	}
	by := "small, sparse flows"
	if n := len(cfg.Rules); n > 0 {
		by = plural(n, "rule")
	}
	out.When = fmt.Sprintf("for priority (%s), run would do this at once:", by)
	if !prioritises(all) {
		out.When = "once small, sparse flows have to wait behind others, run would do this, on trial:"
	}
	if out.Empty() {
		switch {
		case len(in.NICs) == 0:
			out.When = "for priority, run would wait for an underlay: there is none yet"
		case slices.ContainsFunc(in.NICs, func(u plan.Underlay) bool { return u.Attached }):
			out.When = "for priority, nothing is to be changed: the running daemon has done it"
		default:
			out.When = "for priority, run would change nothing here now"
		}
	}
	return out
}

// splits tells whether a configuration lets flows be split here: those whose order is
// restored, or need not be. A pipeline that is forced acts alone.
func splits(cfg *config.Config, l nodeState) bool {
	m := cfg.Microflows
	if cfg.Pipeline == config.ModeForced && m.Mode != config.ModeForced {
		return false
	}
	return m.Mode != config.ModeOff && (m.UDPOrder == config.OrderNone || noMerge(l.features) == nil)
}

// planAggregate is what datagrams change that come in a row.
func planAggregate(mode config.Mode, s *node.Scanner, l nodeState, changed []apply.Entry) (*plannedOutlook, error) {
	var reasons map[node.DevKey]string
	if mode != config.ModeForced {
		var err error
		if reasons, err = aggregate.Reasons(s, l.snap, ownIfRunning()); err != nil {
			return nil, err
		}
	}
	out := &plannedOutlook{Plan: plan.Aggregate(aggregate.Input(s, l.snap, apply.Owned(changed, plan.ByAggregation), reasons))}
	switch {
	case len(l.snap.Underlays) == 0:
		out.When = "for aggregation, run would wait for an underlay: there is none yet"
	case len(out.Steps) == 0 && len(out.Skipped) > 0:
		out.When = "for aggregation, run would change nothing here now:"
	case len(out.Steps) == 0:
		out.When, out.Attach = "for aggregation, nothing is to be changed: UDP GRO forwarding is on already", nil
	case mode == config.ModeForced:
		out.When = "for aggregation, run would do this at once:"
	default:
		out.When = "once packets come so fast that datagrams may come in a row, run would do this:"
	}
	return out, nil
}

// express evaluates the paths from the NICs of this network namespace to the pods.
func (l nodeState) express(s *node.Scanner, changed []apply.Entry, join bool, own func(uint32) bool, mode governor.Mode) (p plan.Plan, err error) {
	home, err := netns.Current()
	if err != nil {
		return p, err
	}
	defer home.Close()
	cookie, err := home.Cookie()
	if err != nil {
		return p, err
	}
	return express.Plan(s, l.snap, cookie, changed, join, own, l.places, mode)
}

// planExpress is what frames change that go straight to pods.
func planExpress(cfg *config.Config, s *node.Scanner, l nodeState, changed []apply.Entry) (*plannedOutlook, error) {
	out := &plannedOutlook{}
	var err error
	if out.Plan, err = l.express(s, changed, cfg.Aggregate != config.ModeOff, ownIfRunning(), modeOf(cfg.Express)); err != nil {
		return nil, err
	}
	switch {
	case len(l.snap.Pods) == 0:
		out.When = "to hand frames straight to pods, run would wait for a pod: there is none yet"
	case len(out.Attach) == 0:
		out.When = "run would hand no frames straight to pods now:"
	case len(out.Steps) == 0:
		out.When = "to hand frames straight to pods, no setting is to be changed:"
	default:
		out.When = "once packets come fast, run would hand them straight to pods where nothing on the way could tell:"
	}
	return out, nil
}

// planBridging is what changes at bridges that call netfilter's hooks though these are unused.
func planBridging(s *node.Scanner, l nodeState, changed []apply.Entry) (*plannedOutlook, error) {
	out := &plannedOutlook{When: "once packets come fast, run would have bridges leave out netfilter's unused hooks:"}
	var err error
	if out.Plan, err = bridgehooks.Plan(s, l.snap, apply.Owned(changed, plan.ByBridging), ownIfRunning()); err != nil {
		return nil, err
	}
	switch {
	case len(out.Steps) == 0 && len(out.Skipped) > 0:
		out.When = "run would have bridges call netfilter as they do:"
	case len(out.Steps) == 0:
		out.When = "no bridge with a tunnel calls netfilter"
	}
	return out, nil
}

// planMicroflows is what a flow that is too much for one core changes.
func planMicroflows(cfg *config.Config, cores config.CPUList, s *node.Scanner, l nodeState, changed []apply.Entry) (*plannedOutlook, error) {
	nic, err := busiestReceiver()
	if err != nil {
		return nil, err
	}
	out := &plannedOutlook{}
	tier := governor.XDP
	refuses := func(u node.Underlay) bool { return l.places.Bars(u, microflowsWant(cfg)) != "" }
	if noXDP(cfg, l) != nil || slices.ContainsFunc(l.snap.Underlays, refuses) {
		tier = governor.TC
	}
	layout := governor.PlaceMicroflows(tier, machine(cores, nic), cfg.Microflows.Cores, noMerge(l.features) == nil, governor.Costs{})
	if layout.None() {
		out.When = "run would split no flow: " + layout.Reason
		return out, nil
	}
	in := pipeline.PlanInput(s, l.snap, layout, apply.Owned(changed, plan.ByPipeline), l.places, microflowsWant(cfg))
	if layout.Merge {
		in.Merge = pipeline.MergeSteps(l.snap, pipeline.FirstMergeIndex)
	}
	out.Plan = plan.Pipeline(in)
	// Tunnels and pods that are left alone are no matter here.
	onNIC := func(sk plan.Skip) bool {
		return slices.ContainsFunc(l.snap.Underlays, func(u node.Underlay) bool {
			return u.Ifindex == sk.Target.Ifindex && u.NetnsCookie == sk.Target.NetnsCookie
		})
	}
	out.Skipped = slices.DeleteFunc(out.Skipped, func(sk plan.Skip) bool { return !onNIC(sk) })
	what := "a flow"
	if !layout.Merge {
		what = "a UDP flow"
	}
	out.When = fmt.Sprintf("once %s is too much for one core, run would spread it over %s more:", what, plural(len(layout.NIC)+len(layout.Tunnel), "core"))
	return out, nil
}

// microflowsWant is how micro-flows want a NIC: by themselves, unless they are forced.
func microflowsWant(cfg *config.Config) xdp.Want {
	return xdp.Want{By: xdp.Microflows, Asked: cfg.Microflows.Mode == config.ModeForced}
}

// pollers are the cores that threads of NICs are, or will be, bound to.
func (p *priorityOutlook) pollers(cores config.CPUList) (list []int) {
	list = slices.Clone(p.bound)
	for _, s := range p.Steps {
		if want, err := plan.ParseSched(s.Want); s.Kind == plan.ThreadSched && err == nil {
			list = append(list, want.Cores...)
		}
	}
	for _, f := range p.Future {
		list = append(list, cores[:min(f.Count, len(cores))]...)
	}
	return list
}

// place is the running daemon's placement, or the one that a daemon would begin
// with.
func place(ctx context.Context, cfg *config.Config, cores config.CPUList, prio *priorityOutlook, seen nodeState) (placement, error) {
	if p, ok := placed(ctx); ok {
		return p, nil
	}
	nic, err := busiestReceiver()
	if err != nil {
		return placement{}, err
	}
	takes := func(u node.Underlay) bool { return seen.places.Bars(u, xdp.Want{By: xdp.Pipeline, Asked: true}) == "" }
	tier := governor.TC
	if cfg.Tier == config.TierXDP && (len(seen.snap.Underlays) == 0 || slices.ContainsFunc(seen.snap.Underlays, takes)) {
		tier = governor.XDP
	}
	m := machine(cores, nic)
	l := governor.Place(tier, m, governor.Costs{})
	if prio != nil {
		if polled := prio.pollers(m.Cores); len(polled) > 0 {
			m.NIC = slices.Sorted(slices.Values(polled))
		}
		l = governor.PlaceBesidePriority(m, governor.Costs{})
	}
	return placement{NIC: l.NIC, Tunnel: l.Tunnel, Pod: l.Pod, Reason: l.Reason}, nil
}

// machine is the node's, of which nothing is measured but the core that received most.
func machine(cores config.CPUList, nic int) governor.Machine {
	return governor.Machine{Cores: slices.Sorted(slices.Values(cores)), NIC: []int{nic}, Topology: topology()}
}

// placed asks the running daemon.
func placed(ctx context.Context) (placement, bool) {
	p := placement{Reason: "the running daemon", inPlace: true}
	c, err := dialDaemon()
	if err != nil {
		return p, false
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil || len(st.Lanes) == 0 {
		return p, false
	}
	p.NIC, p.Tunnel, p.Pod = stageCores(st, plan.NIC), stageCores(st, plan.Tunnel), stageCores(st, plan.Pod)
	return p, true
}

func stageCores(st control.Status, stage plan.Stage) (cores config.CPUList) {
	for _, l := range st.Lanes {
		if l.Stage == string(stage) {
			cores = append(cores, l.Core)
		}
	}
	slices.Sort(cores)
	return slices.Compact(cores)
}

// busiestReceiver is the core that has handled most receive softirqs: the best
// guess at which one polls the NIC without a measurement.
func busiestReceiver() (int, error) {
	data, err := os.ReadFile("/proc/softirqs")
	if err != nil {
		return 0, fmt.Errorf("find the core that receives: %w", err)
	}
	lines := strings.Split(string(data), "\n")
	cores := strings.Fields(lines[0]) // CPU0 CPU1 ...
	for _, line := range lines[1:] {
		counts, ok := strings.CutPrefix(strings.TrimSpace(line), "NET_RX:")
		if !ok {
			continue
		}
		best, most := 0, uint64(0)
		for i, f := range strings.Fields(counts) {
			n, err := strconv.ParseUint(f, 10, 64)
			if err != nil || i >= len(cores) {
				break
			}
			core, err := strconv.Atoi(strings.TrimPrefix(cores[i], "CPU"))
			if err == nil && n > most {
				best, most = core, n
			}
		}
		return best, nil
	}
	return 0, errors.New("find the core that receives: /proc/softirqs has no NET_RX")
}

// changedSettings reads, without the lock, what overlane has changed here.
func changedSettings() (changed []apply.Entry, err error) {
	err = inFolder(func(dir *apply.Dir) (err error) {
		changed, err = dir.Entries()
		return err
	})
	return changed, err
}

// placesKnown tells what XDP programs cost here, and where they were refused, as far as a daemon has
// found out. No program comes to a NIC by it.
func placesKnown() (places *xdp.Places, err error) {
	var known *xdp.Memory
	err = inFolder(func(dir *apply.Dir) (err error) {
		known, err = xdp.Remember(dir)
		return err
	})
	if known == nil && err == nil {
		known, err = xdp.Remember(nil)
	}
	return xdp.New(nil, known, nil), err
}

// inFolder calls fn with this namespace's folder, if it has one.
func inFolder(fn func(*apply.Dir) error) error {
	cookie, err := here()
	if err != nil {
		return err
	}
	// Reading must not create the folder.
	_, err = os.Stat(filepath.Join(global.stateDir, strconv.FormatUint(cookie, 10)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir, err := apply.Open(global.stateDir, cookie)
	if err != nil {
		return err
	}
	return errors.Join(fn(dir), dir.Close())
}
