// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait; it decides when a test has failed, never whether.
const patience = 3 * time.Minute

// stream sends numbered datagrams from the first host's pod to the second's
// until stopped, and looks at what comes out.
type stream struct {
	burst     int // datagrams at a time, from one burst to the next: pace
	pace      time.Duration
	from, to  *net.UDPConn
	stop      chan struct{}
	ended     chan error
	sent, got atomic.Uint64
	// late came after one with a higher number, again counts the same number.
	late, again atomic.Uint64
}

// last marks the datagrams that end a stream.
const last = ^uint64(0)

// stream sends in bursts, so that packets queue in the path, at a pace that an emulated
// core bears.
func (o *overlay) stream(t *testing.T, ip func(*host) netip.Addr) *stream {
	t.Helper()
	return o.send(t, ip, 8, 20*time.Millisecond)
}

func (o *overlay) send(t *testing.T, ip func(*host) netip.Addr, burst int, pace time.Duration) *stream {
	t.Helper()
	s := &stream{burst: burst, pace: pace, stop: make(chan struct{}), ended: make(chan error, 2)}
	a, b := &o.hosts[0], &o.hosts[1]
	err := b.pod.Do(func() (err error) {
		s.to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip(b), 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.to.Close() })
	// What waits for the reader must not be dropped and pass for a loss.
	if err := sockopt(s.to, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		t.Fatalf("widen the receive buffer: %v", err)
	}
	err = a.pod.Do(func() (err error) {
		s.from, err = net.DialUDP("udp", nil, s.to.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.from.Close() })
	go func() {
		s.ended <- a.pod.Do(func() error {
			// A sender that moves to another core overtakes itself: veth takes
			// packets on the core that sends them.
			var core unix.CPUSet
			core.Set(0)
			if err := unix.SchedSetaffinity(0, &core); err != nil {
				return fmt.Errorf("pin the sender: %w", err)
			}
			return s.send()
		})
	}()
	go func() { s.ended <- s.receive() }()
	return s
}

func (s *stream) send() error {
	buf := make([]byte, 64)
	pace := time.NewTicker(s.pace)
	defer pace.Stop()
	for n := uint64(0); ; {
		select {
		case <-s.stop:
			binary.BigEndian.PutUint64(buf, last)
			_, err := s.from.Write(buf)
			return err
		case <-pace.C:
		}
		for range s.burst {
			binary.BigEndian.PutUint64(buf, n)
			if _, err := s.from.Write(buf); err != nil {
				return fmt.Errorf("send datagram %d: %w", n, err)
			}
			n++
			s.sent.Add(1)
		}
	}
}

func (s *stream) receive() error {
	buf := make([]byte, 2048)
	seen := map[uint64]bool{}
	var high uint64
	for {
		if err := s.to.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := s.to.Read(buf)
		if err != nil {
			return fmt.Errorf("after %d datagrams: %w", s.got.Load(), err)
		}
		if n != 64 {
			return fmt.Errorf("a datagram of %d bytes", n)
		}
		seq := binary.BigEndian.Uint64(buf)
		if seq == last {
			return nil
		}
		switch {
		case seen[seq]:
			s.again.Add(1)
		case seq < high:
			s.late.Add(1)
		}
		seen[seq], high = true, max(high, seq)
		s.got.Add(1)
	}
}

// reach waits until so many more datagrams have come.
func (s *stream) reach(t *testing.T, more uint64) {
	t.Helper()
	want := s.got.Load() + more
	until(t, fmt.Sprintf("%d more datagrams", more), func() bool { return s.got.Load() >= want })
}

// finish ends the stream, whose every datagram must have come, once, in order.
func (s *stream) finish(t *testing.T) { t.Helper(); s.finishWith(t, 0) }

// finishWith is finish where so many packets were counted as dropped.
func (s *stream) finishWith(t *testing.T, dropped uint64) {
	t.Helper()
	s.finishLate(t, dropped)
	if n := s.late.Load(); n != 0 {
		t.Errorf("%d datagrams came late", n)
	}
}

// finishLate is finishWith where order is not asked for.
func (s *stream) finishLate(t *testing.T, dropped uint64) {
	t.Helper()
	close(s.stop)
	for range 2 {
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d datagrams", s.got.Load())
	if s.sent.Load() > s.got.Load()+dropped || s.again.Load() != 0 {
		t.Errorf("of %d datagrams %d came, %d again; %d were counted as dropped",
			s.sent.Load(), s.got.Load(), s.again.Load(), dropped)
	}
}

// copyTCP sends bytes through a connection between the pods, and compares.
func (o *overlay) copyTCP(t *testing.T, ip func(*host) netip.Addr, size int) {
	t.Helper()
	a, b := &o.hosts[0], &o.hosts[1]
	var l *net.TCPListener
	err := b.pod.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip(b), 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data := make([]byte, size)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(data) // never fails
	sent := make(chan error, 1)
	go func() {
		sent <- a.pod.Do(func() error {
			c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
			if err != nil {
				return err
			}
			_, err = c.Write(data)
			return errors.Join(err, c.Close())
		})
	}()
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came, not the %d that were sent", len(got), len(data))
	}
}

// until looks every few milliseconds until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
