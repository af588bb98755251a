// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

const (
	// MergeDevice is the name of the devices that are resequencers, MergedDevice that of
	// their other ends.
	MergeDevice  = "ol-merge"
	MergedDevice = "ol-merged"
	// firstMergeIndex is the least index that they get.
	firstMergeIndex = 1 << 24
)

// merging are the resequencers: in each namespace with pods a veth of ours. Its qdisc puts in
// order what is sent through it; on the other end RPS takes it to the core that it goes
// on on, and a program to its pod.
type merging struct {
	a          *actuator
	order      *ordering
	ifindex    int
	namespaces map[uint64]behind // by namespace: all that are to have one
	watchers   *shortcut.Watchers
	skipped    map[node.DevKey]string // as skips said last
	unread     int                    // looks in a row that could not read all
}

// behind is the other end of a resequencer, or none that can be used.
type behind struct {
	ifindex int
	program io.Closer
}

func (a *actuator) newMerging() (*merging, error) {
	order, err := newOrdering(a.dp, a.hold, a.host.Log())
	if err != nil {
		return nil, err
	}
	// The programs know one index for all namespaces: one that no device has.
	at := firstMergeIndex + rand.IntN(1<<24)
	watchers := shortcut.NewWatchers(a.host.Scanner(), a.host.Owns, nil)
	return &merging{a: a, order: order, ifindex: at, namespaces: map[uint64]behind{}, watchers: watchers}, a.dp.SetMergeDevice(at)
}

// wholeUDP says why UDP flows cannot be put in order again, or nothing: frames have to keep
// their numbers on their way.
func (a *actuator) wholeUDP(snap node.Snapshot) (string, error) {
	if ok, err := a.dp.Numbers(); err != nil || !ok {
		return "the NIC's driver knows no XDP metadata", err
	}
	devs := snap.Receivers()
	for _, t := range snap.Tunnels {
		devs = append(devs, t.Dev)
	}
	for _, dev := range devs {
		is, err := a.host.Scanner().Features(dev)
		if errors.Is(err, node.ErrGone) {
			continue
		}
		if err != nil {
			return "", err
		}
		for _, name := range []string{plan.UDPForwarding, plan.GROList} {
			if is[name].Active {
				return fmt.Sprintf("%s joins datagrams into one (%s)", dev, name), nil
			}
		}
	}
	return "", nil
}

// mergeSteps are the devices that a snapshot's pods need for resequencers, with an index.
func mergeSteps(snap node.Snapshot, ifindex int) []plan.Step {
	cookies := map[uint64]bool{}
	for _, pod := range snap.Pods {
		cookies[pod.Host.NetnsCookie] = true
	}
	var steps []plan.Step
	for _, c := range slices.Sorted(maps.Keys(cookies)) {
		steps = append(steps, plan.Step{
			Setting: plan.OwnDeviceOf(c, MergeDevice), Was: plan.NoDevice, First: plan.NoDevice,
			Want:   plan.OwnVeth(ifindex, MergedDevice),
			Reason: "the packets of split flows are put in order there",
		})
	}
	return steps
}

// mergeIndex is the one that resequencers have, by the settings that the pipeline has changed, or may get.
func mergeIndex(owned map[plan.Setting]plan.Owned) int {
	for s, o := range owned {
		if s.Kind != plan.OwnDevice {
			continue
		}
		if at, _, err := plan.ParseOwnVeth(o.Wrote); err == nil {
			return at
		}
	}
	return firstMergeIndex
}

// ownDevice tells whether an entry is a device that the pipeline has made.
func ownDevice(e apply.Entry) bool { return ofPipeline(e) && e.Kind == plan.OwnDevice }

// forgetResequencers takes those out of the journal that another program has deleted: they are
// to be made anew.
func (a *actuator) forgetResequencers() error {
	if a.merge == nil {
		return nil
	}
	lost := map[uint64]bool{}
	for _, e := range a.host.Entries() {
		c := e.Target.NetnsCookie
		if _, known := a.merge.namespaces[c]; !known || !ownDevice(e) {
			continue
		}
		ns, err := a.host.Scanner().Namespace(c)
		if err != nil {
			continue // gone as a whole
		}
		err = ns.Do(func() error {
			_, err := netlink.LinkByIndex(a.merge.ifindex)
			return err
		})
		ns.Close()
		if _, lost[c] = errors.AsType[netlink.LinkNotFoundError](err); lost[c] {
			a.host.Log().Info("a resequencer was deleted, and is made anew", "device", MergeDevice)
		}
	}
	return a.host.Forget(func(e apply.Entry) bool { return ownDevice(e) && lost[e.NetnsCookie] })
}

// follow makes resequencers of the devices that are none yet.
func (m *merging) follow(snap node.Snapshot) error {
	want := map[uint64]bool{}
	var errs []error
	for _, pod := range snap.Pods {
		c := pod.Host.NetnsCookie
		if want[c] {
			continue
		}
		want[c] = true
		if _, ok := m.namespaces[c]; !ok {
			m.namespaces[c] = behind{}
		}
		err := m.make(c)
		if errs = append(errs, err); err != nil {
			errs = append(errs, m.leave(c))
		}
	}
	for c := range m.namespaces {
		if !want[c] {
			errs = append(errs, m.leave(c))
			delete(m.namespaces, c)
		}
	}
	return errors.Join(errs...)
}

