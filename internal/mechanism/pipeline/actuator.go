// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// actuator carries out what the governor decides: programs and masks come and
// go, flows are sent to lanes and called back.
type actuator struct {
	host Host
	dp   Kernel
	lost map[int]bool // cores that were offline since the lanes were made

	layout governor.Layout        // in place while armed
	merge  *merging               // where split flows are put in order
	merged datapath.MergeCounters // by earlier ones
	hold   time.Duration          // the most that a packet waits there
	// microflows are what a layout that splits flows cuts them into.
	microflows datapath.Split
	noUDP      string // why UDP flows cannot be put in order, if so
	armed      bool
	arming     bool  // armed, and arm is to be called again
	mask       []int // of the pods
	steering   bool
	draining   draining        // while flows are called back
	attached   mechanism.Hooks // at tcx
	skipped    []plan.Skip
	left       map[node.DevKey]bool // devices that are left alone
	nothing    string               // why no device is steered, if so
	share      share                // of packets that are not seen
	told       string               // of tunnels that are too many, by the log
	// refused are tunnels and pods of which the kernel has refused a mask or a program, until flows have
	// drained. unplanned: there are some that the plan does not know yet.
	refused   map[node.DevKey]refusal
	unplanned bool
	wants     func(governor.Layout) xdp.Want
	past      func(*shortcut.Watchers, node.Snapshot) map[node.DevKey]string // shortcut.Watchers.PastHostEnds
	decrypts  func(node.Snapshot) bool                                       // Pipeline.decrypts
}

// arm puts programs and masks in place; every flow still takes the stock path. It may end with mechanism.ErrMore, and is
// to be called again.
func (a *actuator) arm(ctx context.Context, snap node.Snapshot, layout governor.Layout) error {
	if !a.arming {
		a.mask = podMask(layout, a.host.Cores())
	}
	a.armed, a.arming, a.layout = true, true, layout
	if err := a.useMerge(); err != nil {
		return err
	}
	made := a.plan(snap)
	if err := a.placeMerge(snap, made); err != nil {
		return err
	}
	if err := a.tunnels(snap); err != nil {
		return err
	}
	if err := a.attachPrograms(made); err != nil {
		return err
	}
	if err := a.attachXDP(snap); err != nil {
		return err
	}
	if err := a.host.Passed(ctx); err != nil {
		a.host.Log().Debug("packets from before the programs may still be on their way", "reason", err)
	}
	if err := a.sees(ctx, snap); err != nil {
		return err
	}
	for stage, cores := range a.stages() {
		var mask []int
		if stage == datapath.Pod {
			mask = a.mask
		}
		if err := a.dp.SetLanes(stage, cores, mask...); err != nil {
			return err
		}
	}
	if err := a.setBranches(); err != nil {
		return err
	}
	if err := a.setMasks(snap, made); err != nil {
		return err
	}
	a.arming = false
	return nil
}

// setBranches tells which flows are split into which branches.
func (a *actuator) setBranches() error {
	at := datapath.NIC
	if len(a.layout.NIC) == 0 {
		at = datapath.Tunnel
	}
	var sets []datapath.Branches
	for _, s := range a.layout.Sets {
		sets = append(sets, datapath.Branches{Cores: s.Cores, Behind: s.Behind})
	}
	return a.dp.SetBranches(at, sets, a.layout.SetOf)
}

// setMasks writes the masks of a plan before flows are steered. A device that is refused one is left alone from then
// on: another program is attached to it, nothing is steered to it, and a pod behind it loses its mask again, before the
// program goes that has packets stay.
func (a *actuator) setMasks(snap node.Snapshot, made plan.Plan) (err error) {
	if !a.unplanned {
		err = a.do(made)
	}
	for err == nil && a.unplanned { // each time a device more is refused
		made = a.plan(snap)
		err = errors.Join(a.do(made), a.tunnels(snap), a.attachPrograms(made))
	}
	return err
}

// refusal is what the kernel has refused of a device.
type refusal struct {
	reason string
	bare   bool // no program can be attached
}

// refuse leaves a tunnel, or the pod of such a device, alone.
func (a *actuator) refuse(t plan.Target, r refusal) {
	if a.refused[node.Dev(t).Key()] != (refusal{}) {
		return
	}
	a.host.Log().Warn("a device is left alone", "device", t.String(), "reason", r.reason)
	a.refused[node.Dev(t).Key()], a.unplanned = r, true
}

