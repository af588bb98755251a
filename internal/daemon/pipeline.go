// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// pipeline carries out what the governor decides: programs and masks come and
// go, flows are sent to lanes and called back.
type pipeline struct {
	host  *host.Host
	dp    *datapath.Datapath
	cores int          // of the machine
	lost  map[int]bool // cores that were offline since the lanes were made

	layout governor.Layout        // in place while armed
	merge  *merging               // where split flows are put in order
	merged datapath.MergeCounters // by earlier ones
	hold   time.Duration          // the most that a packet waits there
	// microflows are what a layout that splits flows cuts them into.
	microflows datapath.Split
	noUDP      string // why UDP flows cannot be put in order, if so
	armed      bool
	steering   bool
	draining   draining // while flows are called back
	attached   map[node.DevKey]io.Closer
	places     *xdp.Places // for XDP programs
	skipped    []plan.Skip
	left       map[node.DevKey]bool // devices that another program steers
	// refused are tunnels and pods of which the kernel has refused a mask or a program, until flows have
	// drained. unplanned: there are some that the plan does not know yet.
	refused   map[node.DevKey]refusal
	unplanned bool
	wants     func(governor.Layout) xdp.Want
	express   func(node.Pod) bool // pods whose packets come straight from the NIC
}

// arm puts programs and masks in place; every flow still takes the stock path.
func (p *pipeline) arm(ctx context.Context, snap node.Snapshot, layout governor.Layout) error {
	p.armed, p.layout = true, layout
	if err := p.useMerge(); err != nil {
		return err
	}
	made := p.plan(snap)
	if err := p.placeMerge(snap, made); err != nil {
		return err
	}
	if err := p.tunnels(snap); err != nil {
		return err
	}
	if err := p.attachPrograms(snap); err != nil {
		return err
	}
	if err := p.attachXDP(snap); err != nil {
		return err
	}
	if err := p.host.Passed(ctx); err != nil {
		p.host.Log().Debug("packets from before the programs may still be on their way", "reason", err)
	}
	if err := p.sees(ctx, snap); err != nil {
		return err
	}
	for stage, cores := range p.lanes() {
		if err := p.dp.SetLanes(stage, cores); err != nil {
			return err
		}
	}
	if err := p.setBranches(); err != nil {
		return err
	}
	return p.setMasks(snap, made)
}

// setBranches tells which flows are split into which branches.
func (p *pipeline) setBranches() error {
	at := datapath.NIC
	if len(p.layout.NIC) == 0 {
		at = datapath.Tunnel
	}
	var sets []datapath.Branches
	for _, s := range p.layout.Sets {
		sets = append(sets, datapath.Branches{Cores: s.Cores, Behind: s.Behind})
	}
	return p.dp.SetBranches(at, sets, p.layout.SetOf)
}

// setMasks writes the masks of a plan. A device that is refused one is left alone from then on: another
// program is attached to it, and nothing is steered to it.
func (p *pipeline) setMasks(snap node.Snapshot, made plan.Plan) error {
	if p.unplanned {
		made = p.plan(snap)
	}
	if err := p.do(snap, made); err != nil || !p.unplanned {
		return err
	}
	p.plan(snap)
	return errors.Join(p.tunnels(snap), p.attachPrograms(snap))
}

// refusal is what the kernel has refused of a device.
type refusal struct {
	reason string
	bare   bool // no program can be attached
}

// refuse leaves a tunnel, or the pod of such a device, alone.
func (p *pipeline) refuse(snap node.Snapshot, t plan.Target, r refusal) {
	if p.refused[node.Dev(t).Key()] != (refusal{}) {
		return
	}
	p.host.Log().Warn("a device is left alone", "device", t.String(), "reason", r.reason)
	p.refused[node.Dev(t).Key()], p.unplanned = r, true
	for _, pod := range snap.Pods {
		if l := p.attached[pod.Host.Key()]; l != nil && pod.Peer.Key() == node.Dev(t).Key() {
			if err := l.Close(); err != nil {
				p.host.Log().Warn("a program could not be detached", "device", pod.Host.String(), "reason", err)
			}
			delete(p.attached, pod.Host.Key()) // attach has another one
		}
	}
}

// useMerge loads the merge where the layout asks for it.
func (p *pipeline) useMerge() (err error) {
	if p.layout.Merge && p.merge == nil {
		p.merge, err = p.newMerging()
	}
	return err
}

