// SPDX-License-Identifier: Apache-2.0

package numbered

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
)

type reader struct {
	port int

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

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
	_ [4]byte
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
	var (
		buf      [batch][maxSize]byte
		from     [batch]unix.RawSockaddrInet4
		vecs     [batch]unix.Iovec
		messages [batch]message
	)
	for i := range messages {
		vecs[i].Base = &buf[i][0]
		vecs[i].SetLen(maxSize)
		messages[i].Iov, messages[i].Iovlen = &vecs[i], 1
		messages[i].Name = (*byte)(unsafe.Pointer(&from[i]))
	}
	for {
		for i := range messages {
			messages[i].Namelen = unix.SizeofSockaddrInet4
		}
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages)), batch, unix.MSG_WAITFORONE, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return fmt.Errorf("read: %w", errno)
		}
		r.mu.Lock()
		for i := range messages[:n] {
			p := buf[i][:messages[i].n]
			flow, number, _, err := datagram.Parse(p)
			switch {
			case err != nil || flow >= maxFlows:
				r.counts.Corrupt++
			case number == greeting:
				// That it does not arrive is for the other side to notice.
				_ = unix.Sendto(fd, p, 0, address(&from[i]))
			default:
				r.flows[flow].take(number, &r.counts)
			}
		}
		r.mu.Unlock()
	}
}

func address(raw *unix.RawSockaddrInet4) unix.Sockaddr {
	port := (*[2]byte)(unsafe.Pointer(&raw.Port)) // network byte order
	return &unix.SockaddrInet4{Port: int(port[0])<<8 | int(port[1]), Addr: raw.Addr}
}