// useMerge loads the merge where the layout asks for it.
func (a *actuator) useMerge() (err error) {
	if a.layout.Merge && a.merge == nil {
		a.merge, err = a.newMerging()
	}
	return err
}

// placeMerge makes the resequencers of a plan, and makes use of them.
func (a *actuator) placeMerge(snap node.Snapshot, made plan.Plan) error {
	if a.merge == nil {
		return nil
	}
	// One that ends while this looks at the others is not to pass for one that is there.
	ended, err := a.dp.MergeEnded()
	if err != nil {
		return err
	}
	own := plan.Plan{Steps: slices.Clone(made.Steps)}
	own.Steps = slices.DeleteFunc(own.Steps, func(s plan.Step) bool { return s.Kind != plan.OwnDevice })
	if err := errors.Join(a.do(own), a.merge.follow(snap)); err != nil {
		return err
	}
	why, err := a.wholeUDP(snap)
	if err != nil {
		return err
	}
	a.noUDP = why
	if err := a.dp.SetNumbering(why == ""); err != nil || !ended {
		return err
	}
	return a.dp.SetMergeReady()
}

// Of what the governor places, the kernel side can hold all.
const (
	_ = uint(datapath.MaxLanes - governor.MaxLanes)
	_ = uint(datapath.MaxSets - governor.MaxSets)
)

func (a *actuator) stages() map[datapath.Stage][]int {
	return map[datapath.Stage][]int{
		datapath.NIC: a.layout.NIC, datapath.Tunnel: a.layout.Tunnel, datapath.Pod: a.layout.Pod,
	}
}

// attachXDP attaches the hook to the underlays where the layout asks for lanes of the nic
// stage. It stays until the daemon ends: to many NICs it costs something to come and to go.
func (a *actuator) attachXDP(snap node.Snapshot) error {
	if len(a.layout.NIC) == 0 {
		return nil
	}
	if err := a.dp.EndLanes(func(core int) bool { return a.lost[core] }); err != nil {
		return err
	}
	clear(a.lost)
	if err := a.dp.StartLanes(a.layout.NIC); err != nil {
		return err
	}
	return a.takePlaces(snap)
}

