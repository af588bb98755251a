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

// Probe measures one-way latency, as a program sees it: from before the send
// call on one host until after the receive call on the other, by one clock.
type Probe struct {
	send, recv *thread
	stop       atomic.Bool
	sent       atomic.Uint64
	got        []time.Duration
	strange    error
}

// StartProbe sends a small datagram every interval, from threads that run when
// they are due, on one core each. It records up to max of them.
func StartProbe(from, to Endpoint, every time.Duration, sendOn, recvOn, max int) (*Probe, error) {
	p := &Probe{got: make([]time.Duration, 0, max)}
	rx, err := bindIn(to)
	if err != nil {
		return nil, fmt.Errorf("start probe: %w", err)
	}
	tx, err := bindIn(from)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start probe: %w", err), unix.Close(rx))
	}
	// So that the receiver sees the end.
	patience := unix.NsecToTimeval(int64(50 * time.Millisecond))
	err = unix.SetsockoptTimeval(rx, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	if err == nil {
		p.recv, err = startThread(to.NS, recvOn, urgent, func() error { return p.receive(rx) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start probe: %w", err), unix.Close(rx), unix.Close(tx))
	}
	p.send, err = startThread(from.NS, sendOn, urgent, func() error { return p.transmit(tx, to.Addr, uint64(every)) })
	if err != nil {
		p.stop.Store(true)
		return nil, errors.Join(fmt.Errorf("start probe: %w", err), <-p.recv.done, unix.Close(tx))
	}
	return p, nil
}

func bindIn(at Endpoint) (s int, err error) {
	err = at.NS.Do(func() error {
		s, err = bindUDP(netip.AddrPortFrom(at.Addr, ProbePort))
		return err
	})
	return s, err
}

func (p *Probe) transmit(s int, to netip.Addr, every uint64) error {
	defer unix.Close(s)
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: ProbePort, Addr: as4(to)}
	if to.Is6() {
		sa = &unix.SockaddrInet6{Port: ProbePort, Addr: to.As16()}
	}
	buf := make([]byte, StampedSize)
	next := monotonic() + every
	for seq := uint64(0); !p.stop.Load(); seq++ {
		sleepUntil(next)
		now := monotonic()
		// After a delay, go on from now: a burst would queue behind itself.
		if next += every; next < now {
			next = now + every
		}
		putProbe(buf, ProbeFlow, seq, now)
		if err := unix.Sendto(s, buf, 0, sa); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send probe: %w", err)
		}
		p.sent.Add(1)
	}
	return nil
}

func (p *Probe) receive(s int) error {
	defer unix.Close(s)
	buf := make([]byte, 2*StampedSize)
	for {
		n, _, err := unix.Recvfrom(s, buf, 0)
		now := monotonic()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			if p.stop.Load() {
				return nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("receive probe: %w", err)
		}
		_, _, when, err := parseProbe(buf[:n])
		if err != nil {
			p.strange = err
			continue
		}
		if len(p.got) < cap(p.got) {
			p.got = append(p.got, time.Duration(now-when))
		}
	}
}

// Latencies are what a probe measured.
type Latencies struct {
	Sent     uint64
	Received uint64
	Min      time.Duration
	P50      time.Duration
	P99      time.Duration
	P999     time.Duration
	Max      time.Duration
	Mean     time.Duration
}

// Stop ends the probe. What was sent before skip is left out of the figures.
func (p *Probe) Stop(skip int) (Latencies, error) {
	p.stop.Store(true)
	err := errors.Join(<-p.send.done, <-p.recv.done)
	if err == nil {
		err = p.strange
	}
	if err != nil {
		return Latencies{}, err
	}
	got := slices.Clone(p.got[min(skip, len(p.got)):])
	l := Latencies{Sent: p.sent.Load(), Received: uint64(len(p.got))}
	if len(got) == 0 {
		return l, fmt.Errorf("no probe of %d arrived", l.Sent)
	}
	slices.Sort(got)
	at := func(q float64) time.Duration { return got[min(int(q*float64(len(got))), len(got)-1)] }
	l.Min, l.P50, l.P99, l.P999, l.Max = at(0), at(0.5), at(0.99), at(0.999), at(1)
	var sum time.Duration
	for _, d := range got {
		sum += d
	}
	l.Mean = sum / time.Duration(len(got))
	return l, nil
}
