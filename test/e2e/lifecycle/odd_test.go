// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/parser/packet"
)

// Where things are in a frame of the lab's tunnel, and in its inner frame.
const (
	ethLen   = 14
	ipAt     = ethLen
	outerUDP = ipAt + 20
	tunnelAt = outerUDP + 8 + 8
	markType = 0x88b6 // of frames that tell that what was sent before has come
)

// crate makes frames for the first pod.
type crate struct {
	b      *bed.Bed
	tunnel [6]byte // the tunnel's own address
}

// inner is a frame for the pod, with other layers behind its Ethernet header.
func (c *crate) inner(layers ...packet.Layer) []byte {
	from, to := c.b.Sender().Pods[0], c.b.Receiver().Pods[0]
	f := packet.Build(append([]packet.Layer{packet.Ethernet{}}, layers...)...)
	copy(f, to.MAC[:])
	copy(f[6:], from.MAC[:])
	return f
}

func (c *crate) ip(p packet.IPv4) packet.IPv4 {
	p.Src, p.Dst = c.b.Sender().Pods[0].IP4, c.b.Receiver().Pods[0].IP4
	return p
}

// plain is a datagram for the pod.
func (c *crate) plain(p packet.IPv4) []byte {
	return c.inner(c.ip(p), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(40))
}

// outer is a frame of the tunnel, as the wire carries it.
func (c *crate) outer(p packet.IPv4, inner []byte) []byte {
	return c.wire(c.outerIP(p), packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI}, packet.Raw(inner))
}

func (c *crate) outerIP(p packet.IPv4) packet.IPv4 {
	p.Src, p.Dst = c.b.Sender().IP, c.b.Receiver().IP
	return p
}

func (c *crate) wire(layers ...packet.Layer) []byte {
	from, to := c.b.Sender(), c.b.Receiver()
	f := packet.Build(append([]packet.Layer{packet.Ethernet{}}, layers...)...)
	copy(f, to.WireMAC[:])
	copy(f[6:], from.WireMAC[:])
	return f
}

// edited is a frame with other bytes at some place.
func edited(f []byte, at int, b ...byte) []byte {
	f = slices.Clone(f)
	copy(f[at:], b)
	return f
}

// ecn gives the IPv4 header at some place its ECN bits.
func ecn(f []byte, at int, bits byte) []byte {
	f = edited(f, at+1, bits)
	f[at+10], f[at+11] = 0, 0
	binary.BigEndian.PutUint16(f[at+10:], ^ones(f[at:at+20]))
	return f
}

