// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/sense"
)

// ErrStopping is the answer to requests that come too late.
var ErrStopping = errors.New("the daemon is stopping")

// do runs fn between two windows, on the daemon's own goroutine.
func (d *Daemon) do(ctx context.Context, fn func()) error { return d.by(ctx, d.requests, fn) }

// ask does so with one that only reads. It does not wait for programs that are being loaded.
func (d *Daemon) ask(ctx context.Context, fn func()) error { return d.by(ctx, d.questions, fn) }

// answer runs what is asked until programs are loaded. The daemon is in the middle of something then:
// what would change anything waits for the end of that.
func (d *Daemon) answer(loaded <-chan struct{}) {
	for {
		select {
		case fn := <-d.questions:
			fn()
		case <-loaded:
			return
		}
	}
}

func (d *Daemon) by(ctx context.Context, way chan func(), fn func()) error {
	done := make(chan struct{})
	select {
	case way <- func() { fn(); close(done) }:
		<-done
		return nil
	case <-d.ended:
		return ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Status implements control.Handler.
func (d *Daemon) Status() control.Status {
	st, err := d.Snapshot(context.Background())
	if err != nil {
		st.Reason = err.Error()
	}
	st.Neighbours = foreign.Services(os.DirFS("/proc"))
	if d.opts.Metrics != nil {
		st.Metrics = d.opts.Metrics()
	}
	return st
}

// Snapshot is the status without what is read elsewhere than in the daemon. It waits for the daemon, which
// answers between two decisions and while programs are loaded, and not longer than ctx.
func (d *Daemon) Snapshot(ctx context.Context) (control.Status, error) {
	st := control.Status{State: control.Stopping, PID: unix.Getpid(), Since: d.since, Version: d.opts.Version}
	var err error
	if e := d.ask(ctx, func() { err = d.fill(&st) }); e != nil {
		return st, e
	}
	return st, err
}

func (d *Daemon) fill(st *control.Status) error {
	st.State = control.Running
	st.Kernel = kernelRelease()
	st.Netns = d.cookie
	st.Cores = d.cores
	st.Tiers = d.opts.Tiers
	st.Mechanisms = []control.Mechanism{d.mechanism(), d.priorityMechanism(), d.microflowsMechanism(), d.aggr.Report(), d.expr.Report(), d.bridge.Report()}
	for i := range st.Mechanisms {
		d.unsettled(&st.Mechanisms[i])
	}
	called := names.New(d.scanner, d.host.Snapshot())
	st.Namespaces = called.Places()
	d.fillDevices(st, called)
	for _, w := range d.expr.Paths() {
		st.Express = append(st.Express, control.ExpressPath{
			NIC: w.NIC.Name, Tunnel: w.Tunnel.Name, Pod: w.Pod.Host.Name, Netns: w.Pod.Host.NetnsCookie, Name: called.Pod(w.Pod), Open: w.Open, Reason: called.Text(w.Reason),
		})
	}
	for i := range st.Mechanisms {
		st.Mechanisms[i].Reason = called.Text(st.Mechanisms[i].Reason)
	}
	frames, err := d.ruleFrames()
	if err != nil {
		return err
	}
	for i, r := range slices.Concat(d.added, d.opts.Rules) {
		st.Rules = append(st.Rules, control.Rule{Rule: r, Added: i < len(d.added), Packets: frames[r.Name]})
	}
	if st.SparseFlows, err = d.sparseFlows(); err != nil {
		return err
	}
	st.Trials = d.trials.Report()
	costs := d.sensor.Costs
	st.StageCosts = []control.StageCost{
		{Stage: datapath.NIC.String(), NsPerPacket: control.Measured(costs.NIC)},
		{Stage: datapath.Tunnel.String(), NsPerPacket: control.Measured(costs.Tunnel)},
		{Stage: datapath.Pod.String(), NsPerPacket: control.Measured(costs.Pod)},
	}
	c, err := d.dp.Counters()
	if err != nil {
		return err
	}
	if err := d.fillLanes(st, c); err != nil {
		return err
	}
	st.Counters = control.Counters{
		OverlayPackets: overlayTotal(d.overlayPackets(), c), SteeredPackets: max(c.Steered, c.PodSteered, c.XDPLane),
		SplitPackets: c.Split, Microflows: c.Microflows, Splits: c.SplitBegun,
		LaneChanges: c.LaneChanges, LaneChangesHeld: c.LaneHeld, LaneDrops: c.XDPDrop + c.Refused, LaneRefused: c.Refused, Unparsed: c.Stock,
		Scans: d.pace.Scans,
	}
	p, err := d.priorityCounters()
	if err != nil {
		return err
	}
	n := &st.Counters
	m, err := d.pipe.mergeCounters()
	if err != nil {
		return err
	}
	n.MergePassed, n.MergeLate, n.MergeHeld, n.MergeGaps, n.MergeExpired = m.Passed, m.Late, m.Held, m.Gaps, m.Expired
	n.MergeUnwatched, n.MergeRefused, n.MergeDropped, n.MergeWaiting, n.MergeNoRoom = m.Unwatched, m.Refused, m.Dropped+c.MergedLost, uint64(m.Waiting), c.NoRoom
	g, err := d.aggr.Counters()
	if err != nil {
		return err
	}
	n.AggregatedPackets, n.SuperPackets, n.CountedPackets = g.Datagrams, g.Supers, g.Packets
	n.ExpressPackets, n.ExpressLeft, n.ExpressDrops = c.Express, c.ExpressLeft, c.ExpressDrop
	if n.ExpressUnfit, err = d.dp.ExpressUnfit(); err != nil {
		return err
	}
	n.LatencyPackets, n.LatencyHeld, n.LatencyExcess = p.Latency, p.LatencyHeld, p.LatencyExcess
	n.ShortCut, n.Bridged = p.ShortCut, p.Bridged
	n.BulkShortCut, n.BulkBridged = p.BulkShortCut, p.BulkBridged
	n.BulkPackets, n.BulkLane, n.Refused = p.Bulk, p.BulkLane, p.Refused
	return nil
}

// unsettled tells whether a mechanism is about to change: it does not act before its programs are there,
// whatever was decided.
func (d *Daemon) unsettled(m *control.Mechanism) {
	begins := m.Name == d.host.Beginning()
	m.Trying = begins || d.tries(m.Name)
	if begins && m.State == control.Active {
		m.State, m.Reason = control.Standby, "its programs are being loaded; "+m.Reason
	}
}

func (d *Daemon) fillLanes(st *control.Status, c datapath.Counters) error {
	drops, err := sense.BacklogDrops()
	if err != nil {
		return err
	}
	for stage, cores := range d.pipe.lanes() {
		for i, core := range cores {
			n, err := d.dp.LanePackets(stage, i)
			if err != nil {
				return err
			}
			lane := control.Lane{Stage: stage.String(), Core: core, Packets: n}
			if core < len(d.sensor.Last) {
				lane.Queue = uint64(d.sensor.Last[core].Queue)
			}
			// A backlog is shared by all that RPS and veth send there.
			lane.Drops = drops[core] - d.drops[core]
			if stage == datapath.NIC {
				lane.Queue, lane.Drops = uint64(d.sensor.Last[core].LaneQueue), c.XDPDrop
			}
			st.Lanes = append(st.Lanes, lane)
		}
	}
	slices.SortFunc(st.Lanes, func(a, b control.Lane) int {
		return cmp.Or(cmp.Compare(stageOrder[a.Stage], stageOrder[b.Stage]), cmp.Compare(a.Core, b.Core))
	})
	return nil
}

var stageOrder = map[string]int{datapath.NIC.String(): 0, datapath.Tunnel.String(): 1, datapath.Pod.String(): 2}

// overlayPackets counts what went through the tunnels since the daemon started,
// also while no program of ours was on a device; not those of times in which the
// daemon did not trace.
func (d *Daemon) overlayPackets() uint64 {
	var n uint64
	for _, c := range d.sensor.Last {
		n += c.Packets[datapath.Tunnel]
	}
	return n
}

// overlayTotal is what all that counts has seen at least. Polls are traced only at times,
// and what GRO has joined they count as one; programs count each frame while they are on a device. What
// was steered is part of what the same program saw.
func overlayTotal(polled uint64, c datapath.Counters) uint64 {
	return max(polled, c.XDPOverlay, c.Overlay, c.Pod)
}

// mechanism is what the pipeline does: what was decided, unless the node leaves
// nothing to carry it out on.
func (d *Daemon) mechanism() control.Mechanism {
	dec := d.gov.Last()
	m := control.Mechanism{
		Name: "pipeline", State: mechanism.State(d.opts.Mode, dec.State), Reason: dec.Reason, Since: dec.Since,
	}
	if d.pipe.armed && !d.pipe.layout.Split {
		m.Gain = d.pipe.layout.Gain
	}
	if why := d.trial.Reason(); why != "" {
		m.Reason += "; " + why
	}
	if why := d.noXDPTier(); why != "" && m.State == control.Active {
		m.Reason += "; the NIC's stage stays where it is (" + why + ")"
	}
	if m.State == control.Active && !d.pipe.armed && d.armErr != nil {
		m.State, m.Reason = control.Standby, fmt.Sprintf("could not be put in place, and is tried again every %s: %v", mechanism.RetryAfter, d.armErr)
	}
	if m.State == control.Active && d.pipe.armed && d.pipe.idle(d.host.Snapshot()) {
		m.State, m.Reason = control.Manual, "every tunnel is left alone, see the devices"
	}
	return m
}

func (d *Daemon) fillDevices(st *control.Status, called names.Names) {
	left := slices.Concat(d.withoutXDP(), d.pipe.skipped, d.aggr.Skipped())
	if d.prio != nil {
		left = append(left, d.prio.skipped...)
		if d.prio.sync != nil {
			left = append(left, d.prio.sync.without...)
		}
	}
	state := d.mechanism().State
	// Masks are set on target: the device itself, or a pod's end of it.
	add := func(dev, target node.Dev, role control.Role) *control.Device {
		out := control.Device{Name: dev.Name, Netns: dev.NetnsCookie, Role: role, State: state}
		at := slices.IndexFunc(left, func(s plan.Skip) bool { return s.Whole() && node.Dev(s.Target).Key() == target.Key() })
		if at >= 0 {
			out.State, out.Reason = control.Manual, called.Text(left[at].Reason)
			left = slices.Delete(left, at, at+1)
		}
		st.Devices = append(st.Devices, out)
		return &st.Devices[len(st.Devices)-1]
	}
	of := func(dev *control.Device, t node.Tunnel) {
		dev.Network = called.Network(t)
		if !t.AnyVNI {
			dev.VNI = &t.VNI
		}
	}
	for _, u := range d.host.Snapshot().Underlays {
		add(u.Dev, u.Dev, control.Underlay)
	}
	for _, t := range d.host.Snapshot().Tunnels {
		of(add(t.Dev, t.Dev, control.Tunnel), t)
	}
	for _, p := range d.host.Snapshot().Pods {
		place, role := called.Place(p.Peer.NetnsCookie), control.Pod
		if place.Balancer {
			role = control.Balancer
		}
		dev := add(p.Host, p.Peer, role)
		dev.Place, dev.Inside = &place, p.Peer.Name
		if t, ok := called.Overlay(p); ok {
			of(dev, t)
		}
	}
	for _, h := range d.places.Held() {
		if h.Cost != "" {
			st.Devices = append(st.Devices, control.Device{Name: "xdp (native) of " + h.NIC.Name, State: control.Active,
				Reason: fmt.Sprintf("overlane's program is there for %s; %s", h.By[0], h.Cost)})
		}
	}
	for _, s := range left {
		st.Devices = append(st.Devices, control.Device{Name: called.Text(s.What), Netns: s.Target.NetnsCookie, State: control.Manual, Reason: called.Text(s.Reason)})
	}
}

// Off implements control.Handler: the node is restored when it returns, and Run
// ends.
func (d *Daemon) Off(ctx context.Context) (control.OffReport, error) {
	out := control.OffReport{PID: unix.Getpid()}
	var err error
	e := d.do(ctx, func() {
		stop, cancel := context.WithTimeout(ctx, farewell)
		defer cancel()
		if out.Report, err = d.stopMechanisms(stop); err == nil {
			d.off = true
		}
	})
	return out, errors.Join(e, err)
}

// ErrNeedsRestart says what a running daemon cannot change.
var ErrNeedsRestart = errors.New("needs a restart of the daemon")

// Reconfigure takes over cores, mode and limits of new options. Underlays and
// tier stay those of the start.
func (d *Daemon) Reconfigure(ctx context.Context, opts Options) error {
	var err error
	e := d.do(ctx, func() {
		if !slices.Equal(opts.Underlays, d.opts.Underlays) || opts.Tier != d.opts.Tier {
			err = fmt.Errorf("change underlays or tier: %w", ErrNeedsRestart)
			return
		}
		was := d.opts.Priority
		d.opts.Priority = opts.Priority
		if was.NoThreads != opts.Priority.NoThreads || was.Fair != opts.Priority.Fair || was.Sync != opts.Priority.Sync {
			if _, err = d.stopPriority(ctx); err != nil {
				return
			}
		}
		if err = d.useRules(ctx, d.added, opts.Rules); err != nil {
			d.opts.Priority = was
			return
		}
		d.opts.Mode, d.opts.Limits, d.opts.Cores = opts.Mode, opts.Limits, opts.Cores
		d.gov.Reconfigure(opts.Mode, opts.Limits)
		d.opts.Aggregate, d.opts.Express, d.opts.SkipUnusedHooks = opts.Aggregate, opts.Express, opts.SkipUnusedHooks
		d.expr.Configure(opts.Express)
		d.bridge.Configure(opts.SkipUnusedHooks)
		d.aggr.Configure(opts.Aggregate)
		d.opts.Microflows = opts.Microflows
		d.micro.gov.Reconfigure(opts.Microflows.Mode, opts.Limits)
		err = d.useCores()
	})
	return errors.Join(e, err)
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
