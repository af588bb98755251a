// SPDX-License-Identifier: Apache-2.0

// Package nics tries the program on the drivers of NICs. An emulated machine receives by the NIC,
// and judges inside. The far end of its overlay is here, in a namespace whose taps are the wire: it
// sends at full speed beside an emulator that needs a core for receiving alone, and nothing of it
// stands still when the machine's kernel does.
package nics

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// How the tunnel's address is on the machine's NICs.
type How string

const (
	Plain How = "plain"
	Bond  How = "bond" // of two
	VLAN  How = "VLAN" // over the one
)

// Both ends of the overlay: of the wire, of the pods and their ports.
var (
	FarWire  = netip.MustParseAddr("192.0.2.1")
	NearWire = netip.MustParseAddr("192.0.2.2")
	FarPod   = netip.MustParseAddr("10.244.0.1")
	NearPod  = netip.MustParseAddr("10.244.0.2")
)

const (
	FarPodMAC, NearPodMAC = "02:00:00:00:01:01", "02:00:00:00:01:02"
	FarMAC                = "02:00:00:00:00:01"
	NearMAC               = "52:54:00:00:00:02"

	VNI, TunnelPort, VLANID = 42, 4789, 100
	// Encapsulated is what a tunnel takes of the wire's MTU.
	Encapsulated = 50

	ControlPort = 7000 // at the far end, outside the overlay
	StreamPort  = 7001 // at both pods: a numbered stream, whose pauses count
	LoadPort    = 7003 // at the near pod
	UnreadPort  = 7004 // the same, where nothing is read
	TCPPort     = 7005 // the same, for connections
)

// The time between two datagrams of the streams to the machine and from it. What is sent while the
// link is away must not fill the NIC's ring: an emulated NIC forgets to look at it then.
const (
	PaceIn  = 4 * time.Millisecond
	PaceOut = 10 * time.Millisecond
)

// Load is what the far end sends beside its stream: of each flow Burst datagrams in a row.
type Load struct {
	Flows, Burst, Size int
	Every              time.Duration
	Port               uint16
	// TCP: over connections, which do not count datagrams.
	TCP bool
	// Ragged: each datagram is larger than the one before, up to Size, so that nothing can join
	// them.
	Ragged bool
}

// Ask is a request to the far end.
type Ask struct {
	// Load replaces what is sent beside the stream; nil changes nothing.
	Load []Load
}

// Answer is what the far end has seen, since it was asked last, of the stream that comes to it.
type Answer struct {
	Stream Count
	Err    string
}

// Count is what a receiver has seen since it was asked last.
type Count struct {
	Got, Lost, Late, Again uint64
	// Pause is the longest time without a datagram, up to now.
	Pause time.Duration
}

// head is what a datagram begins with: flow, number.
const head = 16

// number fills in the head of a datagram.
func number(b []byte, flow, n uint64) {
	binary.BigEndian.PutUint64(b, flow)
	binary.BigEndian.PutUint64(b[8:], n)
}

// Receiver counts what comes to a socket.
type Receiver struct {
	conn  *net.UDPConn
	ended chan error

	mu    sync.Mutex
	at    time.Time // of the last datagram
	flows map[uint64]*flow
	late  uint64
	again uint64
	pause time.Duration
}

type flow struct {
	high    uint64 // the largest number
	got     uint64
	wasHigh uint64 // when it was asked last
	wasGot  uint64
	lately  [64]uint64 // numbers that came, by their last six bits
}

// Receive counts what comes to a port of the calling thread's namespace.
func Receive(port uint16) (*Receiver, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
	if err != nil {
		return nil, err
	}
	if err := sockopt(conn, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r := &Receiver{conn: conn, ended: make(chan error, 1), flows: map[uint64]*flow{}}
	go func() { r.ended <- r.read() }()
	return r, nil
}

func sockopt(c *net.UDPConn, opt, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var e error
	err = raw.Control(func(fd uintptr) { e = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, value) })
	return errors.Join(err, e)
}

