// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/overlane/overlane/internal/lab/bpf"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/netns"
	"golang.org/x/sys/unix"
)

// Checker follows every flow at the socket layer of the receiving end: it sees
// each datagram when, and in the order in which, the socket layer takes it.
type Checker struct {
	objs    bpf.CheckObjects
	sockets []*os.File
	links   []link.Link
}

// Verdict is what became of one flow, or of several added up.
type Verdict struct {
	Received   uint64 // distinct datagrams
	Reordered  uint64 // of these, came after one that was sent later
	Duplicated uint64
	Stale      uint64 // too far behind to tell a duplicate from a late one
	Missing    uint64 // sent before the last that came, and did not come
}

// NewChecker loads a checker. latencyFlow, unless negative, is the flow whose
// time from sending to the socket layer is recorded.
func NewChecker(latencyFlow int) (*Checker, error) {
	spec, err := bpf.LoadCheck()
	if err != nil {
		return nil, fmt.Errorf("load checker: %w", err)
	}
	if latencyFlow >= 0 {
		if err := spec.Variables["latency_flow"].Set(uint16(latencyFlow)); err != nil {
			return nil, fmt.Errorf("load checker: %w", err)
		}
	}
	c := &Checker{}
	if err := spec.LoadAndAssign(&c.objs, nil); err != nil {
		return nil, fmt.Errorf("load checker: %w", err)
	}
	return c, nil
}

// Listen binds a UDP socket and checks what it gets. No thread reads it, and the
// checker refuses each datagram after it has seen it, so the kernel counts
// them as InErrors.
func (c *Checker) Listen(ns *netns.Handle, addr netip.AddrPort) error {
	s, err := c.bind(ns, addr)
	if err == nil {
		err = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", addr, err)
	}
	return nil
}

// bind opens a checked socket, which is closed with the checker.
func (c *Checker) bind(ns *netns.Handle, addr netip.AddrPort) (s int, err error) {
	err = ns.Do(func() error {
		if s, err = Bind(unix.IPPROTO_UDP, addr); err != nil {
			return err
		}
		c.sockets = append(c.sockets, os.NewFile(uintptr(s), "checker"))
		return c.Attach(s)
	})
	return s, err
}

// Attach checks what a UDP or UDP-Lite socket of the caller's gets, which gets nothing then.
func (c *Checker) Attach(s int) error {
	return unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, c.objs.Check.FD())
}

// CountArrivals counts the frames that reach a device, for generators with a
// window.
func (c *Checker) CountArrivals(ns *netns.Handle, ifindex int) error {
	return ns.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: c.objs.Arrive, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return fmt.Errorf("count arrivals: %w", err)
		}
		c.links = append(c.links, l)
		return nil
	})
}

// UnderWay is the count of frames sent and arrived, for generators with a window.
func (c *Checker) UnderWay() *ebpf.Map { return c.objs.UnderWay }

// Flow returns the verdict on one flow so far.
func (c *Checker) Flow(id int) (Verdict, error) {
	var f bpf.CheckFlowCheck
	if err := c.objs.Flows.Lookup(uint32(id), &f); err != nil {
		return Verdict{}, fmt.Errorf("read checker: flow %d: %w", id, err)
	}
	v := Verdict{Received: f.Received, Reordered: f.Late, Duplicated: f.Duplicated, Stale: f.Stale}
	if f.Next > f.Received {
		v.Missing = f.Next - f.Received
	}
	return v, nil
}

// Total adds up the flows 0 to n-1. Datagrams whose bytes were changed, and
// such as are not the lab's, are an error.
func (c *Checker) Total(n int) (Verdict, error) {
	var t Verdict
	for id := range n {
		v, err := c.Flow(id)
		if err != nil {
			return t, err
		}
		t.Received += v.Received
		t.Reordered += v.Reordered
		t.Duplicated += v.Duplicated
		t.Stale += v.Stale
		t.Missing += v.Missing
	}
	alien, corrupt, err := c.Alien()
	if err != nil {
		return t, err
	}
	if alien+corrupt > 0 {
		return t, fmt.Errorf("%d datagrams arrived with changed bytes, and %d that the lab did not send", corrupt, alien)
	}
	return t, nil
}

// Alien counts datagrams that have no header of the lab's, such as empty ones, and those with one that was changed.
func (c *Checker) Alien() (alien, corrupt uint64, err error) {
	if err := errors.Join(c.objs.Alien.Get(&alien), c.objs.Corrupt.Get(&corrupt)); err != nil {
		return 0, 0, fmt.Errorf("read checker: %w", err)
	}
	return alien, corrupt, nil
}

// Close ends the checker.
func (c *Checker) Close() error {
	return errors.Join(forAll(c.links, link.Link.Close), forAll(c.sockets, (*os.File).Close), c.objs.Close())
}

// CheckerCost returns what the checker costs for each datagram, in ns, so that
// it can be taken off CPU figures. Measured warm, so rather too little.
func CheckerCost() (ns float64, err error) {
	c, err := NewChecker(-1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	data := make([]byte, ethLen+udpLen+datagram.StampedSize)
	datagram.Put(data[ethLen+udpLen:], 0, 1, 1)
	_, perRun, err := c.objs.Check.Benchmark(data, 100000, nil)
	if err != nil {
		return 0, fmt.Errorf("measure checker: %w", err)
	}
	return float64(perRun.Nanoseconds()), nil
}