// ones is the ones' complement sum of 16 bit words.
func ones(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// fragments cuts the payload of an IPv4 packet in two.
func fragments(p packet.IPv4, proto byte, payload []byte, build func(packet.IPv4, packet.Raw) []byte) [][]byte {
	cut := len(payload) / 2 / 8 * 8
	p.Proto, p.ID = proto, 77
	first, second := p, p
	first.More, second.Offset = true, cut
	return [][]byte{build(first, payload[:cut]), build(second, payload[cut:])}
}

// oddity is what is not plain.
type oddity struct {
	name   string
	frames [][]byte
	unfit  string // why status says that it took the full path; empty: its flow was not understood, or is no UDP, and nobody asked
	comes  int    // frames that come to the pod
}

func (c *crate) oddities() []oddity {
	const ect, ce, udp = 2, 3, 17
	from, to := c.b.Sender(), c.b.Receiver()
	one := func(f []byte) [][]byte { return [][]byte{f} }
	plain := c.outer(packet.IPv4{}, c.plain(packet.IPv4{}))
	datagram := func(f []byte) []byte { return f[20+ethLen:] } // what its IPv4 header carries
	// An outer checksum that is right, and one that is not.
	pseudo := append(slices.Clone(plain[ipAt+12:ipAt+20]), 0, udp, plain[outerUDP+4], plain[outerUDP+5])
	sum := ^ones(append(pseudo, plain[outerUDP:]...))
	return []oddity{
		{"inner fragments", fragments(c.ip(packet.IPv4{}), udp, datagram(c.plain(packet.IPv4{})), func(p packet.IPv4, r packet.Raw) []byte {
			return c.outer(packet.IPv4{}, c.inner(p, r))
		}), "inner-headers", 2},
		{"outer fragments", fragments(c.outerIP(packet.IPv4{}), udp, datagram(plain), func(p packet.IPv4, r packet.Raw) []byte { return c.wire(p, r) }), "", 1},
		{"outer CE, inner ECT", one(ecn(c.outer(packet.IPv4{}, ecn(c.plain(packet.IPv4{}), ethLen, ect)), ipAt, ce)), "outer-headers", 1},
		{"outer CE, inner not", one(ecn(plain, ipAt, ce)), "outer-headers", 0},
		{"outer options", one(c.outer(packet.IPv4{Options: 8}, c.plain(packet.IPv4{}))), "", 1},
		{"inner options", one(c.outer(packet.IPv4{}, c.plain(packet.IPv4{Options: 8}))), "inner-headers", 1},
		{"padding", one(append(slices.Clone(plain), 0, 0, 0, 0)), "outer-headers", 1},
		{"inner padding", one(c.outer(packet.IPv4{}, append(c.plain(packet.IPv4{}), 0, 0, 0, 0))), "inner-headers", 1},
		{"an inner tag", one(c.outer(packet.IPv4{}, c.inner(packet.VLAN{ID: 5}, c.ip(packet.IPv4{}), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(40)))), "inner-frame", 1},
		{"ARP", one(c.outer(packet.IPv4{}, c.inner(packet.ARP{}))), "", 1},
		{"no UDP", one(c.outer(packet.IPv4{}, c.inner(c.ip(packet.IPv4{Proto: 89}), packet.Bytes(40)))), "", 1},
		{"too long for the pod", one(c.outer(packet.IPv4{}, c.inner(c.ip(packet.IPv4{}), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(1100)))), "too-long", 0},
		{"from a group", one(edited(plain, tunnelAt+6, 1)), "inner-frame", 0},
		{"from the tunnel itself", one(edited(plain, tunnelAt+6, c.tunnel[:]...)), "inner-frame", 0},
		{"to all NICs", one(edited(plain, 0, 255, 255, 255, 255, 255, 255)), "nic-address", 1},
		{"to another NIC", one(edited(plain, 0, 2, 2, 2, 2, 2, 2)), "nic-address", 0},
		{"from here", one(c.wire(packet.IPv4{Src: to.IP, Dst: to.IP}, packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI}, packet.Raw(c.plain(packet.IPv4{})))), "outer-headers", 0},
		{"a wrong outer header checksum", one(edited(plain, ipAt+10, plain[ipAt+10]^1)), "outer-headers", 0},
		{"a wrong outer checksum", one(edited(plain, outerUDP+6, byte(sum>>8)^1, byte(sum))), "outer-checksum", 0},
		{"an outer checksum where there is no inner one", one(edited(plain, outerUDP+6, byte(sum>>8), byte(sum))), "outer-checksum", 1},
		{"another tunnel", one(c.wire(packet.IPv4{Src: from.IP, Dst: to.IP}, packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI + 1}, packet.Raw(c.plain(packet.IPv4{})))), "", 0},
	}
}

// tap is a packet socket on a device.
type tap struct {
	t  *testing.T
	fd int
	to [6]byte // whose frames it shows
}

func newTap(t *testing.T, ns *netns.Handle, dev string, to [6]byte) *tap {
	t.Helper()
	p := &tap{t: t, fd: -1, to: to}
	must(t, ns.Do(func() error {
		ifi, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		limit := unix.NsecToTimeval(int64(rig.Patience))
		if err := unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL<<8&0xff00
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index})
	}))
	t.Cleanup(func() { unix.Close(p.fd) })
	return p
}

func (p *tap) send(frames ...[]byte) {
	p.t.Helper()
	for _, f := range frames {
		if _, err := unix.Write(p.fd, f); err != nil {
			p.t.Fatalf("send %d bytes: %v", len(f), err)
		}
	}
}

// until returns the frames before the mark.
func (p *tap) until(mark []byte) (frames [][]byte) {
	p.t.Helper()
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(p.fd, buf)
		switch f := slices.Clone(buf[:max(n, 0)]); {
		case err == unix.EINTR:
		case err != nil:
			p.t.Fatalf("after %d frames: %v", len(frames), err)
		case bytes.Equal(f, mark):
			return frames
		case bytes.HasPrefix(f, p.to[:]):
			frames = append(frames, f)
		}
	}
}