func (r *Receiver) read() error {
	buf := make([]byte, 1<<16)
	for {
		n, err := r.conn.Read(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if n < head {
			return fmt.Errorf("a datagram of %d bytes", n)
		}
		r.take(time.Now(), binary.BigEndian.Uint64(buf), binary.BigEndian.Uint64(buf[8:]))
	}
}

// take counts the datagram with number n, which begin with 1.
func (r *Receiver) take(now time.Time, id, n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() {
		r.pause = max(r.pause, now.Sub(r.at))
	}
	r.at = now
	f := r.flows[id]
	if f == nil {
		f = &flow{high: n - 1, wasHigh: n - 1}
		r.flows[id] = f
	}
	seen := &f.lately[n%uint64(len(f.lately))]
	switch {
	case *seen == n:
		r.again++
		return
	case n < f.high:
		r.late++
	}
	*seen, f.high = n, max(f.high, n)
	f.got++
}

// Got is how many datagrams have come in all.
func (r *Receiver) Got() (n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.flows {
		n += f.got
	}
	return n
}

// Cut is what has come since the last cut. A pause that lasts counts on both sides of it.
func (r *Receiver) Cut() (c Count) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Late, c.Again, c.Pause = r.late, r.again, r.pause
	if !r.at.IsZero() {
		c.Pause = max(c.Pause, time.Since(r.at))
	}
	for _, f := range r.flows {
		got := f.got - f.wasGot
		c.Got += got
		if sent := f.high - f.wasHigh; sent > got {
			c.Lost += sent - got
		}
		f.wasGot, f.wasHigh = f.got, f.high
	}
	r.late, r.again, r.pause = 0, 0, 0
	return c
}

func (r *Receiver) Close() error { return errors.Join(r.conn.Close(), <-r.ended) }

// outage is for how long a connection waits for its link at most.
const outage = 10 * time.Second

// Sender sends datagrams until it is closed.
type Sender struct {
	stop  chan struct{}
	ended chan error
	stall atomic.Int64
}

// Stall is the longest time since it was asked last in which the sender got nothing sent, though
// it was due, for what else its machine did.
func (s *Sender) Stall() time.Duration { return time.Duration(s.stall.Swap(0)) }

// senders counts them: each has flows of its own, which begin with 1.
var senders atomic.Uint32

// Send sends from the calling thread's namespace.
func Send(to netip.Addr, l Load) (*Sender, error) {
	network := "udp4"
	if l.TCP {
		network = "tcp4"
	}
	var conns []net.Conn
	for range l.Flows {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(to, l.Port).String(), outage)
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
		// An emulated NIC looks at a queue when it is told of something new there: what was queued
		// while its link was away must not keep the sender from sending more.
		if u, ok := c.(*net.UDPConn); ok {
			if err := sockopt(u, unix.SO_SNDBUFFORCE, 64<<20); err != nil {
				return nil, err
			}
		}
	}
	s := &Sender{stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() {
		// One that moves to another core overtakes itself in the queues of the NIC.
		runtime.LockOSThread() // and the thread ends with it
		var core unix.CPUSet
		core.Set(0)
		if err := unix.SchedSetaffinity(0, &core); err != nil {
			s.ended <- fmt.Errorf("pin the sender: %w", err)
			return
		}
		tick := time.NewTicker(l.Every)
		defer tick.Stop()
		var errs []error
		buf := make([]byte, max(l.Size, head))
		first := uint64(senders.Add(1)) << 32
		last := time.Now()
		for n := uint64(1); ; n += uint64(l.Burst) {
			select {
			case <-s.stop:
				for _, c := range conns {
					errs = append(errs, c.Close())
				}
				s.ended <- errors.Join(errs...)
				return
			case <-tick.C:
			}
			now := time.Now()
			if gap := int64(now.Sub(last)); gap > s.stall.Load() {
				s.stall.Store(gap)
			}
			last = now
			for i, c := range conns {
				for k := range l.Burst {
					number(buf, first+uint64(i), n+uint64(k))
					out := buf
					if l.Ragged {
						out = buf[:head+k*(len(buf)-head)/l.Burst]
					}
					// Where the link is down there is no path, and it comes back.
					_ = c.SetWriteDeadline(time.Now().Add(outage))
					_, _ = c.Write(out)
				}
			}
		}
	}()
	return s, nil
}

func (s *Sender) Close() error {
	close(s.stop)
	return <-s.ended
}

// Far is the far end as the machine sees it.
type Far struct {
	conn net.Conn
	enc  *json.Encoder
	dec  *json.Decoder
}

// Dial reaches it from the calling thread's namespace.
func Dial(patience time.Duration) (*Far, error) {
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(FarWire, ControlPort).String(), patience)
	if err != nil {
		return nil, err
	}
	return &Far{c, json.NewEncoder(c), json.NewDecoder(c)}, nil
}

// Ask has the far end do something, and returns what came to it since the last time.
func (f *Far) Ask(a Ask) (Count, error) {
	if err := f.enc.Encode(a); err != nil {
		return Count{}, err
	}
	var got Answer
	if err := f.dec.Decode(&got); err != nil {
		return Count{}, err
	}
	if got.Err != "" {
		return Count{}, errors.New(got.Err)
	}
	return got.Stream, nil
}

func (f *Far) Close() error { return f.conn.Close() }
