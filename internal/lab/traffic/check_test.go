// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/snmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/datagram"
)

// loopback is a namespace in which 127.0.0.1 works.
func loopback(t *testing.T) *netns.Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: creates a network namespace and loads BPF programs")
	}
	at, err := newLoopback()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { at.NS.Close() })
	return at.NS
}

// sender sends hand-made datagrams to a checker. On loopback a datagram has
// passed the checker when the call that sent it returns.
func sender(t *testing.T, ns *netns.Handle, to netip.AddrPort) func([]byte) {
	t.Helper()
	s := -1
	if err := ns.Do(func() (err error) {
		if s, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Connect(s, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s) })
	return func(p []byte) {
		t.Helper()
		if _, err := unix.Write(s, p); err != nil {
			t.Fatal(err)
		}
	}
}

func checked(size int, flow uint16, seq uint64) []byte {
	p := make([]byte, size)
	datagram.Put(p, flow, seq, 12345)
	return p
}

func newChecker(t *testing.T, latencyFlow int) (*Checker, func([]byte)) {
	t.Helper()
	ns := loopback(t)
	c, err := NewChecker(latencyFlow)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	at := netip.MustParseAddrPort("127.0.0.1:9000")
	if err := c.Listen(ns, at); err != nil {
		t.Fatal(err)
	}
	return c, sender(t, ns, at)
}

func TestCheckerTellsWhatBecameOfAFlow(t *testing.T) {
	run := func(from, to uint64) (s []uint64) {
		for i := from; i < to; i++ {
			s = append(s, i)
		}
		return s
	}
	for _, tc := range []struct {
		name string
		seqs []uint64
		want Verdict
	}{
		{"in order", run(0, 100), Verdict{Received: 100}},
		{"one twice", []uint64{0, 1, 1, 2}, Verdict{Received: 3, Duplicated: 1}},
		{"one twice, the second time late", []uint64{0, 1, 2, 3, 1}, Verdict{Received: 4, Duplicated: 1}},
		{"two swapped", []uint64{0, 2, 1, 3}, Verdict{Received: 4, Reordered: 1}},
		{"one far behind", append(run(1, 50), 0), Verdict{Received: 50, Reordered: 1}},
		{"a block that was overtaken", append(append(run(0, 10), run(20, 30)...), run(10, 20)...), Verdict{Received: 30, Reordered: 10}},
		{"one lost", []uint64{0, 1, 3}, Verdict{Received: 3, Missing: 1}},
		{"the first lost", []uint64{2, 3}, Verdict{Received: 2, Missing: 2}},
		{"late and lost", []uint64{0, 5, 3}, Verdict{Received: 3, Reordered: 1, Missing: 3}},
		{"a jump beyond the window", []uint64{0, 200000, 200001}, Verdict{Received: 3, Missing: 199999}},
		{"late within the window", []uint64{0, 60000, 1}, Verdict{Received: 3, Reordered: 1, Missing: 59998}},
		{"too far behind to tell", []uint64{65536, 0}, Verdict{Received: 2, Reordered: 1, Stale: 1, Missing: 65535}},
		{"same place in the window, another round", []uint64{7, 7 + 65536, 7 + 2*65536}, Verdict{Received: 3, Missing: 7 + 2*65536 + 1 - 3}},
		{"numbers of more than 32 bits", []uint64{1 << 33, 1<<33 + 2, 1<<33 + 1, 1<<33 + 1},
			Verdict{Received: 3, Reordered: 1, Duplicated: 1, Missing: 1<<33 + 3 - 3}},
	} {
		for _, size := range []int{datagram.MinSize, datagram.StampedSize, 100} {
			t.Run(tc.name, func(t *testing.T) {
				c, send := newChecker(t, -1)
				for _, seq := range tc.seqs {
					send(checked(size, 5, seq))
				}
				got, err := c.Flow(5)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%d-byte datagrams (-want +got):\n%s", size, diff)
				}
			})
		}
	}
}

func TestCheckerKeepsFlowsApart(t *testing.T) {
	c, send := newChecker(t, -1)
	for seq := range uint64(10) {
		send(checked(64, 0, seq))
		send(checked(64, MaxFlows-1, 9-seq))
	}
	a, err := c.Flow(0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Flow(MaxFlows - 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Verdict{{Received: 10}, {Received: 10, Reordered: 9}}, []Verdict{a, b}); diff != "" {
		t.Error(diff)
	}
}

func TestCheckerRefusesWhatTheLabDidNotSend(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"sequence number": func(p []byte) []byte { p[8] ^= 1; return p },
		"time":            func(p []byte) []byte { p[20] ^= 1; return p },
		"magic":           func(p []byte) []byte { p[0] ^= 1; return p },
		"flow number":     func(p []byte) []byte { p[5] = 0xff; return p },
		"cut short":       func(p []byte) []byte { return p[:datagram.MinSize+1] },
		"empty":           func(p []byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c, send := newChecker(t, -1)
			send(checked(64, 1, 0))
			send(spoil(checked(64, 1, 1)))
			if v, err := c.Total(MaxFlows); err == nil {
				t.Errorf("no error, and a verdict of %+v", v)
			}
		})
	}
}

func TestTheKernelCountsWhatTheCheckerRefuses(t *testing.T) {
	ns := loopback(t)
	c, err := NewChecker(-1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := netip.MustParseAddrPort("127.0.0.1:9000")
	if err := c.Listen(ns, at); err != nil {
		t.Fatal(err)
	}
	send := sender(t, ns, at)
	before, err := snmp.Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(1000) {
		send(checked(64, 0, seq))
	}
	after, err := snmp.Read(ns)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.UDPTaken() - before.UDPTaken(); got != 1000 {
		t.Errorf("the UDP layer took %d datagrams of 1000", got)
	}
}

func TestProbeMeasuresEveryDatagram(t *testing.T) {
	ns := loopback(t)
	from, to := Endpoint{ns, netip.MustParseAddr("127.0.0.2")}, Endpoint{ns, netip.MustParseAddr("127.0.0.1")}
	p, err := StartProbe(from, to, time.Millisecond, 0, 0, 100_000, false)
	if err != nil {
		t.Fatal(err)
	}
	send := func(n uint64) {
		for n += p.sent.Load(); p.sent.Load() < n; {
			time.Sleep(5 * time.Millisecond)
		}
	}
	send(20)
	p.Begin()
	send(50)
	l, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if l.Received != l.Sent {
		t.Errorf("%d of %d arrived", l.Received, l.Sent)
	}
	// One may have been on its way to be sent.
	if n := len(p.counted()); n < 49 || int(l.Sent)-n < 20 {
		t.Errorf("the figures are of %d of %d", n, l.Sent)
	}
	if l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P999 {
		t.Errorf("percentiles out of order: %+v", l)
	}
}
