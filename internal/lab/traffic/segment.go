// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"golang.org/x/sys/unix"
)

// SegmentConfig says what a segmentation generator sends.
type SegmentConfig struct {
	Flows []Flow // all through the tunnel, or all outside of it
	Size  int    // UDP payload in bytes, without fragments
	Rate  float64
	// Burst is how many datagrams of a flow are sent at once; 0: as many as the kernel takes, and come in
	// 1 ms. Of a burst in which the wire stops, the first frame can come after the last.
	Burst int
	Core  int
}

// Segments is a paced generator that leaves its core to others between two
// bursts: a UDP socket on the sending host whose payload is the tunnel header
// and the inner frame, cut by the kernel (UDP_SEGMENT).
type Segments struct {
	thread *thread
	stop   atomic.Bool
	sent   atomic.Uint64
	slept  atomic.Int64
}

// Shared by all of a burst: the kernel takes at most 64 segments and 64 KB.
const (
	maxBurst      = 32
	maxBurstBytes = 60000
)

// StartSegments starts to send from the sending host of a bed.
func StartSegments(b *bed.Bed, cfg SegmentConfig) (*Segments, error) {
	if len(cfg.Flows) == 0 || cfg.Rate <= 0 {
		return nil, errors.New("start paced generator: no flows, or no rate")
	}
	var streams []*stream
	for i := range cfg.Flows {
		s, err := newStream(b, &cfg.Flows[i], cfg.Size)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start paced generator: %w", err), closeStreams(streams))
		}
		if cfg.Burst > 0 {
			s.burst = min(s.burst, cfg.Burst)
		}
		streams = append(streams, s)
	}
	g := &Segments{}
	var err error
	g.thread, err = startThread(b.Sender().NS, cfg.Core, normal, func() error {
		return errors.Join(g.pace(streams, cfg.Rate), closeStreams(streams))
	})
	if err != nil {
		return nil, errors.Join(err, closeStreams(streams))
	}
	return g, nil
}

func closeStreams(streams []*stream) error {
	return forAll(streams, func(s *stream) error { return unix.Close(s.fd) })
}

// stream is one flow's socket and its burst of segments.
type stream struct {
	fd    int
	flow  uint16
	seg   int // bytes in a segment
	probe int // where in it the lab's header is
	end   int
	buf   []byte
	burst int
	seq   uint64
}

func newStream(b *bed.Bed, f *Flow, size int) (*stream, error) {
	fr, size, err := buildFrame(f, size)
	if err != nil {
		return nil, err
	}
	if fr.frags > 1 {
		return nil, fmt.Errorf("datagrams of %d bytes would be fragments", size)
	}
	skip := fr.hdrLen // a plain flow's payload starts behind its own headers
	from, to := netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort)
	if o := f.Outer; o != nil {
		skip = ethLen + ipv4Len + udpLen
		from, to = netip.AddrPortFrom(o.Src, f.OuterPort), netip.AddrPortFrom(o.Dst, bed.TunnelPort)
	}
	payload := fr.bytes[skip:]
	s := &stream{flow: uint16(f.ID), seg: len(payload), probe: fr.hdrLen - skip, burst: min(maxBurst, maxBurstBytes/len(payload))}
	s.end = s.probe + min(size, datagram.StampedSize)
	for range s.burst {
		s.buf = append(s.buf, payload...)
	}
	err = b.Sender().NS.Do(func() error {
		if s.fd, err = Bind(unix.IPPROTO_UDP, from); err != nil {
			return err
		}
		_, sa := Sockaddr(to)
		return errors.Join(
			unix.Connect(s.fd, sa),
			unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1), // or UDP tells a drop in the queue of the device as sent
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20),
			unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, s.seg))
	})
	return s, err
}

func (s *stream) send(n int) error {
	now := monotonic()
	for i := range n {
		p := s.buf[i*s.seg:]
		datagram.Put(p[s.probe:s.end], s.flow, s.seq, now)
		s.seq++
	}
	_, err := unix.Write(s.fd, s.buf[:n*s.seg])
	return err
}

func (g *Segments) pace(streams []*stream, rate float64) error {
	start := monotonic()
	sent := 0.0
	for turn := 0; !g.stop.Load(); turn++ {
		s := streams[turn%len(streams)]
		due := start + uint64(sent/rate*1e9)
		now := monotonic()
		if due > now {
			sleepUntil(due)
			woke := monotonic()
			g.slept.Add(int64(woke - now))
			now = woke
		}
		// What could not be sent in time is not sent later in one heap.
		if now-due > uint64(20*time.Millisecond) {
			start = now - uint64(sent/rate*1e9)
		}
		// Low rates: a millisecond's worth at a time.
		n := min(s.burst, max(1, int(rate/1000)))
		switch err := s.send(n); {
		case err == nil:
			g.sent.Add(uint64(n))
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		default:
			return fmt.Errorf("send paced burst: %w", err)
		}
		sent += float64(n)
	}
	return nil
}

// Sent is the number of datagrams so far.
func (g *Segments) Sent() uint64 { return g.sent.Load() }

// Slept is the time that the generator did not need.
func (g *Segments) Slept() time.Duration { return time.Duration(g.slept.Load()) }

// Stop ends the generator.
func (g *Segments) Stop() error {
	g.stop.Store(true)
	return g.thread.wait()
}
