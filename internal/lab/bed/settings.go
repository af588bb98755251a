// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/napi"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// writeFile writes to a file of /proc or /sys, which must exist.
func writeFile(open func(string, int, os.FileMode) (*os.File, error), path, value string) error {
	f, err := open(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// wireFeatures makes an end of a veth behave like a network card: what leaves
// it is finished (checksums filled in, cut to MTU size), or frames that XDP
// redirects would arrive with half a checksum and be dropped; what arrives
// goes through NAPI and GRO. Names that the kernel does not have are left out:
// they differ between versions.
func wireFeatures(ns *netns.Handle, dev string) error {
	want := map[string]bool{"rx-gro": true}
	for _, off := range []string{
		"tx-checksum-ip-generic", "tx-checksum-sctp", "tx-generic-segmentation",
		"tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-accecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation",
		"tx-udp-segmentation", "tx-sctp-segmentation", "tx-gso-list", "tx-gre-segmentation", "tx-gre-csum-segmentation",
		"tx-ipxip4-segmentation", "tx-ipxip6-segmentation", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation",
		"rx-udp-gro-forwarding", "rx-gro-list",
	} {
		want[off] = false
	}
	return ns.Do(func() error {
		was, err := ethtool.Features(dev)
		if err != nil {
			return err
		}
		for name, on := range want {
			if f, known := was[name]; known && !f.Fixed && f.Requested != on {
				if err := ethtool.SetFeature(dev, name, on); err != nil {
					return err
				}
			}
		}
		is, err := ethtool.Features(dev)
		if err != nil {
			return err
		}
		for name, on := range want {
			if f, known := is[name]; known && f.Active != on {
				return fmt.Errorf("feature %s of %s does not change to %t", name, dev, on)
			}
		}
		return nil
	})
}

// SetRPS chooses the cores to which a device hands received packets, on all of
// its queues. No cores: no RPS.
func SetRPS(ns *netns.Handle, dev string, cores []int) error {
	root, err := ns.Sysfs()
	if err != nil {
		return err
	}
	defer root.Close()
	mask := plan.Mask(cores)
	for q := 0; ; q++ {
		err := writeFile(root.OpenFile, fmt.Sprintf("class/net/%s/queues/rx-%d/rps_cpus", dev, q), mask)
		if errors.Is(err, os.ErrNotExist) && q > 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("set RPS of %s to %s: %w", dev, mask, err)
		}
	}
}

// Reset puts every setting that a variant may have changed back to what the
// plain overlay has, and fails when something foreign is left on a device.
func (b *Bed) Reset() error {
	rx := b.Receiver()
	if err := b.residue(); err != nil {
		return err
	}
	for _, h := range b.Hosts {
		err := SetRPS(h.NS, h.Wire, nil)
		if err == nil && b.Topology != Bare {
			err = SetRPS(h.Overlay, Tunnel, nil)
		}
		if err != nil {
			return err
		}
		for _, p := range h.Pods {
			if err := SetRPS(p.NS, PodDev, nil); err != nil {
				return err
			}
			var hostEnd []int
			if h.Name == b.Sender().Name {
				// A sender in task and in softirq context on two cores feeds
				// two backlogs: the sending host would reorder by itself.
				hostEnd = []int{b.Cores.Sender}
			}
			if err := SetRPS(h.Overlay, p.HostEnd, hostEnd); err != nil {
				return err
			}
		}
	}
	if err := wireFeatures(rx.NS, rx.Wire); err != nil {
		return err
	}
	tx := b.Sender()
	if err := within(tx.NS, func(i *inside) { i.flowControl(tx.Wire, b.Queues) }); err != nil {
		return err
	}
	if b.Cores.senderApart() {
		// The sending host's work stays on its core: what comes back is polled there, not by
		// the core that has sent it.
		if err := threaded(tx.NS, tx.Wire, slices.Repeat([]int{b.Cores.Sender}, b.Queues), Nice); err != nil {
			return err
		}
	}
	return b.SetThreaded(b.NIC == Thread)
}

// CutEarly has what TCP sends cut into segments before it waits for the wire, where the sender has a
// core of its own. What waits is taken by the core that polls the NIC, as soon as that has made room:
// else it would cut as well.
func (b *Bed) CutEarly() error {
	if !b.Cores.senderApart() {
		return nil
	}
	tx := b.Sender()
	return within(tx.NS, func(i *inside) { i.cutting(tx.Wire, b.Queues) })
}

// StopFlowControl ends, until the next Reset, that the sending stack waits when the
// wire's ring is full: what finds it full is lost, as on a network card without
// pause frames.
func (b *Bed) StopFlowControl() error {
	tx := b.Sender()
	return within(tx.NS, func(i *inside) {
		i.flowControl(tx.Wire, b.Queues) // or there may be nothing to take back
		i.try("set queueing of "+tx.Wire, i.QdiscDel(i.rootQdisc(tx.Wire, "")))
	})
}

// residue looks for programs on the receiving devices: none of the lab's own
// outlives its variant, so one that is there belongs to another program,
// which should have taken it away.
func (b *Bed) residue() error {
	rx := b.Receiver()
	return within(rx.NS, func(i *inside) {
		if l := i.link(rx.Wire); i.err == nil {
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				i.try("reset bed", fmt.Errorf("an XDP program (id %d) is left on %s", x.ProgId, rx.Wire))
			}
		}
	})
}

