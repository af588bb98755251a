// SPDX-License-Identifier: Apache-2.0

package express

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
)

const (
	port    = 7007
	payload = 64
	segs    = 16 // datagrams of a call, as an ordinary sender has them cut (UDP_SEGMENT)
	// appCore is where applications run; the NIC is polled on the other one.
	appCore = 1
)

// talk is one UDP flow from an ordinary sender in a pod to an application in another pod that reads
// every datagram by a system call of its own. Both run on one core.
type talk struct {
	read, late atomic.Uint64
	stop       atomic.Bool
	ends       []chan error
	fds        []int
}

// startTalk sends without a pause until the test ends.
func startTalk(t *testing.T, b *bed.Bed) *talk {
	t.Helper()
	k := &talk{}
	from, to := b.Sender().Pods[0], b.Receiver().Pods[0]
	tx, rx := udp(t, from.NS, from.IP4), udp(t, to.NS, to.IP4)
	k.fds = []int{tx, rx}
	err := errors.Join(
		unix.Connect(tx, &unix.SockaddrInet4{Port: port, Addr: to.IP4.As4()}),
		unix.SetsockoptInt(tx, unix.IPPROTO_UDP, unix.UDP_SEGMENT, payload),
		unix.SetsockoptTimeval(rx, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.SetsockoptTimeval(tx, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100_000}),
	)
	if err != nil {
		t.Fatal(err)
	}
	k.on(appCore, func() error { return k.receive(rx) })
	k.on(appCore, func() error { return k.send(tx) })
	t.Cleanup(func() { k.end(t) })
	return k
}

func udp(t *testing.T, ns *netns.Handle, at netip.Addr) (fd int) {
	t.Helper()
	err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: at.As4()})
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// on runs a function on a thread of its own that stays on one core.
func (k *talk) on(core int, fn func() error) {
	done := make(chan error, 1)
	k.ends = append(k.ends, done)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		var set unix.CPUSet
		set.Set(core)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
}

func (k *talk) send(fd int) error {
	buf := make([]byte, segs*payload)
	for seq := uint64(1); !k.stop.Load(); {
		for i := range segs {
			binary.NativeEndian.PutUint64(buf[i*payload:], seq+uint64(i))
		}
		switch _, err := unix.Write(fd, buf); err {
		case nil:
			seq += segs
		case unix.EAGAIN, unix.ENOBUFS, unix.EINTR, unix.ECONNREFUSED:
		default:
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

func (k *talk) receive(fd int) error {
	buf := make([]byte, 2*payload)
	var last uint64
	for !k.stop.Load() {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("receive: %w", err)
		case n != payload:
			return fmt.Errorf("received %d bytes, sent were %d", n, payload)
		}
		seq := binary.NativeEndian.Uint64(buf)
		if seq < last {
			k.late.Add(1)
		}
		last = max(last, seq)
		k.read.Add(1)
	}
	return nil
}

func (k *talk) end(t *testing.T) {
	if k.stop.Swap(true) {
		return
	}
	for _, done := range k.ends {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, fd := range k.fds {
		unix.Close(fd)
	}
}
