// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/mmsg"
	"github.com/overlane/overlane/internal/netns"
)

// Reader is a program behind a checked socket, as an application is: it reads each datagram, by the
// batch, and looks at what is in it.
type Reader struct {
	thread *thread
	stop   atomic.Bool
	taken  atomic.Uint64
	broken atomic.Uint64
}

// Read is Listen with a reader behind the socket, on a core: from the first one on nothing is refused
// that the checker has seen. The socket's room is the machine's default. Readers have to be stopped
// before the checker is closed.
func (c *Checker) Read(ns *netns.Handle, addr netip.AddrPort, core int) (*Reader, error) {
	r := &Reader{}
	s, err := c.bind(ns, addr)
	if err == nil {
		err = c.objs.Keep.Set(uint32(math.MaxUint32))
	}
	if err == nil {
		err = wakeReader(s)
	}
	if err == nil {
		r.thread, err = startThread(ns, core, normal, func() error { return r.run(s) })
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", addr, err)
	}
	return r, nil
}

func (r *Reader) run(s int) error {
	b := mmsg.New(1<<16, false)
	for !r.stop.Load() {
		n, err := b.Read(s)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("read datagrams: %w", err)
		}
		for i := range n {
			if _, _, _, err := datagram.Parse(b.Message(i)); err != nil {
				r.broken.Add(1)
			}
		}
		r.taken.Add(uint64(n))
	}
	return nil
}

// Taken is how many datagrams the reader has read.
func (r *Reader) Taken() uint64 { return r.taken.Load() }

// Stop ends the reader. Datagrams that are not the lab's, or were changed, are an error.
func (r *Reader) Stop() error {
	r.stop.Store(true)
	err := r.thread.wait()
	if n := r.broken.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("the reader got %d datagrams that the lab did not send", n))
	}
	return err
}
