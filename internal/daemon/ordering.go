// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
)

// ordering is how merge points put packets in order.
type ordering interface {
	// qdisc is what does it, on a device.
	qdisc(netlink.QdiscAttrs) netlink.Qdisc
	// is tells whether a device's qdisc is that.
	is(netlink.Qdisc) bool
	// attach puts what the qdisc needs in front of it.
	attach(datapath.Device) (io.Closer, error)
	// counters counts since it was loaded. waiting counts the packets in all of the devices'
	// qdiscs, for who does not know.
	counters(waiting func() (int, error)) (datapath.MergeCounters, error)
	close() error
}

// byNumber is a qdisc of ours, which looks at the packets' sequence numbers, and wants signs of
// life.
type byNumber struct {
	merge   *datapath.Merge
	log     *slog.Logger
	stop    chan struct{} // ends them
	stopped chan struct{}
}

func newByNumber(dp *datapath.Datapath, limit time.Duration, log *slog.Logger) (*byNumber, error) {
	m, err := dp.LoadMerge(limit)
	if err != nil {
		return nil, err
	}
	if err := m.Beat(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	o := &byNumber{merge: m, log: log, stop: make(chan struct{}), stopped: make(chan struct{})}
	go o.live()
	return o, nil
}

// beatEvery is how often the merge gets a sign of life, which it waits a second for: from a
// goroutine of its own, for what ends them is the end of the process.
const beatEvery = 200 * time.Millisecond

// live gives signs of life. One that fails is as one that is late: nothing waits any more.
func (o *byNumber) live() {
	defer close(o.stopped)
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-o.stop:
			return
		case <-tick.C:
			if err := o.merge.Beat(); err != nil {
				o.log.Warn("split flows are not put in order", "reason", err)
				return
			}
		}
	}
}

func (o *byNumber) qdisc(a netlink.QdiscAttrs) netlink.Qdisc {
	return &netlink.GenericQdisc{QdiscAttrs: a, QdiscType: o.merge.Kind()}
}

func (o *byNumber) is(q netlink.Qdisc) bool { return q.Type() == o.merge.Kind() }

func (*byNumber) attach(datapath.Device) (io.Closer, error) { return nothing{}, nil }

func (o *byNumber) counters(func() (int, error)) (datapath.MergeCounters, error) {
	return o.merge.Counters()
}

func (o *byNumber) close() error {
	close(o.stop)
	<-o.stopped
	return o.merge.Close()
}

// nothing has to be taken off again.
type nothing struct{}

func (nothing) Close() error { return nil }

// byTime is the kernel's fq, which looks at the time that a program of ours stamps packets with.
type byTime struct {
	dp    *datapath.Datapath
	reseq *datapath.Resequencer
	delay *governor.Delay
	now   time.Duration // in force
}

// waysOfMost is how many units of the ways the most that is allowed is, so that some that are
// longer are told apart, too.
const waysOfMost = datapath.Ways / 2

func newByTime(dp *datapath.Datapath, most time.Duration) (*byTime, error) {
	unit := most / time.Duration(waysOfMost)
	r, err := dp.LoadResequencer(unit)
	if err != nil {
		return nil, err
	}
	if err := dp.SetMergeDelay(most); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &byTime{dp: dp, reseq: r, delay: governor.NewDelay(unit, most), now: most}, nil
}

// fqLimit is how many packets fq holds, as many of one flow: at a million a second, those of
// some 60 ms.
const fqLimit = 1 << 16

func (*byTime) qdisc(a netlink.QdiscAttrs) netlink.Qdisc {
	q := netlink.NewFq(a)
	q.PacketLimit, q.FlowPacketLimit = fqLimit, fqLimit
	return q
}

func (*byTime) is(q netlink.Qdisc) bool {
	fq, ok := q.(*netlink.Fq)
	return ok && fq.PacketLimit == fqLimit && fq.FlowPacketLimit == fqLimit
}

func (o *byTime) attach(dev datapath.Device) (io.Closer, error) { return o.reseq.Attach(dev) }

func (o *byTime) counters(waiting func() (int, error)) (datapath.MergeCounters, error) {
	c, err := o.reseq.Counters()
	if err != nil {
		return c, err
	}
	c.Waiting, err = waiting()
	return c, err
}

func (o *byTime) close() error {
	return errors.Join(o.dp.SetMergeDelay(0), o.reseq.Close())
}

// adapt makes the delay what the ways through the branches ask for.
func (o *byTime) adapt() error {
	ways, err := o.reseq.Ways()
	if err != nil {
		return err
	}
	o.delay.Step(ways[:])
	if want := o.delay.Now(); want != o.now {
		o.now = want
		return o.dp.SetMergeDelay(want)
	}
	return nil
}

// waiting counts the packets in the merge points' qdiscs.
func (m *merging) waiting() (n int, err error) {
	for c := range m.spaces {
		ns, err := m.p.scanner.Namespace(c)
		if errors.Is(err, node.ErrGone) {
			continue
		}
		if err != nil {
			return 0, err
		}
		err = ns.Do(func() error {
			link, err := netlink.LinkByIndex(m.ifindex)
			var none netlink.LinkNotFoundError
			if errors.As(err, &none) {
				return nil
			}
			if err != nil {
				return err
			}
			list, err := netlink.QdiscList(link)
			for _, q := range list {
				if s := q.Attrs().Statistics; m.order.is(q) && s != nil && s.Queue != nil {
					n += int(s.Queue.Qlen)
				}
			}
			return err
		})
		if err := errors.Join(err, ns.Close()); err != nil {
			return 0, fmt.Errorf("read qdisc of %s: %w", MergeDevice, err)
		}
	}
	return n, nil
}