// SetThreaded switches the receiving end of the wire between threaded NAPI,
// with the thread of queue i on core i, and softirq.
func (b *Bed) SetThreaded(on bool) error {
	rx := b.Receiver()
	if !on {
		return writeThreaded(rx.NS, rx.Wire, false)
	}
	b.released = false
	// An interrupt would not wait for another task on the core. Above
	// all, it is the same in every variant.
	return threaded(rx.NS, rx.Wire, b.Cores.NIC, b.NAPI)
}

func writeThreaded(ns *netns.Handle, dev string, on bool) error {
	root, err := ns.Sysfs()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := writeFile(root.OpenFile, "class/net/"+dev+"/threaded", strconv.Itoa(map[bool]int{true: 1}[on])); err != nil {
		return fmt.Errorf("set threaded NAPI of %s: %w", dev, err)
	}
	return nil
}

// threaded has threads poll a device, that of queue i on cores[i].
func threaded(ns *netns.Handle, dev string, cores []int, p NAPI) error {
	if err := writeThreaded(ns, dev, true); err != nil {
		return err
	}
	tids, err := napiThreads(ns, dev, len(cores))
	if err != nil {
		return err
	}
	if len(tids) != len(cores) {
		return fmt.Errorf("%s has %d NAPI threads for %d queues", dev, len(tids), len(cores))
	}
	for q, tid := range tids {
		var set unix.CPUSet
		set.Set(cores[q])
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			return fmt.Errorf("pin NAPI thread %d: %w", tid, err)
		}
		if err := unix.SchedSetAttr(tid, p.attr(), 0); err != nil {
			return fmt.Errorf("schedule NAPI thread %d at %s: %w", tid, p, err)
		}
	}
	return nil
}

const (
	niceValue    = -20
	fifoPriority = 1
)

func (p NAPI) attr() *unix.SchedAttr {
	a := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: niceValue}
	if p == FIFO {
		// The kernel's throttle of real-time tasks stays as the machine has it.
		a.Policy, a.Priority, a.Nice = unix.SCHED_FIFO, fifoPriority, 0
	}
	return a
}

// ReleaseNAPI leaves the scheduling of the wire's NAPI threads, but for their cores, to a variant
// that does it itself, where the bed's options say so. SetThreaded takes it back.
func (b *Bed) ReleaseNAPI() error {
	if b.NAPI != Own {
		return nil
	}
	b.released = true
	tids, err := b.NAPIThreads()
	if err != nil {
		return err
	}
	for _, tid := range tids {
		if err := unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0); err != nil {
			return fmt.Errorf("release NAPI thread %d: %w", tid, err)
		}
	}
	return nil
}

