// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"bytes"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
)

// Tap is a packet socket on a device.
type Tap struct {
	tb testing.TB
	fd int
	to [6]byte // whose frames it shows
}

// tapRoom is how many bytes of frames wait in a tap's socket, as the kernel counts them.
const tapRoom = 64 << 20

// NewTap opens one, which shows frames to one address.
func NewTap(tb testing.TB, ns *netns.Handle, dev string, to [6]byte) *Tap {
	tb.Helper()
	p := &Tap{tb: tb, fd: -1, to: to}
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		limit := unix.NsecToTimeval(int64(Patience))
		if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, tapRoom); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index})
	})
	tb.Cleanup(p.Close)
	if err != nil {
		tb.Fatalf("open a packet socket on %s: %v", dev, err)
	}
	return p
}

// Send sends frames.
func (p *Tap) Send(frames ...[]byte) {
	p.tb.Helper()
	for _, f := range frames {
		if _, err := unix.Write(p.fd, f); err != nil {
			p.tb.Fatalf("send %d bytes: %v", len(f), err)
		}
	}
}

// Until returns the frames before the mark.
func (p *Tap) Until(mark []byte) (frames [][]byte) {
	p.tb.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(p.fd, buf)
		switch f := slices.Clone(buf[:max(n, 0)]); {
		case err == unix.EINTR:
		case err != nil:
			p.tb.Fatalf("after %d frames: %v", len(frames), err)
		case bytes.Equal(f, mark):
			return frames
		case bytes.HasPrefix(f, p.to[:]):
			frames = append(frames, f)
		}
	}
}

// FD is the socket.
func (p *Tap) FD() int { return p.fd }

// Close closes it, which the end of the test does as well.
func (p *Tap) Close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
	p.fd = -1
}
