// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// parcels is a flow of datagrams from the first host's pod to the second's, of which each byte
// is known to the receiver: in runs of one size, as long as the sender likes.
type parcels struct {
	seed      uint64
	whole     bool // the receiver takes super-packets (UDP_GRO)
	unchecked bool // no checksums
	from, to  *net.UDPConn
	n         int
	room      chan struct{} // one for each datagram that may be under way
	ended     chan error
	inOne     int // datagrams that came with others in one packet
}

const (
	longestRun = 24
	largest    = 1300
	mayBeOnWay = 40 // of a flow: so that no ring and no backlog is ever full
)

// shape is the sizes of a flow's datagrams, and what is in them.
type shape struct {
	*rand.Rand
	left, size int
}

func (p *parcels) shape() *shape { return &shape{Rand: rand.New(rand.NewPCG(p.seed, 5))} }

// run is how many more are of which size.
func (s *shape) run() (n, size int) {
	if s.left == 0 {
		s.left, s.size = 1+s.IntN(longestRun), 1+s.IntN(largest)
		if s.IntN(4) == 0 {
			s.size = 1 + s.IntN(64)
		}
	}
	return s.left, s.size
}

// next fills in the next datagram.
func (s *shape) next(b []byte) []byte {
	_, size := s.run()
	s.left--
	b = b[:0]
	for len(b) < size {
		b = binary.BigEndian.AppendUint64(b, s.Uint64())
	}
	return b[:size]
}

func (o *overlay) parcels(t *testing.T, ip func(*host) netip.Addr, n int, p *parcels) *parcels {
	t.Helper()
	p.n, p.ended, p.room = n, make(chan error, 2), make(chan struct{}, mayBeOnWay)
	a, b := &o.hosts[0], &o.hosts[1]
	err := b.pod.Do(func() (err error) {
		p.to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip(b), 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.to.Close() })
	err = a.pod.Do(func() (err error) {
		p.from, err = net.DialUDP("udp", nil, p.to.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.from.Close() })
	if err := errors.Join(
		sockopt(p.to, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		sockopt(p.from, unix.SOL_SOCKET, unix.SO_NO_CHECK, btoi(p.unchecked)),
		sockopt(p.to, unix.SOL_UDP, unix.UDP_GRO, btoi(p.whole)),
	); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.ended <- a.pod.Do(func() error {
			// As a stream's: a sender that moves to another core overtakes itself.
			var core unix.CPUSet
			core.Set(0)
			if err := unix.SchedSetaffinity(0, &core); err != nil {
				return fmt.Errorf("pin the sender: %w", err)
			}
			return p.send()
		})
	}()
	go func() { p.ended <- p.receive() }()
	return p
}

// assortment sends flows of each kind, and returns them, and how many datagrams they were, when all
// have come: the second to a socket that takes super-packets, the last without checksums.
func (o *overlay) assortment(t *testing.T, n int) (flows []*parcels, all int) {
	t.Helper()
	if *machineWide {
		n = min(n, 1000)
	}
	v4, v6 := families[0].of, families[1].of
	flows = []*parcels{
		o.parcels(t, v4, n, &parcels{seed: 2}),
		o.parcels(t, v4, n, &parcels{seed: 3, whole: true}),
		o.parcels(t, v6, n, &parcels{seed: 4}),
		o.parcels(t, v4, n/4, &parcels{seed: 5, unchecked: true}),
	}
	for _, p := range flows {
		p.finish(t)
		all += p.n
	}
	return flows, all
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func sockopt(c *net.UDPConn, level, opt, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, opt, value) })
	return errors.Join(err, set)
}

// send hands a run down at once, where the kernel takes it so: with checksums.
func (p *parcels) send() error {
	s, buf := p.shape(), make([]byte, largest+8)
	for sent := 0; sent < p.n; {
		run, size := s.run()
		if p.unchecked {
			run = 1
		}
		run = min(run, p.n-sent, 65000/size)
		var all, oob []byte
		for range run {
			p.room <- struct{}{}
			all = append(all, s.next(buf)...)
		}
		if run > 1 {
			oob = binary.NativeEndian.AppendUint16(make([]byte, unix.CmsgLen(0), unix.CmsgSpace(2)), uint16(size))[:unix.CmsgSpace(2)]
			binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2)))
			binary.NativeEndian.PutUint32(oob[8:], unix.SOL_UDP)
			binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
		}
		if _, _, err := p.from.WriteMsgUDP(all, oob, nil); err != nil {
			return fmt.Errorf("send %d datagrams of %d bytes: %w", run, size, err)
		}
		sent += run
	}
	return nil
}

func (p *parcels) receive() error {
	s, want := p.shape(), make([]byte, largest+8)
	buf, oob := make([]byte, 1<<16), make([]byte, 64)
	for got := 0; got < p.n; {
		if err := p.to.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, oobn, _, _, err := p.to.ReadMsgUDP(buf, oob)
		if err != nil {
			return fmt.Errorf("after %d datagrams: %w", got, err)
		}
		size, err := segment(oob[:oobn], n)
		if err != nil {
			return err
		}
		if size < n && !p.whole {
			return fmt.Errorf("a super-packet of %d bytes for a socket that has not asked for it", n)
		}
		for rest := buf[:n]; len(rest) > 0; got++ {
			one := rest[:min(size, len(rest))]
			rest = rest[len(one):]
			if is := s.next(want); !bytes.Equal(one, is) {
				return fmt.Errorf("datagram %d, %d bytes, is not as it was sent, %d bytes: it is %s; it came at %d of %d",
					got, len(one), len(is), p.which(got, one), n-len(rest)-len(one), n)
			}
			if size < n {
				p.inOne++
			}
			<-p.room
		}
	}
	return nil
}

// which tells what a datagram is that came where another was due.
func (p *parcels) which(due int, b []byte) string {
	s, buf := p.shape(), make([]byte, largest+8)
	what := "none that was sent"
	for i := range p.n {
		is := s.next(buf)
		if bytes.Equal(is, b) {
			return fmt.Sprintf("datagram %d", i)
		}
		if i != due || len(is) != len(b) {
			continue
		}
		at := 0
		for b[at] == is[at] {
			at++
		}
		what = fmt.Sprintf("this one, and another from its byte %d on", at)
	}
	return what
}

// segment is the size of the datagrams that came as one.
func segment(oob []byte, n int) (int, error) {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, err
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_UDP && m.Header.Type == unix.UDP_GRO && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data)), nil
		}
	}
	return max(n, 1), nil
}

// finish waits for all of them.
func (p *parcels) finish(t *testing.T) {
	t.Helper()
	for range 2 {
		if err := <-p.ended; err != nil {
			t.Error(err)
			p.to.Close()
			p.from.Close()
			return
		}
	}
}
