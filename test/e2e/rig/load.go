// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/patience"
)

// Load is paced UDP traffic from the sender's pods to the receiver's, with a
// checker that follows each flow at the socket layer.
type Load struct {
	tb    testing.TB
	bed   *bed.Bed
	check *traffic.Checker
	gen   generator
	flows int
	// requeued is what the wire had handed back when the load began.
	requeued uint64
	// stopped: the generator; ended: the checker, too.
	stopped, ended bool
}

// generator is what sends a load.
type generator interface {
	Sent() uint64
	Stop() error
}

// steady is a generator of the kernel's.
type steady struct {
	tb   testing.TB
	live *traffic.Live
	sent uint64 // in all, once it has ended
	over bool
}

func (s *steady) Sent() uint64 {
	s.tb.Helper()
	if s.over {
		return s.sent
	}
	n, err := s.live.Sent()
	if err != nil {
		s.tb.Error(err)
	}
	return n.Datagrams
}

func (s *steady) Stop() error {
	n, err := s.live.Stop()
	s.sent, s.over = n.Datagrams, true
	return err
}

// Rate of a load in datagrams per second: some of a core, and never so much
// that a busy machine could not keep up.
const Rate = 30000

// noticed is how many datagrams in a second keep a daemon awake.
const noticed = 12000

const payload = 64

// Poll is what a NIC takes from its ring at a time. InRing is what can be between a NIC and the
// end of a pod's veth that is polled: a ring, and what a poll has taken from it. Of flows that
// leave the path in this moment, so many datagrams can be overtaken at most, of however many
// flows they are.
const (
	Poll   = 64
	InRing = 256 + Poll
)

// StartLoad sends flows, in turn to the given pods (none: all), and waits
// until the first datagrams have arrived.
func StartLoad(tb testing.TB, b *bed.Bed, flows int, pods ...int) *Load {
	tb.Helper()
	return startLoad(tb, b, flows, pods, func(list []traffic.Flow) (generator, error) {
		return traffic.StartSegments(b, traffic.SegmentConfig{Flows: list, Size: payload, Rate: Rate, Core: b.PlaceCores().Gen[0]})
	})
}

// StartSteady is StartLoad with bare frames, as a NIC hands them on, each so long after the one
// before, fewer on a slow machine. They take what others leave of their core, and their order
// is exact: what is late was overtaken on the way.
func StartSteady(tb testing.TB, b *bed.Bed, flows int, pods ...int) *Load {
	tb.Helper()
	return startFrames(tb, b, flows, pods, min(patience.For(time.Second/Rate), time.Second/noticed))
}

// StartDense is StartSteady with frames that come soon one after the other, some of which
// wait for their softirq, and yet not so many that those take a core from all tasks.
func StartDense(tb testing.TB, b *bed.Bed, flows int) *Load {
	tb.Helper()
	return startFrames(tb, b, flows, nil, patience.For(10*time.Microsecond))
}

// StartFlood is StartSteady with as many frames as the generator's core can send. What the
// overlay cannot take is dropped, and what else runs on its cores has little of them.
func StartFlood(tb testing.TB, b *bed.Bed, flows int) *Load {
	tb.Helper()
	return startFrames(tb, b, flows, nil, 0)
}

func startFrames(tb testing.TB, b *bed.Bed, flows int, pods []int, gap time.Duration) *Load {
	tb.Helper()
	return startLoad(tb, b, flows, pods, func(list []traffic.Flow) (generator, error) {
		live, err := traffic.StartLive(b, traffic.LiveConfig{Flows: list, Size: payload, Core: b.PlaceCores().Gen[0], Gap: gap})
		return &steady{tb: tb, live: live}, err
	})
}

func startLoad(tb testing.TB, b *bed.Bed, flows int, pods []int, send func([]traffic.Flow) (generator, error)) *Load {
	tb.Helper()
	if len(pods) == 0 {
		for n := range b.Pods {
			pods = append(pods, n)
		}
	}
	check, err := traffic.NewChecker(-1)
	if err != nil {
		tb.Fatal(err)
	}
	l := &Load{tb: tb, bed: b, check: check, flows: flows}
	l.requeued = l.wire().Requeued
	tb.Cleanup(func() { l.end() })
	for _, n := range pods {
		pod := b.Receiver().Pods[n]
		if err := check.Listen(pod.NS, netip.AddrPortFrom(pod.IP4, traffic.Port)); err != nil {
			tb.Fatal(err)
		}
	}
	var list []traffic.Flow
	for id := range flows {
		list = append(list, traffic.NewFlow(b, id, pods[id%len(pods)], true, false, 0))
	}
	gen, err := send(list)
	if err != nil {
		tb.Fatal(err)
	}
	l.gen = gen
	l.GoesOn()
	return l
}

