// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// ErrStopping is the answer to requests that come too late.
var ErrStopping = errors.New("the daemon is stopping")

// do runs fn between two windows, on the daemon's own goroutine.
func (d *Daemon) do(ctx context.Context, fn func() error) error { return d.by(ctx, d.requests, fn) }

// ask does so with one that only reads. It does not wait for programs that are being loaded.
func (d *Daemon) ask(ctx context.Context, fn func() error) error { return d.by(ctx, d.questions, fn) }

// meanwhileEvery is how soon a policy that an event tells of is noticed while programs are loaded. What makes no event
// is read each shortcut.PollEvery of it.
const meanwhileEvery = shortcut.PollEvery / 5

// answer runs what is asked until programs are loaded, and has mechanisms look for policies: these do not wait. The
// daemon is in the middle of something then: what else would change anything waits for the end of that.
//
// What mechanisms do here is safe. They load nothing: a path is open only once express has its program, so what
// withdraws it finds that loaded. And none is entered in the middle of its own paths or settings: of the two that look,
// bridgehooks never loads, and express loads its program before it has a path to look at, its census between looks.
func (d *Daemon) answer(loaded <-chan struct{}) {
	look := time.NewTicker(meanwhileEvery)
	defer look.Stop()
	for {
		select {
		case fn := <-d.questions:
			fn()
		case <-look.C:
			d.meanwhile()
		case <-loaded:
			return
		}
	}
}

