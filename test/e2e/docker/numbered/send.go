// SPDX-License-Identifier: Apache-2.0

package numbered

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
)

type sender struct {
	to                       string
	flows, size, rate, burst int
}

type stream struct {
	fd   int
	next uint64
}

func (s *sender) run(file string) error {
	to, err := netip.ParseAddrPort(s.to)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	streams := make([]stream, s.flows)
	for i := range streams {
		if streams[i].fd, err = connect(to, s.size); err != nil {
			return fmt.Errorf("socket to %s: %w", to, err)
		}
	}
	if err := greet(streams[0].fd); err != nil {
		return fmt.Errorf("greet %s: %w", to, err)
	}
	var sent atomic.Uint64
	ended := make(chan error, 1)
	var over atomic.Bool
	go func() { ended <- s.send(streams, &sent, &over) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-stop:
			over.Store(true)
			err := errors.Join(<-ended, Counters{Sent: sent.Load(), Ended: true}.save(file))
			if err != nil {
				return err
			}
			select {} // with the program would go the container's network
		case err := <-ended:
			return err
		}
		if err := (Counters{Sent: sent.Load()}).save(file); err != nil {
			return err
		}
	}
}

func connect(to netip.AddrPort, size int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	return fd, errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}),
		unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size))
}

// greet returns when the reader has answered: the network between two containers is ready some
// time after them. For how long is the test's to bound.
func greet(fd int) error {
	const pause = 20 * time.Millisecond
	if err := setTimeout(fd, pause); err != nil {
		return err
	}
	p := make([]byte, datagram.MinSize)
	datagram.Put(p, 0, greeting, 0)
	answer := make([]byte, maxSize)
	for {
		// Whatever goes wrong, the next try may succeed.
		if _, err := unix.Write(fd, p); err != nil {
			time.Sleep(pause)
			continue
		}
		if n, err := unix.Read(fd, answer); err == nil && n == datagram.MinSize {
			return nil
		}
	}
}

// send sends bursts of the flows in turn.
func (s *sender) send(streams []stream, sent *atomic.Uint64, over *atomic.Bool) error {
	buf := make([]byte, s.burst*s.size)
	begin, n := time.Now(), 0
	for turn := 0; !over.Load(); turn++ {
		flow := turn % len(streams)
		st := &streams[flow]
		for i := range s.burst {
			datagram.PutFilled(buf[i*s.size:(i+1)*s.size], uint16(flow), st.next+uint64(i))
		}
		switch _, err := unix.Write(st.fd, buf); {
		case err == nil:
			st.next += uint64(s.burst)
			sent.Add(uint64(s.burst))
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNREFUSED):
			// Not sent: the same numbers are sent again.
		default:
			return fmt.Errorf("send: %w", err)
		}
		if s.rate == 0 {
			continue
		}
		n += s.burst
		due := begin.Add(time.Duration(n) * time.Second / time.Duration(s.rate))
		if late := time.Since(due); late > 20*time.Millisecond {
			begin = begin.Add(late) // what could not be sent in time is not sent in one heap
		} else if late < 0 {
			time.Sleep(-late)
		}
	}
	return nil
}