// takePlaces puts the XDP program on the underlays. It returns an xdp.Left if none takes it, or, where
// flows are split, if one does not: behind the NIC's stage all can.
func (a *actuator) takePlaces(snap node.Snapshot) error {
	var none error
	got := false
	for _, u := range snap.Underlays {
		if a.left[u.Key()] {
			continue // the plan says why
		}
		var left *xdp.Left
		err := a.host.Places().Take(u, a.wants(a.layout), func() (io.Closer, error) { return a.host.Attach(u.Dev, a.dp.AttachXDP) })
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
	if got && !a.layout.Split {
		return nil
	}
	return none
}

// known are the tunnels that the programs are to know: all but those left alone. Where a tunnel has underlays, and all
// are left alone as well, no program steers, and priority is to know it: as far as the others leave room for it, since
// these have masks. why: some found no room.
func (a *actuator) known(snap node.Snapshot) (known []node.Tunnel, why string) {
	served, headers := func(u node.Dev) bool { return !a.left[u.Key()] }, map[string]bool{}
	for _, t := range snap.Tunnels {
		if served(t.Dev) {
			headers[header(t)] = true
		}
	}
	for _, t := range snap.Tunnels {
		switch {
		case served(t.Dev):
		case len(t.Underlays) == 0 || slices.ContainsFunc(t.Underlays, served):
			continue
		case len(headers) >= datapath.MaxTunnels && !headers[header(t)]:
			why = cmp.Or(why, fmt.Sprintf("%s and those behind it: %s", plan.Target(t.Dev), plan.TooMany(datapath.MaxTunnels)))
			continue
		}
		headers[header(t)] = true
		known = append(known, t)
	}
	return known, why
}

// tunnels tells the programs which tunnels to know.
func (a *actuator) tunnels(snap node.Snapshot) error {
	mine, why := snap, ""
	mine.Tunnels, why = a.known(snap)
	over := func(s plan.Skip) bool { return s.Reason == plan.TooMany(datapath.MaxTunnels) }
	if i := slices.IndexFunc(a.skipped, over); i >= 0 {
		why = fmt.Sprintf("%s and those behind it: %s", a.skipped[i].What, a.skipped[i].Reason)
	}
	err := a.host.SetTunnels(mine)
	if errors.Is(err, datapath.ErrTooManyTunnels) {
		why, err = err.Error(), nil
	}
	if why != "" && why != a.told {
		a.host.Log().Warn("some tunnels are left alone", "reason", why)
	}
	a.told = why
	return err
}

// plan says which masks are to be written, and remembers which devices are left
// alone and why.
func (a *actuator) plan(snap node.Snapshot) plan.Plan {
	devices, _ := a.host.Readings()
	var past map[node.DevKey]string
	if a.merge != nil {
		past = a.merge.skips(a.past(a.merge.watchers, snap), snap.Pods)
	}
	in := planInput(devices, snap, a.layout, a.host.Owned(plan.ByPipeline), a.host.Places(), a.wants(a.layout), past)
	in.PodMask = a.mask
	leaveToExpress(&in, snap, a.host.Express)
	a.unplanned = false
	maps.DeleteFunc(a.refused, func(k node.DevKey, _ refusal) bool { return !present(snap, k) })
	for _, devices := range [][]plan.Device{in.Tunnels, in.Pods} {
		for i, d := range devices {
			if r, refused := a.refused[node.Dev(d.Target).Key()]; refused && d.Unfit == "" {
				devices[i].Unfit = "left alone: " + r.reason
			}
		}
	}
	in.Attach = slices.DeleteFunc(in.Attach, func(at plan.Attachment) bool { return a.refused[node.Dev(at.Serves).Key()].bare })
	if a.merge != nil {
		in.Merge = mergeSteps(snap, a.merge.ifindex)
	}
	made := plan.Pipeline(in)
	a.skipped = made.Skipped
	a.left = map[node.DevKey]bool{}
	for _, s := range made.Skipped {
		if s.Whole() {
			a.left[node.Dev(s.Target).Key()] = true
		}
	}
	a.nothing = a.unsteered(snap, made)
	return made
}

// unsteered says why nothing is steered by a plan; empty: something is.
func (a *actuator) unsteered(snap node.Snapshot, made plan.Plan) string {
	why := cmp.Or(snap.LacksNIC(), leftAlone(a, "NIC", snap.Underlays, func(u node.Underlay) node.Dev { return u.Dev }),
		leftAlone(a, "tunnel", snap.Tunnels, func(t node.Tunnel) node.Dev { return t.Dev }))
	onNIC := func(at plan.Attachment) bool {
		return slices.ContainsFunc(snap.Underlays, func(u node.Underlay) bool { return plan.Target(u.Dev) == at.Target })
	}
	if why != "" || slices.ContainsFunc(made.Attach, onNIC) {
		return why
	}
	return cmp.Or(snap.LacksPod(), leftAlone(a, "pod", snap.Pods, func(p node.Pod) node.Dev { return p.Peer }), "no device is steered, see the devices")
}

// leftAlone says why each of some devices is left alone, by the first of them; empty: one is not, or there is none.
func leftAlone[T any](a *actuator, what string, list []T, dev func(T) node.Dev) string {
	mine := func(one T) bool { return !a.left[dev(one).Key()] }
	if len(list) == 0 || slices.ContainsFunc(list, mine) {
		return ""
	}
	first := plan.Target(dev(list[0]))
	why := a.skipped[slices.IndexFunc(a.skipped, func(s plan.Skip) bool { return s.Whole() && s.Target == first })].Reason
	if len(list) == 1 {
		return fmt.Sprintf("the only %s is left alone: %s: %s", what, first, strings.TrimPrefix(why, "left alone: "))
	}
	return fmt.Sprintf("every %s is left alone: %s: %s", what, first, strings.TrimPrefix(why, "left alone: "))
}

// do carries out a plan, each device by itself.
func (a *actuator) do(made plan.Plan) error {
	refused, err := a.host.CarryOut(made.Steps)
	errs := []error{err}
	for t, why := range refused {
		if t.Ifindex == 0 { // it was to be one of overlane's own
			errs = append(errs, errors.New(why))
			continue
		}
		a.refuse(t, refusal{reason: why})
	}
	return errors.Join(errs...)
}

// errChangedHands says that a device was ours and is another program's now, or the
// other way round.
var errChangedHands = errors.New("a device has changed hands")

// follow adapts programs, tunnels and masks to what is on the node now. When
// another program has taken a device over that is steered, or has let go of one whose
// flows are under way, or one that is steered has left the overlay and lives on, nothing is
// changed and errChangedHands returned: flows have to drain first.
func (a *actuator) follow(snap node.Snapshot) error {
	if err := a.forgetResequencers(); err != nil {
		return err
	}
	before := a.left
	made := a.plan(snap)
	if err := a.changedHands(snap, before); err != nil {
		a.left = before // until flows have drained
		return errors.Join(err, a.tunnels(snap))
	}
	err := errors.Join(a.tunnels(snap), a.placeMerge(snap, made), a.attachPrograms(made))
	if errors.Is(err, mechanism.ErrMore) {
		return err // no mask without a program
	}
	if !a.unplanned {
		err = errors.Join(err, a.do(made))
	}
	if a.unplanned { // a device more is refused, and what is steered behind it may have to drain
		return errors.Join(err, a.follow(snap))
	}
	return err
}

// changedHands says which way devices have, compared with those that were left alone before.
func (a *actuator) changedHands(snap node.Snapshot, before map[node.DevKey]bool) error {
	if why := leaves(snap, a.host.Places()); why != "" && len(a.layout.NIC) > 0 {
		return fmt.Errorf("%w: %s", errChangedHands, why)
	}
	for _, s := range a.skipped {
		if key := node.Dev(s.Target).Key(); s.Whole() && !before[key] && a.steers(key) {
			return fmt.Errorf("%w: %s: %s", errChangedHands, s.What, s.Reason)
		}
	}
	if why := a.headless(snap); why != "" {
		return fmt.Errorf("%w: %s", errChangedHands, why)
	}
	for key := range before {
		if !a.left[key] && present(snap, key) {
			return fmt.Errorf("%w: one that was left alone is free now", errChangedHands)
		}
	}
	over, err := a.host.Unneeded(plan.ByPipeline, func(s plan.Setting) bool {
		return s.Kind == plan.OwnDevice || present(snap, node.Dev(s.Target).Key())
	})
	// What is kept is tried again each time that all is taken off, and asks for none.
	if i := slices.IndexFunc(over, func(e apply.Entry) bool { return e.Kept == "" }); i >= 0 {
		return fmt.Errorf("%w: %s has left the overlay", errChangedHands, over[i].Target)
	}
	return err
}

// headless says why the stage on the NICs is not where it was put: by a NIC on which XDP reads no headers. Without
// micro-flows one of several may go on.
func (a *actuator) headless(snap node.Snapshot) (why string) {
	if len(a.layout.NIC) == 0 {
		return ""
	}
	for _, u := range snap.Underlays {
		switch unread := a.host.Places().Headless(u); {
		case a.left[u.Key()]:
		case unread:
			why = fmt.Sprintf("%s: %s", u.Name, xdp.Headless)
		case !a.layout.Split:
			return ""
		}
	}
	return why
}

// present tells whether a device that may be steered is still there.
func present(snap node.Snapshot, key node.DevKey) bool {
	return slices.ContainsFunc(snap.Tunnels, func(t node.Tunnel) bool { return t.Key() == key }) ||
		slices.ContainsFunc(snap.Pods, func(p node.Pod) bool { return p.Peer.Key() == key })
}

// ofPipeline tells what the pipeline has changed.
func ofPipeline(e apply.Entry) bool { return e.By == plan.ByPipeline }

// steers tells whether the device has a mask of ours.
func (a *actuator) steers(key node.DevKey) bool {
	return slices.ContainsFunc(a.host.Entries(), func(e apply.Entry) bool {
		return ofPipeline(e) && e.Target.NetnsCookie == key.NetnsCookie && e.Target.Ifindex == key.Ifindex
	})
}

// steer lets the hooks of the helped cores send flows to the lanes; nil: those of all.
func (a *actuator) steer(helped []int) error {
	was := a.steering
	a.steering, a.draining = true, draining{}
	if a.layout.Split {
		if was {
			return nil
		}
		return a.dp.SetSplit(a.microflows)
	}
	for cpu := range a.dp.CPUs() {
		stages := a.resting(cpu)
		switch {
		case helped != nil && !slices.Contains(helped, cpu):
		case slices.Contains(a.layout.Tunnel, cpu):
		case len(a.layout.Tunnel) > 0:
			stages = append(stages, datapath.Tunnel)
		default:
			stages = append(stages, datapath.Pod)
		}
		if helped == nil && len(a.layout.NIC) > 0 && !slices.Contains(a.layout.NIC, cpu) {
			stages = append(stages, datapath.NIC)
		}
		if err := a.dp.Steer(cpu, stages...); err != nil {
			return err
		}
	}
	return nil
}

// resting are the stages that a core steers also while flows are drained: a
// core that carries tunnel hops must not queue pods' packets as well.
func (a *actuator) resting(cpu int) []datapath.Stage {
	if slices.Contains(a.layout.Tunnel, cpu) {
		return []datapath.Stage{datapath.Pod}
	}
	return nil
}

// splitInto changes what flows are cut into, also of those that are split already.
func (a *actuator) splitInto(s datapath.Split) error {
	if s == a.microflows {
		return nil
	}
	a.microflows = s
	if !a.steering || !a.layout.Split {
		return nil
	}
	return a.dp.SetSplit(s)
}

// callBack drains the flows: first from the tunnel stage's lanes, then from
// the pod stage's, so that no backlog carries both at any time.
func (a *actuator) callBack() error {
	if !a.steering {
		return nil
	}
	a.steering = false
	if a.layout.Split {
		join := a.microflows
		join.Batch = 0
		return a.dp.SetSplit(join)
	}
	for cpu := range a.dp.CPUs() {
		if err := a.dp.Steer(cpu, a.resting(cpu)...); err != nil {
			return err
		}
	}
	return nil
}

// recall calls the flows back and, once they are drained, leaves no trace: masks
// are restored, programs go. As long as flows are out it changes nothing else
// and returns datapath.ErrFlowsOut.
func (a *actuator) recall(ctx context.Context, limit time.Duration) error {
	if !a.armed {
		return nil
	}
	if err := a.callBack(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := a.waitDrained(wait); err != nil {
		return err
	}
	_, err := a.takeOff(ctx, !a.layout.Split)
	return err
}

// disarm leaves no trace. Flows that do not drain before ctx ends may be
// overtaken once: that is for a daemon that stops.
func (a *actuator) disarm(ctx context.Context) (apply.Report, error) {
	if !a.armed {
		return apply.Report{}, a.attached.Close()
	}
	err := a.callBack()
	if err == nil {
		if w := a.waitDrained(ctx); w != nil {
			a.host.Log().Warn("some packets may be overtaken once", "reason", w)
		}
	}
	rep, left := a.takeOff(ctx, false)
	return rep, errors.Join(err, left)
}

// takeOff takes all off: settings, then programs. inSteps: of these, which do nothing then, some may be left to detach.
func (a *actuator) takeOff(ctx context.Context, inSteps bool) (apply.Report, error) {
	// Nothing is sent to a device that goes.
	err := a.dp.SetMergeDevice(0)
	rep, restoreErr := a.host.Restore(plan.ByPipeline, nil)
	err = errors.Join(err, restoreErr)
	if ctx.Err() == nil {
		// A hash that was set to stay must not meet a mask that is gone, nor
		// the other way round: what is on its way passes first.
		_ = a.host.Passed(ctx)
	}
	err = errors.Join(err, a.dp.SetNeutral(false), a.dp.SetSplit(datapath.Split{}), a.dp.ForgetSplit())
	err = errors.Join(err, a.detach(inSteps), a.endMerge())
	if a.layout.Split && !a.wants(a.layout).Asked {
		// Each frame costs more while it is there, and to attach it again costs nothing.
		err = errors.Join(err, a.host.Places().ReleaseAll(xdp.Microflows))
	}
	err = errors.Join(err, a.host.Places().ReleaseUnfit(xdp.Pipeline, xdp.Microflows))
	a.armed, a.arming, a.steering, a.layout, a.mask, a.skipped = false, false, false, governor.Layout{}, nil, nil
	a.nothing, a.share = "", share{}
	clear(a.refused)
	return rep, err
}

// detach detaches the programs; inSteps: as many as there is time for between two decisions.
func (a *actuator) detach(inSteps bool) error {
	begun := time.Now()
	return a.attached.Keep(func(mechanism.Hook) bool {
		a.host.Meanwhile()
		return inSteps && time.Since(begun) > mechanism.AttachFor
	})
}

// stale tells that layout and masks have cores that are not configured any more, or lanes whose threads may run elsewhere:
// their cores were offline.
func (a *actuator) stale(cores []int) bool {
	gone := func(c int) bool { return !slices.Contains(cores, c) }
	strayed := func(c int) bool { return a.lost[c] }
	return slices.ContainsFunc(a.layout.Cores(), gone) || slices.ContainsFunc(a.mask, gone) || slices.ContainsFunc(a.layout.NIC, strayed)
}

// leave makes flows leave the lanes of cores that shall take none any more.
func (a *actuator) leave(leaving func(core int) bool) error {
	if !a.armed {
		return nil
	}
	var errs []error
	for stage := range a.stages() {
		errs = append(errs, a.dp.SetLeaving(stage, leaving))
	}
	return errors.Join(errs...)
}