// placeMerge makes the resequencers of a plan, and makes use of them.
func (p *pipeline) placeMerge(snap node.Snapshot, made plan.Plan) error {
	if p.merge == nil {
		return nil
	}
	// One that ends while this looks at the others is not to pass for one that is there.
	ended, err := p.dp.MergeEnded()
	if err != nil {
		return err
	}
	own := plan.Plan{Steps: slices.Clone(made.Steps)}
	own.Steps = slices.DeleteFunc(own.Steps, func(s plan.Step) bool { return s.Kind != plan.OwnDevice })
	if err := errors.Join(p.do(snap, own), p.merge.follow(snap)); err != nil {
		return err
	}
	why, err := p.wholeUDP(snap)
	if err != nil {
		return err
	}
	p.noUDP = why
	if err := p.dp.SetNumbering(why == ""); err != nil || !ended {
		return err
	}
	return p.dp.SetMergeReady()
}

// Of what the governor places, the kernel side can hold all.
const (
	_ = uint(datapath.MaxLanes - governor.MaxLanes)
	_ = uint(datapath.MaxSets - governor.MaxSets)
)

func (p *pipeline) lanes() map[datapath.Stage][]int {
	return map[datapath.Stage][]int{
		datapath.NIC: p.layout.NIC, datapath.Tunnel: p.layout.Tunnel, datapath.Pod: p.layout.Pod,
	}
}

// attachXDP attaches the hook to the underlays where the layout asks for lanes of the nic
// stage. It stays until the daemon ends: to many NICs it costs something to come and to go.
func (p *pipeline) attachXDP(snap node.Snapshot) error {
	if len(p.layout.NIC) == 0 {
		return nil
	}
	if err := p.dp.EndLanes(func(core int) bool { return p.lost[core] }); err != nil {
		return err
	}
	clear(p.lost)
	if err := p.dp.StartLanes(p.layout.NIC); err != nil {
		return err
	}
	return p.takePlaces(snap)
}

// takePlaces puts the XDP program on the underlays. It returns an xdp.Left if none takes it, or, where
// flows are split, if one does not: behind the NIC's stage all can.
func (p *pipeline) takePlaces(snap node.Snapshot) error {
	var none error
	got := false
	for _, u := range snap.Underlays {
		if p.left[u.Key()] {
			continue // the plan says why
		}
		var left *xdp.Left
		err := p.places.Take(u, p.wants(p.layout), func() (io.Closer, error) { return p.host.Attach(u.Dev, p.dp.AttachXDP) })
		switch {
		case err == nil:
			got = true
		case errors.Is(err, node.ErrGone):
		case !errors.As(err, &left):
			return err
		case none == nil:
			none = left
		}
	}
	if got && !p.layout.Split {
		return nil
	}
	return none
}

// tunnels tells the programs which tunnels to steer: all but those left alone. Where a tunnel's
// underlays are left alone as well no program steers, and priority is to know it.
func (p *pipeline) tunnels(snap node.Snapshot) error {
	mine := snap
	mine.Tunnels = slices.DeleteFunc(slices.Clone(snap.Tunnels), func(t node.Tunnel) bool {
		return p.left[t.Key()] && slices.ContainsFunc(t.Underlays, func(u node.Dev) bool { return !p.left[u.Key()] })
	})
	err := p.dp.SetTunnels(tunnelDevices(p.host.Scanner(), mine), underlayDevices(p.host.Scanner(), mine))
	if errors.Is(err, datapath.ErrTooManyTunnels) {
		p.host.Log().Warn("some tunnels are left alone", "reason", err)
		return nil
	}
	return err
}

// plan says which masks are to be written, and remembers which devices are left
// alone and why.
func (p *pipeline) plan(snap node.Snapshot) plan.Plan {
	devices, _ := p.host.Readings()
	in := PlanInput(devices, snap, p.layout, p.host.Owned(plan.ByPipeline), p.places, p.wants(p.layout))
	for _, pod := range snap.Pods {
		if at := slices.IndexFunc(in.Pods, func(d plan.Device) bool { return d.Target == plan.Target(pod.Peer) }); at >= 0 && p.express(pod) {
			in.Pods = slices.Delete(in.Pods, at, at+1)
			in.Skipped = append(in.Skipped, plan.Skip{What: plan.Target(pod.Peer).String(), Reason: "its packets come straight from the NIC (express)", Target: plan.Target(pod.Peer)})
		}
	}
	p.unplanned = false
	maps.DeleteFunc(p.refused, func(k node.DevKey, _ refusal) bool { return !present(snap, k) })
	for _, devices := range []*[]plan.Device{&in.Tunnels, &in.Pods} {
		*devices = slices.DeleteFunc(*devices, func(d plan.Device) bool {
			r, refused := p.refused[node.Dev(d.Target).Key()]
			if refused {
				in.Skipped = append(in.Skipped, plan.Skip{What: d.Target.String(), Reason: "left alone: " + r.reason, Target: d.Target})
			}
			return refused
		})
	}
	if p.merge != nil {
		in.Merge = MergeSteps(snap, p.merge.ifindex)
	}
	made := plan.Pipeline(in)
	p.skipped = made.Skipped
	p.left = map[node.DevKey]bool{}
	for _, s := range made.Skipped {
		if s.Whole() {
			p.left[node.Dev(s.Target).Key()] = true
		}
	}
	return made
}