// KeptNAPI fails when the wire's NAPI threads are not scheduled as the bed has
// them: what was measured until then is another comparison than it says.
func (b *Bed) KeptNAPI() error {
	if b.NIC != Thread || b.released {
		return nil
	}
	tids, err := b.NAPIThreads()
	if err != nil {
		return err
	}
	if len(tids) != b.Queues {
		return fmt.Errorf("%s has %d NAPI threads for %d queues: the variant has to leave them", b.Receiver().Wire, len(tids), b.Queues)
	}
	want := b.NAPI.attr()
	own, err := unix.SchedGetAttr(0, 0) // of this process: the default
	if err != nil {
		return fmt.Errorf("look at own scheduling: %w", err)
	}
	for _, tid := range tids {
		is, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			return fmt.Errorf("look at NAPI thread %d: %w", tid, err)
		}
		kept := is.Policy == want.Policy && is.Priority == want.Priority
		if want.Policy == unix.SCHED_NORMAL {
			kept = kept && is.Nice == want.Nice && is.Runtime == own.Runtime
		}
		if !kept {
			return fmt.Errorf("NAPI thread %d of %s has policy %d, priority %d, nice %d, slice %d ns, not %s: the variant has to leave it alone",
				tid, b.Receiver().Wire, is.Policy, is.Priority, is.Nice, is.Runtime, b.NAPI)
		}
	}
	return nil
}

// LinkStats returns the kernel's counters of a device.
func LinkStats(ns *netns.Handle, dev string) (*netlink.LinkStatistics, error) {
	var st *netlink.LinkStatistics
	err := within(ns, func(i *inside) {
		if l := i.link(dev); i.err == nil {
			st = l.Attrs().Statistics
		}
	})
	return st, err
}

// Ifindex is a device's number in its namespace.
func Ifindex(ns *netns.Handle, dev string) (index int, err error) {
	err = within(ns, func(i *inside) { index = i.link(dev).Attrs().Index })
	return index, err
}

// WireStats are the counters of the wire.
type WireStats struct {
	RxPackets uint64 // frames that were polled
	RxDropped uint64 // frames that found the ring full
	// Requeued are frames that found the ring full and went back to the sending end's queue: one that does so twice
	// gets behind the rest of its burst (dev_requeue_skb, net/sched/sch_generic.c).
	Requeued uint64
}

// WireStats reads them.
func (b *Bed) WireStats() (WireStats, error) {
	rx := b.Receiver()
	st, err := LinkStats(rx.NS, rx.Wire)
	if err != nil {
		return WireStats{}, err
	}
	got := WireStats{RxPackets: st.RxPackets, RxDropped: st.RxDropped}
	tx := b.Sender()
	index, err := Ifindex(tx.NS, tx.Wire)
	if err != nil {
		return WireStats{}, err
	}
	err = tx.NS.Do(func() (err error) {
		got.Requeued, err = requeued(index)
		return err
	})
	return got, err
}

// requeued reads what the root queue of a device of this namespace has had handed back. It is in TCA_STATS2 alone: the
// kernel tells of older numbers behind that, TCA_STATS, and the library takes what comes last (vishvananda/netlink 1.3.1).
func requeued(ifindex int) (n uint64, err error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETQDISC, unix.NLM_F_DUMP)
	req.AddData(&nl.TcMsg{Family: unix.AF_UNSPEC, Ifindex: int32(ifindex)})
	list, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWQDISC)
	if err != nil {
		return 0, fmt.Errorf("read the queueing of device %d: %w", ifindex, err)
	}
	for _, m := range list {
		head := nl.DeserializeTcMsg(m)
		if int(head.Ifindex) != ifindex || head.Parent != netlink.HANDLE_ROOT {
			continue
		}
		attrs, err := nl.ParseRouteAttrAsMap(m[head.Len():])
		if err != nil {
			return 0, fmt.Errorf("read the queueing of device %d: %w", ifindex, err)
		}
		stats, err := nl.ParseRouteAttrAsMap(attrs[nl.TCA_STATS2].Value)
		if err != nil {
			return 0, fmt.Errorf("read the queueing of device %d: %w", ifindex, err)
		}
		// struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits
		if queue := stats[nl.TCA_STATS_QUEUE].Value; len(queue) >= 16 {
			n += uint64(nl.NativeEndian().Uint32(queue[12:]))
		}
	}
	return n, nil
}

// NAPIThreads returns the threads that poll the receiving end of the wire, by
// queue; none in softirq mode.
func (b *Bed) NAPIThreads() (tids []int, err error) {
	rx := b.Receiver()
	return napiThreads(rx.NS, rx.Wire, b.Queues)
}

func napiThreads(ns *netns.Handle, dev string, queues int) (tids []int, err error) {
	ifindex, err := Ifindex(ns, dev)
	if err != nil {
		return nil, err
	}
	err = ns.Do(func() (err error) {
		tids, err = napi.Threads(ifindex, queues)
		return err
	})
	return tids, err
}