// leave takes the programs off again.
func (m *merging) leave(cookie uint64) error {
	b := m.namespaces[cookie]
	if b.program == nil {
		return nil
	}
	m.namespaces[cookie] = behind{}
	return b.program.Close()
}

// make makes a resequencer of the device in a namespace: first what is behind it, then
// the qdisc.
//
// The mask and the qdisc are written here, and not by apply: the journal has the device, which is overlane's own. They
// have no first value to go back to, and go when the daemon, the guardian or the next start deletes the device.
func (m *merging) make(cookie uint64) error {
	ns, err := m.a.host.Scanner().Namespace(cookie)
	if err != nil {
		return nil // gone since the scan
	}
	defer ns.Close()
	return ns.Do(func() error {
		if err := m.takeOver(ns, cookie); err != nil {
			return err
		}
		return m.putQdisc()
	})
}

// takeOver has what comes out of a resequencer go on on its core, to its pod. The devices
// may be other ones than they were: another program has deleted those.
func (m *merging) takeOver(ns *netns.Handle, cookie uint64) error {
	link, err := netlink.LinkByName(MergedDevice)
	if err != nil {
		return fmt.Errorf("find device %s: %w", MergedDevice, err)
	}
	at := link.Attrs().Index
	if m.namespaces[cookie].ifindex == at {
		return nil
	}
	if err := m.leave(cookie); err != nil {
		return err
	}
	sysfs, err := ns.Sysfs()
	if err != nil {
		return err
	}
	defer sysfs.Close()
	mask := "class/net/" + MergedDevice + "/queues/rx-0/rps_cpus"
	if err := sysfs.WriteFile(mask, []byte(plan.Mask(m.a.layout.Pod)), 0); err != nil {
		return fmt.Errorf("set RPS mask of %s: %w", MergedDevice, err)
	}
	prog, err := m.a.host.Attach(node.Dev{Name: MergedDevice, NetnsCookie: cookie, Ifindex: at}, m.a.dp.AttachMerged)
	if err != nil {
		return err
	}
	m.namespaces[cookie] = behind{ifindex: at, program: prog}
	return nil
}

// putQdisc puts the qdisc on the device of the namespace that this is run in.
func (m *merging) putQdisc() error {
	link, err := netlink.LinkByIndex(m.ifindex)
	if err != nil {
		return fmt.Errorf("find device %s: %w", MergeDevice, err)
	}
	// Another program may have set it down.
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set device %s up: %w", MergeDevice, err)
	}
	list, err := netlink.QdiscList(link)
	if err != nil {
		return fmt.Errorf("read qdisc of %s: %w", MergeDevice, err)
	}
	kind := m.order.merge.Kind()
	if slices.ContainsFunc(list, func(q netlink.Qdisc) bool { return q.Type() == kind }) {
		return nil
	}
	root := netlink.QdiscAttrs{LinkIndex: m.ifindex, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if err := netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: root, QdiscType: kind}); err != nil {
		return fmt.Errorf("put qdisc on %s: %w", MergeDevice, err)
	}
	return nil
}

// waiting is how many packets wait.
func (m *merging) waiting() (uint64, error) {
	if m == nil {
		return 0, nil
	}
	return m.order.merge.Waiting()
}

// mergeCounters counts since the daemon started.
func (a *actuator) mergeCounters() (datapath.MergeCounters, error) {
	if a.merge == nil {
		return a.merged, nil
	}
	now, err := a.merge.order.merge.Counters()
	return a.merged.Add(now), err
}

// endMerge lets go of the merge; what it has counted is kept.
func (a *actuator) endMerge() error {
	if a.merge == nil {
		return nil
	}
	c, err := a.mergeCounters()
	if err == nil {
		a.merged = c
	}
	for c := range a.merge.namespaces {
		err = errors.Join(err, a.merge.leave(c))
	}
	err = errors.Join(err, a.merge.watchers.Close(), a.merge.order.close())
	a.merge = nil
	return err
}

// mostUnread is how many looks in a row may not tell what packets would skip: pods that come and go interrupt one.
const mostUnread = 3

// skips says by the host ends of pods what packets would skip behind a resequencer, of which read lacks those that could
// not be read now. What was so before is taken for so then, but not for long, as all flows would become whole else.
func (m *merging) skips(read map[node.DevKey]string, pods []node.Pod) map[node.DevKey]string {
	unread := false
	for _, pod := range pods {
		key := pod.Host.Key()
		if _, is := read[key]; is {
			continue
		}
		unread = true
		why, known := m.skipped[key]
		if !known || m.unread >= mostUnread {
			why = "what packets would skip cannot be read"
		}
		read[key] = why
	}
	if m.unread++; !unread {
		m.unread = 0
	}
	m.skipped = read
	return read
}