// idle tells that there are tunnels, and that all of them are left alone.
func (p *pipeline) idle(snap node.Snapshot) bool {
	mine := func(t node.Tunnel) bool { return !p.left[t.Key()] }
	return len(snap.Tunnels) > 0 && !slices.ContainsFunc(snap.Tunnels, mine)
}

// do carries out a plan, each device by itself.
func (p *pipeline) do(snap node.Snapshot, made plan.Plan) error {
	refused, err := p.host.CarryOut(made.Steps)
	errs := []error{err}
	for t, why := range refused {
		if t.Ifindex == 0 { // it was to be one of overlane's own
			errs = append(errs, errors.New(why))
			continue
		}
		p.refuse(snap, t, refusal{reason: why})
	}
	return errors.Join(errs...)
}

// errChangedHands says that a device was ours and is another program's now, or the
// other way round.
var errChangedHands = errors.New("a device has changed hands")

func underlayDevices(s *node.Scanner, snap node.Snapshot) []datapath.UnderlayDevice {
	var devs []datapath.UnderlayDevice
	for _, dev := range snap.Receivers() {
		ns, err := s.Namespace(dev.NetnsCookie)
		if err != nil {
			continue // gone since the scan
		}
		devs = append(devs, datapath.UnderlayDevice{Ifindex: dev.Ifindex, NetnsIno: ns.Inode()})
		ns.Close()
	}
	return devs
}

func tunnelDevices(s *node.Scanner, snap node.Snapshot) []datapath.TunnelDevice {
	var devs []datapath.TunnelDevice
	for _, t := range snap.Tunnels {
		ns, err := s.Namespace(t.NetnsCookie)
		if err != nil {
			continue // gone since the scan
		}
		dev := datapath.TunnelDevice{
			Kind: t.Kind, VNI: t.VNI, AnyVNI: t.AnyVNI, Port: t.Port,
			Ifindex: t.Ifindex, NetnsIno: ns.Inode(), Outer: t.Outer,
		}
		ns.Close()
		if on, err := s.GRO(t.Dev); err == nil {
			dev.NoGRO = !on
		}
		devs = append(devs, dev)
	}
	return devs
}

// follow adapts programs, tunnels and masks to what is on the node now. When
// another program has taken a device over that is steered, or has let go of one whose
// flows are under way, nothing is changed and errChangedHands returned: flows have
// to drain first.
func (p *pipeline) follow(snap node.Snapshot) error {
	if !p.armed {
		return nil
	}
	if err := p.forgetResequencers(); err != nil {
		return err
	}
	before := p.left
	made := p.plan(snap)
	for key := range p.left {
		if !before[key] && p.steers(key) {
			return fmt.Errorf("%w: another program has changed a setting", errChangedHands)
		}
	}
	for key := range before {
		if !p.left[key] && present(snap, key) {
			return fmt.Errorf("%w: one that was left alone is free now", errChangedHands)
		}
	}
	err := errors.Join(p.tunnels(snap), p.placeMerge(snap, made), p.attachPrograms(snap))
	if errors.Is(err, errMore) {
		return err // no mask without a program
	}
	err = errors.Join(err, p.setMasks(snap, made))
	here := map[plan.Target]bool{}
	for _, t := range snap.Tunnels {
		here[plan.Target(t.Dev)] = true
	}
	for _, pod := range snap.Pods {
		here[plan.Target(pod.Peer)] = true
	}
	return errors.Join(err, p.host.Forget(func(e apply.Entry) bool {
		return ofPipeline(e) && !ownDevice(e) && !here[e.Target] && p.host.Gone(e.Target)
	}))
}

// present tells whether a device that may be steered is still there.
func present(snap node.Snapshot, key node.DevKey) bool {
	return slices.ContainsFunc(snap.Tunnels, func(t node.Tunnel) bool { return t.Key() == key }) ||
		slices.ContainsFunc(snap.Pods, func(p node.Pod) bool { return p.Peer.Key() == key })
}

// ofPipeline tells what the pipeline has changed.
func ofPipeline(e apply.Entry) bool { return e.By == plan.ByPipeline }

// steers tells whether the device has a mask of ours.
func (p *pipeline) steers(key node.DevKey) bool {
	return slices.ContainsFunc(p.host.Entries(), func(e apply.Entry) bool {
		return ofPipeline(e) && e.Target.NetnsCookie == key.NetnsCookie && e.Target.Ifindex == key.Ifindex
	})
}

