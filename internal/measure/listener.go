// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// listener bounds how many connections there are at once and how fast they come. Those beyond are not
// accepted: they take no descriptor, memory or time of this process.
type listener struct {
	*net.TCPListener
	slots chan struct{}
	next  time.Time       // when another one may be accepted, were there no burst
	ended <-chan struct{} // closed when none is accepted any more
}

func newListener(ctx context.Context, l *net.TCPListener) (*listener, error) {
	// Go asks for the longest queue that the kernel allows, some thousands.
	raw, err := l.SyscallConn()
	if err == nil {
		var lerr error
		err = raw.Control(func(fd uintptr) { lerr = unix.Listen(int(fd), maxConns) })
		err = errors.Join(err, lerr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bound the queue of connections: %w", err), l.Close())
	}
	return &listener{TCPListener: l, slots: make(chan struct{}, maxConns), ended: ctx.Done()}, nil
}

// close is for one that is not served after all, or was none.
func (l *listener) close() error {
	if l == nil {
		return nil
	}
	return l.Close()
}

// Accept is called by one goroutine.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ended:
		return nil, net.ErrClosed
	}
	if wait := time.Until(l.next.Add(-maxConns * acceptPause)); wait > 0 {
		select {
		case <-time.After(wait):
		case <-l.ended:
			return nil, net.ErrClosed
		}
	}
	c, err := l.TCPListener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	if now := time.Now(); l.next.Before(now) {
		l.next = now
	}
	l.next = l.next.Add(acceptPause)
	return &conn{Conn: c, leave: sync.OnceFunc(func() { <-l.slots })}, nil
}

// conn gives its slot back.
type conn struct {
	net.Conn
	leave func()
}

func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
