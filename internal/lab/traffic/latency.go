// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/overlane/overlane/internal/netns"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
)

// ProbeFlow is the flow number of the latency probe, apart from all others.
const ProbeFlow = MaxFlows - 1

// ProbePort is where the probe's datagrams go.
const ProbePort = 9001

// Endpoint is a place in the lab.
type Endpoint struct {
	NS   *netns.Handle
	Addr netip.Addr
}

// Probe measures latency as a program sees it, by one clock: from before the send
// call on one host until after the receive call, on the other or, for a round
// trip, on the same one.
type Probe struct {
	sockets []int
	threads []*thread
	stop    atomic.Bool
	sent    atomic.Uint64
	begun   atomic.Uint64 // what was sent before is left out
	got     []arrival
	strange error
}

// arrival is a datagram that came, when it was sent and how long it took.
type arrival struct {
	sent uint64
	took time.Duration
}

// StartProbe sends a small datagram every interval, from threads that run when
// they are due, on one core each. It records up to max of them. With back, the
// other end sends each datagram back; sending goes on whether or not anything
// comes back.
func StartProbe(from, to Endpoint, every time.Duration, sendOn, recvOn, max int, back bool) (_ *Probe, err error) {
	p := &Probe{got: make([]arrival, 0, max)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start probe: %w", err), p.end())
		}
	}()
	rx, err := p.bind(to)
	if err != nil {
		return nil, err
	}
	tx, err := p.bind(from)
	if err != nil {
		return nil, err
	}
	type task struct {
		at   Endpoint
		core int
		do   func() error
	}
	tasks := []task{{to, recvOn, func() error { return p.each(rx, p.note) }}}
	if back {
		sendBack := func(data []byte, from unix.Sockaddr, _ uint64) error { return sendProbe(rx, data, from) }
		tasks = []task{{to, recvOn, func() error { return p.each(rx, sendBack) }}, {from, sendOn, func() error { return p.each(tx, p.note) }}}
	}
	tasks = append(tasks, task{from, sendOn, func() error { return p.transmit(tx, to.Addr, uint64(every)) }})
	for _, one := range tasks {
		t, err := startThread(one.at.NS, one.core, urgent, one.do)
		if err != nil {
			return nil, err
		}
		p.threads = append(p.threads, t)
	}
	return p, nil
}

// end waits until the threads that were started have ended, and closes their sockets.
func (p *Probe) end() error {
	p.stop.Store(true)
	return errors.Join(forAll(p.threads, (*thread).wait), forAll(p.sockets, unix.Close))
}

func (p *Probe) bind(at Endpoint) (s int, err error) {
	err = at.NS.Do(func() error {
		if s, err = Bind(unix.IPPROTO_UDP, netip.AddrPortFrom(at.Addr, ProbePort)); err != nil {
			return err
		}
		p.sockets = append(p.sockets, s)
		return wakeReader(s)
	})
	return s, err
}

func (p *Probe) transmit(s int, to netip.Addr, every uint64) error {
	_, sa := Sockaddr(netip.AddrPortFrom(to, ProbePort))
	buf := make([]byte, datagram.StampedSize)
	next := monotonic() + every
	for seq := uint64(0); !p.stop.Load(); seq++ {
		sleepUntil(next)
		now := monotonic()
		// After a delay, go on from now: a burst would queue behind itself.
		if next += every; next < now {
			next = now + every
		}
		datagram.Put(buf, ProbeFlow, seq, now)
		if err := sendProbe(s, buf, sa); err != nil {
			return err
		}
		p.sent.Add(1)
	}
	return nil
}

// each does something with all that arrives on a socket, until the probe is stopped.
func (p *Probe) each(s int, do func(data []byte, from unix.Sockaddr, at uint64) error) error {
	buf := make([]byte, 2*datagram.StampedSize)
	for {
		n, from, err := unix.Recvfrom(s, buf, 0)
		at := monotonic()
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			if p.stop.Load() {
				return nil
			}
			continue
		case err != nil:
			return fmt.Errorf("receive probe: %w", err)
		}
		if err := do(buf[:n], from, at); err != nil {
			return err
		}
	}
}

func (p *Probe) note(data []byte, _ unix.Sockaddr, at uint64) error {
	_, _, when, err := datagram.Parse(data)
	if err != nil {
		p.strange = err
	} else if len(p.got) < cap(p.got) {
		p.got = append(p.got, arrival{when, time.Duration(at - when)})
	}
	return nil
}

// sendProbe sends a datagram. One that finds no room is lost.
func sendProbe(s int, data []byte, to unix.Sockaddr) error {
	if err := unix.Sendto(s, data, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("send probe: %w", err)
	}
	return nil
}

// Latencies are what a probe, or clients, measured.
type Latencies struct {
	Sent     uint64
	Received uint64
	Missed   uint64 // times to send that had passed when it could be sent
	Min      time.Duration
	P50      time.Duration
	P99      time.Duration
	P999     time.Duration
	Max      time.Duration
	Mean     time.Duration
}

// Begin leaves what was sent before out of the figures.
func (p *Probe) Begin() { p.begun.Store(monotonic()) }

func (p *Probe) counted() (took []time.Duration) {
	for _, a := range p.got {
		if a.sent >= p.begun.Load() {
			took = append(took, a.took)
		}
	}
	return took
}

// Stop ends the probe.
func (p *Probe) Stop() (Latencies, error) {
	err := p.end()
	if err == nil {
		err = p.strange
	}
	if err != nil {
		return Latencies{}, err
	}
	sent, received := p.sent.Load(), uint64(len(p.got))
	got := p.counted()
	if len(got) == 0 {
		return Latencies{Sent: sent, Received: received}, fmt.Errorf("no probe of %d arrived", sent)
	}
	l := summary(got)
	l.Sent, l.Received = sent, received
	return l, nil
}

// summary sorts times, at least one, and describes them.
func summary(got []time.Duration) (l Latencies) {
	got = slices.Clone(got)
	slices.Sort(got)
	at := func(q float64) time.Duration { return got[min(int(q*float64(len(got))), len(got)-1)] }
	l.Min, l.P50, l.P99, l.P999, l.Max = at(0), at(0.5), at(0.99), at(0.999), at(1)
	l.Mean = sum(got) / time.Duration(len(got))
	return l
}