// steer lets the hooks of the helped cores send flows to the lanes; nil: those of all.
func (p *pipeline) steer(helped []int) error {
	was := p.steering
	p.steering, p.draining = true, draining{}
	if p.layout.Split {
		if was {
			return nil
		}
		return p.dp.SetSplit(p.microflows)
	}
	for cpu := range p.cores {
		stages := p.resting(cpu)
		switch {
		case helped != nil && !slices.Contains(helped, cpu):
		case slices.Contains(p.layout.Tunnel, cpu):
		case len(p.layout.Tunnel) > 0:
			stages = append(stages, datapath.Tunnel)
		default:
			stages = append(stages, datapath.Pod)
		}
		if helped == nil && len(p.layout.NIC) > 0 && !slices.Contains(p.layout.NIC, cpu) {
			stages = append(stages, datapath.NIC)
		}
		if err := p.dp.Steer(cpu, stages...); err != nil {
			return err
		}
	}
	return nil
}

// resting are the stages that a core steers also while flows are drained: a
// core that carries tunnel hops must not queue pods' packets as well.
func (p *pipeline) resting(cpu int) []datapath.Stage {
	if slices.Contains(p.layout.Tunnel, cpu) {
		return []datapath.Stage{datapath.Pod}
	}
	return nil
}

// splitInto changes what flows are cut into, also of those that are split already.
func (p *pipeline) splitInto(s datapath.Split) error {
	if s == p.microflows {
		return nil
	}
	p.microflows = s
	if !p.steering || !p.layout.Split {
		return nil
	}
	return p.dp.SetSplit(s)
}

// callBack drains the flows: first from the tunnel stage's lanes, then from
// the pod stage's, so that no backlog carries both at any time.
func (p *pipeline) callBack() error {
	if !p.steering {
		return nil
	}
	p.steering = false
	if p.layout.Split {
		join := p.microflows
		join.Batch = 0
		return p.dp.SetSplit(join)
	}
	for cpu := range p.cores {
		if err := p.dp.Steer(cpu, p.resting(cpu)...); err != nil {
			return err
		}
	}
	return nil
}

// recall calls the flows back and, once they are drained, leaves no trace: masks
// are restored, programs go. As long as flows are out it changes nothing else
// and returns datapath.ErrFlowsOut.
func (p *pipeline) recall(ctx context.Context, limit time.Duration) error {
	if !p.armed {
		return nil
	}
	if err := p.callBack(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := p.waitDrained(wait); err != nil {
		return err
	}
	_, err := p.disarm(ctx)
	return err
}

// disarm leaves no trace. Flows that do not drain before ctx ends may be
// overtaken once: that is for a daemon that stops.
func (p *pipeline) disarm(ctx context.Context) (apply.Report, error) {
	if !p.armed {
		return apply.Report{}, nil
	}
	err := p.callBack()
	if err == nil {
		if w := p.waitDrained(ctx); w != nil {
			p.host.Log().Warn("some packets may be overtaken once", "reason", w)
		}
	}
	// Nothing is sent to a device that goes.
	err = errors.Join(err, p.dp.SetMergeDevice(0))
	rep, restoreErr := p.host.Restore(plan.ByPipeline, nil)
	err = errors.Join(err, restoreErr)
	if ctx.Err() == nil {
		// A hash that was set to stay must not meet a mask that is gone, nor
		// the other way round: what is on its way passes first.
		_ = p.host.Passed(ctx)
	}
	err = errors.Join(err, p.dp.SetNeutral(false), p.dp.SetSplit(datapath.Split{}), p.dp.ForgetSplit())
	for key, l := range p.attached {
		p.host.Meanwhile()
		err = errors.Join(err, l.Close())
		delete(p.attached, key)
	}
	err = errors.Join(err, p.endMerge())
	if p.layout.Split && !p.wants(p.layout).Asked {
		// Each frame costs more while it is there, and to attach it again costs nothing.
		err = errors.Join(err, p.places.ReleaseAll(xdp.Microflows))
	}
	p.armed, p.steering, p.layout, p.skipped = false, false, governor.Layout{}, nil
	clear(p.refused)
	return rep, err
}

// stale tells that the layout uses cores that are not configured any more.
func (p *pipeline) stale(cores []int) bool {
	gone := func(c int) bool { return !slices.Contains(cores, c) }
	return slices.ContainsFunc(p.layout.Cores(), gone)
}

// leave makes flows leave the lanes of cores that shall take none any more.
func (p *pipeline) leave(leaving func(core int) bool) error {
	if !p.armed {
		return nil
	}
	var errs []error
	for stage := range p.lanes() {
		errs = append(errs, p.dp.SetLeaving(stage, leaving))
	}
	return errors.Join(errs...)
}