func (d *Daemon) by(ctx context.Context, queue chan func(), fn func() error) error {
	done := make(chan error, 1)
	select {
	case queue <- func() { done <- fn() }:
		return <-done
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
	st.Services = foreign.Services(os.DirFS("/proc"))
	if d.opts.Metrics != nil {
		st.Metrics = d.opts.Metrics()
	}
	return st
}

// Snapshot is the status without what is read elsewhere than in the daemon. It waits for the daemon, which
// answers between two decisions and while programs are loaded, and not longer than ctx.
func (d *Daemon) Snapshot(ctx context.Context) (control.Status, error) {
	st := control.Status{State: control.Stopping, PID: unix.Getpid(), Since: d.since, Version: d.opts.Version}
	err := d.ask(ctx, func() error { return d.fill(&st) })
	return st, err
}

func (d *Daemon) fill(st *control.Status) error {
	st.State = control.Running
	st.Kernel = kernelRelease()
	st.Netns = d.cookie
	st.Cores = d.cores
	st.Tiers = d.opts.Tiers
	called := names.New(d.scanner, d.host.Snapshot())
	st.Namespaces = called.Places()
	var left []plan.Skip
	var errs []error
	for _, m := range slices.Backward(d.mechs.all) {
		st.Mechanisms = append(st.Mechanisms, m.Report()...)
		left = append(left, m.Skipped()...)
		errs = append(errs, m.Fill(st, called))
	}
	for _, s := range d.host.Snapshot().Skipped { // whether a mechanism has planned with it or not
		if out := (plan.Skip{What: plan.Target(s.Dev).String(), Target: plan.Target(s.Dev), Reason: s.Reason}); !slices.Contains(left, out) {
			left = append(left, out)
		}
	}
	for _, e := range d.host.Entries() {
		if e.Kept != "" {
			left = append(left, plan.Skip{What: e.Setting.String(), Target: e.Target, Reason: "an earlier change could not be undone: " + e.Kept})
		}
	}
	if err := d.host.JournalBehind(); err != nil {
		left = append(left, plan.Skip{What: "journal", Reason: fmt.Sprintf("its file is not up to date, may name settings that are restored, and is tried again: %v", err)})
	}
	d.fillDevices(st, left, called)
	for i := range st.Mechanisms {
		d.unsettled(&st.Mechanisms[i])
		st.Mechanisms[i].Reason = called.Text(st.Mechanisms[i].Reason)
	}
	st.Trials = d.trials.Report()
	costs := d.sensor.Costs
	st.StageCosts = []control.StageCost{
		{Stage: datapath.NIC.String(), NsPerPacket: control.Measured(costs.NIC)},
		{Stage: datapath.Tunnel.String(), NsPerPacket: control.Measured(costs.Tunnel)},
		{Stage: datapath.Pod.String(), NsPerPacket: control.Measured(costs.Pod)},
	}
	c, err := d.dp.Counters()
	n := &st.Counters
	n.OverlayPackets, n.Unparsed, n.Scans = max(d.overlayPackets(), c.OverlaySeen()), c.Stock, d.pace.Scans
	return errors.Join(append(errs, err)...)
}

// unsettled tells whether a mechanism is about to change: it does not act before its programs are there,
// whatever was decided.
func (d *Daemon) unsettled(m *control.Mechanism) {
	begins := m.Name == d.host.Beginning()
	m.Trying = m.Trying || begins || d.trials.Tries(m.Name)
	if begins && m.State == control.Active {
		m.State, m.Reason = control.Standby, "its programs are being loaded; "+m.Reason
	}
}

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

// deviceState tells the state of a device: active where a mechanism acts that has changed it or has a program on it,
// or else that of the pipeline, which takes all devices. Micro-flows are the pipeline's.
func deviceState(st *control.Status, journal []apply.Entry, held []xdp.Held) func(node.Dev) control.MechanismState {
	acts := func(by string) bool { return st.Mechanism(by).State == control.Active }
	rest := st.Mechanism(string(plan.ByPipeline)).State
	if acts(string(xdp.Microflows)) {
		rest = control.Active
	}
	active := map[node.DevKey]bool{}
	for _, e := range journal {
		if acts(string(e.By)) {
			active[node.Dev(e.Target).Key()] = true
		}
	}
	for _, h := range held {
		active[h.NIC.Key()] = slices.ContainsFunc(h.By, func(by xdp.Mechanism) bool { return acts(string(by)) }) || active[h.NIC.Key()]
	}
	return func(dev node.Dev) control.MechanismState {
		if active[dev.Key()] {
			return control.Active
		}
		return rest
	}
}

// fillDevices says what becomes of each device of the overlay. left are those that mechanisms leave alone.
func (d *Daemon) fillDevices(st *control.Status, left []plan.Skip, called names.Names) {
	state := deviceState(st, d.host.Entries(), d.places.Held())
	// Masks are set on target: the device itself, or a pod's end of it.
	add := func(dev, target node.Dev, role control.Role) *control.Device {
		out := control.Device{Name: dev.Name, Netns: dev.NetnsCookie, Role: role, State: state(target)}
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
		if t, ok := called.Overlay(p.Tunnels); ok {
			of(dev, t)
		}
	}
	for _, p := range d.host.Snapshot().Stacked {
		place := called.Place(p.NetnsCookie)
		dev := add(p.Dev, p.Dev, control.Pod) // which takes it from what is left
		dev.Place, dev.Inside = &place, p.Name
		dev.State, dev.Reason = control.Manual, called.Text(p.Alone())
		if t, ok := called.Overlay(p.Tunnels); ok {
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

// Off implements control.Handler: the node is restored when it returns, but for what is kept or fails, and Run
// ends. The journal has what is left, and the guardian tries again.
func (d *Daemon) Off(ctx context.Context) (control.OffReport, error) {
	out := control.OffReport{PID: unix.Getpid()}
	err := d.do(ctx, func() (err error) {
		stop, cancel := context.WithTimeout(ctx, mechanism.DrainFor)
		defer cancel()
		d.off = true // in any case: nothing that was stopped is to begin again
		out.Report, err = d.mechs.stop(stop)
		rest, e := d.host.RestoreRest(out.Report)
		out.Add(rest)
		return errors.Join(err, e, d.host.SyncJournal())
	})
	return out, err
}

// ErrNeedsRestart says what a running daemon cannot change.
var ErrNeedsRestart = errors.New("a change needs a restart of the daemon")

// Reconfigure takes over cores, modes and limits of new options, and what the node can do by now. Underlays
// and tier stay those of the start.
func (d *Daemon) Reconfigure(ctx context.Context, opts Options) error {
	return d.do(ctx, func() error {
		if !slices.Equal(opts.Underlays, d.opts.Underlays) || opts.Pipeline.Tier != d.opts.Pipeline.Tier {
			return fmt.Errorf("underlays, tier: %w; nothing of the configuration is taken over: systemctl restart overlane", ErrNeedsRestart)
		}
		if err := d.mechs.configure(ctx, opts); err != nil {
			return err
		}
		d.opts.Cores, d.opts.Aggregate, d.opts.Tiers = opts.Cores, opts.Aggregate, opts.Tiers
		var err error
		if !slices.Equal(opts.Spared, d.opts.Spared) {
			d.opts.Spared = opts.Spared
			err = d.dp.Resample(opts.Spared...)
		}
		return errors.Join(err, d.useCores())
	})
}

// AddRule implements control.Handler.
func (d *Daemon) AddRule(ctx context.Context, r rules.Rule) error {
	return d.do(ctx, func() error { return d.mechs.priority.AddRule(ctx, r) })
}

// DelRule implements control.Handler.
func (d *Daemon) DelRule(ctx context.Context, name string) error {
	return d.do(ctx, func() error { return d.mechs.priority.DelRule(ctx, name) })
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