// taps see what is sent to the first pod: on the wire, at the host's end of its veth, where
// only the full path leads by, and in it.
type taps struct {
	c               *crate
	wire, host, pod *tap
	marks           uint32
}

// pass sends frames, and returns what came by the full path, and to the pod.
func (p *taps) pass(frames ...[]byte) (host, pod [][]byte) {
	p.marks++
	mark := p.c.inner(packet.Raw(binary.BigEndian.AppendUint32(make([]byte, 46), p.marks)))
	binary.BigEndian.PutUint16(mark[12:], markType)
	p.wire.send(append(slices.Clone(frames), p.c.outer(packet.IPv4{}, mark))...)
	return p.host.until(mark), p.pod.until(mark)
}

// What is not plain comes as it does without express, or does not, as without.
func TestWhatIsNotPlainTakesTheFullPath(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	rx, s := b.Receiver(), &scene{t: t, b: b}
	pod := rx.Pods[0]
	must(t, s.run(inPod, "ip link set POD mtu 1000"))
	c := &crate{b: b}
	device(t, rx.Overlay, bed.Tunnel, func(l netlink.Link) error { copy(c.tunnel[:], l.Attrs().HardwareAddr); return nil })
	p := &taps{c: c, wire: newTap(t, b.Sender().NS, b.Sender().Wire, [6]byte{}),
		host: newTap(t, rx.Overlay, pod.HostEnd, pod.MAC), pod: newTap(t, pod.NS, bed.PodDev, pod.MAC)}

	list := c.oddities()
	without := make([][][]byte, len(list))
	for i, o := range list {
		_, without[i] = p.pass(o.frames...)
		if len(without[i]) != o.comes {
			t.Errorf("%s, without express: %d frames come, want %d", o.name, len(without[i]), o.comes)
		}
	}

	l := rig.StartSteady(t, b, 1, 1) // to the other pod
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: expresses})
	onWay(t, d)
	rig.Until(t, "both ways are open", func() (bool, string) {
		st := peek(t, d)
		return len(st.Express) == 2 && st.Express[0].Open && st.Express[1].Open, fmt.Sprintf("%+v", st.Express)
	})
	plain := c.plain(packet.IPv4{})
	straight := func(t *testing.T) {
		t.Helper()
		rig.Until(t, "a plain frame goes straight to the pod", func() (bool, string) {
			host, _ := p.pass(c.outer(packet.IPv4{}, plain))
			return len(host) == 0, "by the full path"
		})
	}
	for i, o := range list {
		t.Run(o.name, func(t *testing.T) {
			straight(t) // its flow, or what would be
			was := peek(t, d).Counters
			host, came := p.pass(o.frames...)
			if diff := cmp.Diff(without[i], came); diff != "" {
				t.Errorf("otherwise than without express:\n%s", diff)
			}
			// A packet socket at the host's end shows what the bridge sends to the pod.
			if len(host) < len(came) {
				t.Errorf("%d frames came, and %d by the full path", len(came), len(host))
			}
			now := peek(t, d).Counters
			for reason, n := range now.ExpressUnfit {
				want := uint64(0)
				if reason == o.unfit {
					want = uint64(len(o.frames))
				}
				if n-was.ExpressUnfit[reason] != want {
					t.Errorf("%s: %d, want %d", reason, n-was.ExpressUnfit[reason], want)
				}
			}
			if o.unfit != "" && now.ExpressUnfit[o.unfit] == 0 {
				t.Errorf("unfit are %v", now.ExpressUnfit)
			}
		})
	}
	// A flow that has gone straight to the pod does so again after each of these.
	straight(t)
	// What it carries is all that comes.
	deadline := time.Now().Add(rig.Patience)
	for came := [][]byte(nil); !slices.ContainsFunc(came, func(f []byte) bool { return bytes.Equal(f, plain) }); {
		if time.Now().After(deadline) {
			t.Fatalf("a plain frame does not come as it was sent: %x", came)
		}
		_, came = p.pass(c.outer(packet.IPv4{}, plain))
	}
	must(t, s.run(inPod, fmt.Sprintf("ip link set POD mtu %d", bed.OverlayMTU)))
	ends(t, d)
	l.Stop()
}
