// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Dialogue is what one client asks a server, and how it knows an answer.
type Dialogue interface {
	// ask returns the request of a slot. It is good until the next call.
	ask(slot int) []byte
	// answered returns the length of the answer to what was asked last, if data
	// begins with all of it; else 0. What cannot become the answer is an error.
	answered(data []byte) (int, error)
}

// ClientsConfig says how many clients ask, and how often.
type ClientsConfig struct {
	Count  int
	Every  time.Duration // between two requests of one client
	Skip   time.Duration // the beginning, which does not count
	Length time.Duration // what comes after it
	Core   int
}

// Clients ask a server at a constant rate, each on a connection of its own. Times
// count from when a request was due, whatever kept it from being sent.
type Clients struct {
	stop     atomic.Bool
	conns    []*conn
	threads  []*thread
	accounts []account
	procs    int
}

const (
	// headStart is what all clients get to be ready.
	headStart = 20 * time.Millisecond
	// lateAnswers are waited for so long after the end.
	lateAnswers = time.Second
)

// StartClients connects clients and lets them ask, from threads that run when
// they are due.
func StartClients(from Endpoint, to netip.AddrPort, talk func(client int) Dialogue, cfg ClientsConfig) (*Clients, error) {
	if cfg.Count < 1 || cfg.Every <= 0 {
		return nil, errors.New("start clients: no clients, or no rate")
	}
	cs := &Clients{accounts: make([]account, cfg.Count), procs: runtime.GOMAXPROCS(0)}
	for range cfg.Count {
		c, err := dial(from, to)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start clients: %w", err), cs.end(true))
		}
		cs.conns = append(cs.conns, c)
	}
	// A thread that comes back from the kernel needs one of the runtime's places
	// to run on. With fewer places than threads it may have to wait for another.
	runtime.GOMAXPROCS(cs.procs + cfg.Count)
	first := monotonic() + uint64(headStart)
	for i, c := range cs.conns {
		p := pace{every: uint64(cfg.Every), slots: int((cfg.Skip + cfg.Length) / cfg.Every), skip: int(cfg.Skip / cfg.Every),
			patience: uint64(lateAnswers)}
		// Side by side, not all at once.
		p.first = first + p.every*uint64(i)/uint64(cfg.Count)
		c.stop, c.dialogue = &cs.stop, talk(i)
		t, err := startThread(from.NS, cfg.Core, urgent, func() error {
			a, err := p.keep(monotonicClock{}, &cs.stop, func(slot int) (bool, error) { return c.exchange(slot, p.until()) })
			cs.accounts[i] = a
			return err
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start clients: %w", err), cs.end(true))
		}
		cs.threads = append(cs.threads, t)
	}
	return cs, nil
}

// Wait returns what all clients have seen, once they are through. Sent is the
// number of slots, Received that of those with an answer.
func (cs *Clients) Wait() (Latencies, error) {
	if err := cs.end(false); err != nil {
		return Latencies{}, err
	}
	var took []time.Duration
	open, missed := 0, 0
	for _, a := range cs.accounts {
		took = append(took, a.took...)
		open += a.open
		missed += a.missed
	}
	if open == len(took) {
		return Latencies{}, fmt.Errorf("no request of %d was answered", len(took))
	}
	l := summary(took)
	l.Sent, l.Received, l.Missed = uint64(len(took)), uint64(len(took)-open), uint64(missed)
	return l, nil
}

// Stop ends the clients early.
func (cs *Clients) Stop() error { return cs.end(true) }

func (cs *Clients) end(early bool) error {
	if early {
		cs.stop.Store(true)
	}
	err := forAll(cs.threads, func(t *thread) error {
		err := t.wait()
		if err != nil {
			cs.stop.Store(true) // what one cannot, the others need not
		}
		return err
	})
	runtime.GOMAXPROCS(cs.procs)
	return errors.Join(err, forAll(cs.conns, func(c *conn) error { return unix.Close(c.fd) }))
}

// conn is a client's connection.
type conn struct {
	fd       int
	buf      []byte
	stop     *atomic.Bool
	dialogue Dialogue
}

// maxAnswer is more than any answer of the lab's servers.
const maxAnswer = 16 << 10

func dial(from Endpoint, to netip.AddrPort) (*conn, error) {
	c := &conn{buf: make([]byte, maxAnswer)}
	err := from.NS.Do(func() (err error) {
		family, sa := Sockaddr(to)
		if c.fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		send := unix.NsecToTimeval(int64(10 * time.Second))
		err = errors.Join(
			unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
			unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &send),
			wakeReader(c.fd))
		if err == nil {
			err = unix.Connect(c.fd, sa)
		}
		if err != nil {
			err = errors.Join(err, unix.Close(c.fd))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return c, nil
}

// exchange asks, and waits for the answer until a time.
func (c *conn) exchange(slot int, until uint64) (bool, error) {
	if err := c.write(c.dialogue.ask(slot)); err != nil {
		return false, err
	}
	for have := 0; ; {
		n, err := unix.Read(c.fd, c.buf[have:])
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			if c.stop.Load() || monotonic() >= until {
				return false, nil
			}
			continue
		case err != nil:
			return false, fmt.Errorf("read answer: %w", err)
		case n == 0:
			return false, errors.New("read answer: the server closed the connection")
		}
		have += n
		length, err := c.dialogue.answered(c.buf[:have])
		switch {
		case err != nil:
			return false, err
		case length > 0 && have > length:
			return false, fmt.Errorf("read answer: %d bytes more than the answer", have-length)
		case length > 0:
			return true, nil
		case have == len(c.buf):
			return false, fmt.Errorf("read answer: no end of it in %d bytes", have)
		}
	}
}

func (c *conn) write(data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(c.fd, data)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("send request: %w", err)
		}
		data = data[max(n, 0):]
	}
	return nil
}

// firstLine quotes how an answer begins that should have been another.
func firstLine(data []byte) string {
	data = data[:min(len(data), 60)]
	if end := bytes.IndexAny(data, "\r\n"); end >= 0 {
		data = data[:end]
	}
	return fmt.Sprintf("%q", data)
}