// Verdict is what became of a load's flows.
type Verdict struct {
	traffic.Verdict
	// Requeued are frames that the wire handed back (bed.WireStats), of which it may have overtaken as many. A steady
	// load has none.
	Requeued uint64
}

// Verdict is what became of the flows so far.
func (l *Load) Verdict() Verdict {
	l.tb.Helper()
	v, err := l.check.Total(l.flows)
	if err != nil {
		l.tb.Fatal(err)
	}
	return Verdict{v, l.wire().Requeued - l.requeued}
}

// Polled is how many frames the receiving NIC has polled, of this load and others.
func (l *Load) Polled() uint64 {
	l.tb.Helper()
	return l.wire().RxPackets
}

func (l *Load) wire() bed.WireStats {
	l.tb.Helper()
	wire, err := l.bed.WireStats()
	if err != nil {
		l.tb.Fatal(err)
	}
	return wire
}

// Sent is the number of datagrams so far.
func (l *Load) Sent() uint64 {
	l.tb.Helper()
	return l.gen.Sent()
}

// GoesOn waits until every flow has got another few hundred datagrams through.
func (l *Load) GoesOn() {
	l.tb.Helper()
	const more = 200
	first := make([]uint64, l.flows)
	for id := range first {
		first[id] = l.Flow(id).Received
	}
	Until(l.tb, "traffic goes on", func() (bool, string) {
		for id := range first {
			if got := l.Flow(id).Received - first[id]; got < more {
				return false, fmt.Sprintf("%d datagrams of flow %d arrived, %d were sent in all", got, id, l.gen.Sent())
			}
		}
		return true, ""
	})
}

// Share is the part of the next third of a second's datagrams that arrive.
func (l *Load) Share() float64 {
	l.tb.Helper()
	const window = Rate / 3
	sent, got := l.gen.Sent(), l.Verdict().Received
	Until(l.tb, "a window is sent", func() (bool, string) {
		n := l.gen.Sent() - sent
		return n >= window, fmt.Sprint(n)
	})
	sent = l.gen.Sent() - sent // before what arrived is read: it may be more
	return float64(l.Verdict().Received-got) / float64(sent)
}

// Flow is what became of one flow so far.
func (l *Load) Flow(id int) traffic.Verdict {
	l.tb.Helper()
	v, err := l.check.Flow(id)
	if err != nil {
		l.tb.Fatal(err)
	}
	return v
}

// Stop ends the traffic and returns what became of it, once all of it has arrived or the rest is lost.
func (l *Load) Stop() (v Verdict) {
	l.tb.Helper()
	l.stopped = true
	if err := l.gen.Stop(); err != nil {
		l.tb.Fatal(err)
	}
	AwaitAll(l.gen.Sent(), func() uint64 {
		v = l.Verdict()
		return v.Received
	})
	l.end()
	return v
}

func (l *Load) end() {
	if l.ended {
		return
	}
	l.ended = true
	var err error
	if l.gen != nil && !l.stopped {
		err = l.gen.Stop()
	}
	if err := errors.Join(err, l.check.Close()); err != nil {
		l.tb.Error(err)
	}
}

// Mask reads the RPS mask of a device's first queue.
func Mask(tb testing.TB, ns *netns.Handle, dev string) string {
	tb.Helper()
	return strings.TrimLeft(strings.ReplaceAll(Queue(tb, ns, dev, "rps_cpus"), ",", ""), "0")
}

// Queue reads an attribute of a device's first receive queue.
func Queue(tb testing.TB, ns *netns.Handle, dev, attr string) string {
	tb.Helper()
	root, err := ns.Sysfs()
	if err != nil {
		tb.Fatal(err)
	}
	defer root.Close()
	data, err := root.ReadFile("class/net/" + dev + "/queues/rx-0/" + attr)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// SetQueue writes an attribute of a device's first receive queue, as an
// administrator would.
func SetQueue(tb testing.TB, ns *netns.Handle, dev, attr, value string) {
	tb.Helper()
	root, err := ns.Sysfs()
	if err != nil {
		tb.Fatal(err)
	}
	defer root.Close()
	f, err := root.OpenFile("class/net/"+dev+"/queues/rx-0/"+attr, os.O_WRONLY, 0)
	if err != nil {
		tb.Fatal(err)
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		tb.Fatalf("set %s of %s to %s: %v", attr, dev, value, err)
	}
}
