// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pour is a TCP connection from the first host's pod to the second's through which as much
// is sent as goes, until it is stopped, and each byte is looked at.
type pour struct {
	from  *net.TCPConn
	stop  chan struct{}
	ended chan error
	got   atomic.Uint64 // bytes
	pause atomic.Int64  // the longest that the receiver waited for more
}

func (o *overlay) pour(t *testing.T, ip func(*host) netip.Addr) *pour {
	t.Helper()
	return o.pourAtMost(t, ip, 0)
}

// pourAtMost is pour with so many bytes under way at a time, if not 0.
func (o *overlay) pourAtMost(t *testing.T, ip func(*host) netip.Addr, most int) *pour {
	t.Helper()
	p := &pour{stop: make(chan struct{}), ended: make(chan error, 2)}
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
	err = a.pod.Do(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err == nil {
			p.from = c.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.from.Close(); to.Close() })
	if most > 0 {
		if err := p.from.SetWriteBuffer(most / 2); err != nil { // the kernel doubles it
			t.Fatal(err)
		}
	}
	go func() { p.ended <- p.send() }()
	go func() { p.ended <- p.receive(to) }()
	return p
}

// send sends numbers.
func (p *pour) send() error {
	w := bufio.NewWriterSize(p.from, 16<<10)
	buf := make([]byte, 8)
	for n := uint64(0); ; n++ {
		select {
		case <-p.stop:
			return errors.Join(w.Flush(), p.from.CloseWrite())
		default:
		}
		binary.BigEndian.PutUint64(buf, n)
		if _, err := w.Write(buf); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
}

func (p *pour) receive(c net.Conn) error {
	r, buf := bufio.NewReaderSize(c, 64<<10), make([]byte, 8)
	for n := uint64(0); ; n++ {
		if r.Buffered() < len(buf) {
			begun := time.Now()
			if err := c.SetReadDeadline(begun.Add(patience)); err != nil {
				return err
			}
			_, err := io.ReadFull(r, buf)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("after %d bytes: %w", p.got.Load(), err)
			}
			if d := int64(time.Since(begun)); d > p.pause.Load() {
				p.pause.Store(d)
			}
		} else if _, err := io.ReadFull(r, buf); err != nil {
			return err
		}
		if got := binary.BigEndian.Uint64(buf); got != n {
			return fmt.Errorf("word %d is %#x", n, got)
		}
		p.got.Add(uint64(len(buf)))
	}
}

// reach waits until so many more bytes have come.
func (p *pour) reach(t *testing.T, more uint64) {
	t.Helper()
	want := p.got.Load() + more
	until(t, fmt.Sprintf("%d more bytes", more), func() bool { return p.got.Load() >= want })
}

// finish ends the connection, through which all must have come.
func (p *pour) finish(t *testing.T) {
	t.Helper()
	close(p.stop)
	for range 2 {
		if err := <-p.ended; err != nil {
			t.Error(err)
		}
	}
}

// abort ends a connection through which nothing comes any more.
func (p *pour) abort(t *testing.T) {
	t.Helper()
	close(p.stop)
	if err := p.from.SetLinger(0); err != nil {
		t.Error(err)
	}
	p.from.Close()
}

// hog keeps a core from everything but softirqs for a while.
func hog(t *testing.T, core int, d time.Duration) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- spin(core, d)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func spin(core int, d time.Duration) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("go to core %d: %w", core, err)
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("run in real time: %w", err)
	}
	for begun := time.Now(); time.Since(begun) < d; {
	}
	return nil
}
