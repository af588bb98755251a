// SPDX-License-Identifier: Apache-2.0

package numbered

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/mmsg"
)

type reader struct {
	port int
	// gro: it takes datagrams in a row as one message (UDP_GRO).
	gro bool

	mu     sync.Mutex
	counts Counters
	flows  [maxFlows]track
}

// track follows the numbers of one flow: the next one above all that came, and which of the
// window below it did.
type track struct {
	next uint64
	seen [window / 64]uint64
}

const window = 1 << 16

func (t *track) bit(number uint64) (*uint64, uint64) {
	return &t.seen[number%window/64], 1 << (number % 64)
}

// take notes a number in the reader's counters.
func (t *track) take(number uint64, c *Counters) {
	word, bit := t.bit(number)
	switch {
	case number >= t.next:
		if number-t.next >= window {
			clear(t.seen[:])
		} else {
			for skipped := t.next; skipped < number; skipped++ {
				w, b := t.bit(skipped)
				*w &^= b
			}
		}
		c.Missing += number - t.next
		*word |= bit
		t.next = number + 1
		c.Received++
	case t.next-number > window:
		c.Stale++
	case *word&bit != 0:
		c.Duplicated++
	default:
		*word |= bit
		c.Received++
		c.Late++
		c.Missing--
	}
}

func (r *reader) run(file string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(
		// As much as net.core.rmem_max allows.
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20),
		unix.Bind(fd, &unix.SockaddrInet4{Port: r.port})); err != nil {
		return fmt.Errorf("listen at port %d: %w", r.port, err)
	}
	failed := make(chan error, 1)
	go func() { failed <- r.read(fd) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case err := <-failed:
			return err
		}
		lost, err := overflow()
		if err != nil {
			return err
		}
		r.mu.Lock()
		c := r.counts
		r.mu.Unlock()
		c.Overflow = lost
		if err := c.save(file); err != nil {
			return err
		}
	}
}

func (r *reader) read(fd int) error {
	room := maxSize
	if r.gro {
		room = 1 << 16
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			return fmt.Errorf("UDP_GRO: %w", err)
		}
	}
	b := mmsg.New(room, r.gro)
	for {
		n, err := b.Read(fd)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		r.mu.Lock()
		for i := range n {
			rest := b.Message(i)
			each := cmp.Or(segment(b.Control(i)), len(rest))
			for len(rest) > 0 {
				p := rest[:min(each, len(rest))]
				rest = rest[len(p):]
				r.one(fd, p, b.From(i))
			}
		}
		r.mu.Unlock()
	}
}

// one takes a datagram.
func (r *reader) one(fd int, p []byte, from *unix.RawSockaddrInet4) {
	flow, number, _, err := datagram.Parse(p)
	switch {
	case err != nil || flow >= maxFlows:
		r.counts.Corrupt++
	case number == greeting:
		// That it does not arrive is for the other side to notice.
		_ = unix.Sendto(fd, p, 0, address(from))
	default:
		r.flows[flow].take(number, &r.counts)
	}
}

// segment is the size of each datagram but the last of a message, by its control message (UDP_GRO);
// 0: it is one datagram.
func segment(control []byte) int {
	if len(control) < unix.CmsgLen(4) {
		return 0
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	if h.Level != unix.IPPROTO_UDP || h.Type != unix.UDP_GRO {
		return 0
	}
	return int(*(*int32)(unsafe.Pointer(&control[unix.CmsgLen(0)])))
}

func address(raw *unix.RawSockaddrInet4) unix.Sockaddr {
	port := (*[2]byte)(unsafe.Pointer(&raw.Port)) // network byte order
	return &unix.SockaddrInet4{Port: int(port[0])<<8 | int(port[1]), Addr: raw.Addr}
}
