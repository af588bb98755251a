// SPDX-License-Identifier: Apache-2.0

package order

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/parser/packet"
)

const (
	plainSize = 64
	// Payloads beyond the pods' MTU, and beyond thinWire's.
	inFragments, wide = 1992, 1200
	thinWire          = 1000
	segments          = 16 // in one UDP_SEGMENT
	protoLite         = 136
)

// mixture is a flow of plain small datagrams with others among them.
type mixture struct {
	name  string
	brief bool // part of a short run
	// odd sends what is not plain.
	odd func(*talker) error
	v6  bool
	// beside are further flows with mixtures of their own.
	beside []mixture
	// lite: what is odd is a flow of its own, of UDP-Lite between the same ports.
	lite bool
	// local: the sender is a pod of the node that receives.
	local bool
	// wireMTU is that of the sender's NIC, if not the bed's.
	wireMTU int
	// bare: the test makes the tunnel's frames itself, also the plain ones.
	bare bool
}

// sized sends one datagram of another size.
func sized(size int) func(*talker) error { return func(f *talker) error { return f.say(size) } }

// marked sends a plain one with something in its IP header.
func marked(level, kind int, value []byte) func(*talker) error {
	return func(f *talker) error { return f.say(plainSize, message(level, kind, value)) }
}

// switched sends a plain one with an option of the socket's on, which is off again afterwards.
func switched(level, option, on, off int) func(*talker) error {
	return func(f *talker) error {
		return errors.Join(unix.SetsockoptInt(f.fd, level, option, on), f.say(plainSize), unix.SetsockoptInt(f.fd, level, option, off))
	}
}

// anySize is at least what can be checked.
func anySize(f *talker) error { return f.say(datagram.MinSize + f.rnd.IntN(wide-datagram.MinSize)) }

// inOne sends several at once, which the kernel cuts.
func inOne(f *talker) error {
	size := binary.NativeEndian.AppendUint16(nil, plainSize)
	return f.sayAll(segments, plainSize, message(unix.SOL_UDP, unix.UDP_SEGMENT, size))
}

// framed sends a plain datagram in a frame of the tunnel's that is changed.
func framed(change func([]byte) []byte) func(*talker) error {
	return func(f *talker) error { return f.put(change(f.frame(packet.IPv4{}))) }
}

// otherPort gives the tunnel's datagram another source port.
func otherPort(frame []byte) []byte { return rig.Edited(frame, rig.OuterUDP, 200, 1) }

// optioned sends a plain datagram in a frame of the tunnel's with options.
func optioned(f *talker) error { return f.put(f.frame(packet.IPv4{Options: 4})) }

// anyOf sends one or the other.
func anyOf(list ...mixture) func(*talker) error {
	return func(f *talker) error { return list[f.rnd.IntN(len(list))].odd(f) }
}

func word(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// padding is an IPv6 header of options that say nothing.
var padding = []byte{0, 0, 1, 4, 0, 0, 0, 0}

// mixtures are all kinds.
func mixtures() []mixture {
	v4 := []mixture{
		{name: "inner fragments", brief: true, odd: sized(inFragments)},
		{name: "no checksum", brief: true, odd: switched(unix.SOL_SOCKET, unix.SO_NO_CHECK, 1, 0)},
		{name: "IP options", brief: true, odd: marked(unix.IPPROTO_IP, unix.IP_RETOPTS, []byte{1, 1, 1, 0})},
		{name: "another TOS", odd: marked(unix.IPPROTO_IP, unix.IP_TOS, word(0xb8))},
		{name: "ECN", odd: marked(unix.IPPROTO_IP, unix.IP_TOS, word(3))},
		{name: "another TTL", odd: marked(unix.IPPROTO_IP, unix.IP_TTL, word(9))},
		{name: "do not fragment", odd: switched(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, unix.IP_PMTUDISC_DONT)},
		{name: "shorter", odd: sized(datagram.MinSize)},
		{name: "longer", odd: sized(3 * plainSize)},
		{name: "any size", odd: anySize},
		{name: "empty", odd: (*talker).sayNothing},
		{name: "UDP_SEGMENT", brief: true, odd: inOne},
	}
	outer := []mixture{
		{name: "outer options", odd: optioned},
		{name: "an outer checksum", odd: framed(func(f []byte) []byte { return rig.SumUDP(f, rig.IPAt) })},
		{name: "outer ECN", odd: framed(func(f []byte) []byte { return rig.ECN(f, rig.IPAt, 1) })},
		{name: "another outer port", odd: framed(otherPort)},
		{name: "a byte behind the frame", odd: framed(func(f []byte) []byte { return append(f, 0) })},
	}
	v6 := []mixture{
		{name: "inner fragments, IPv6", odd: sized(inFragments)},
		{name: "no checksum, IPv6", odd: switched(unix.SOL_UDP, unix.UDP_NO_CHECK6_TX, 1, 0)},
		{name: "destination options, IPv6", brief: true, odd: marked(unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, padding)},
		{name: "hop-by-hop options, IPv6", odd: marked(unix.IPPROTO_IPV6, unix.IPV6_HOPOPTS, padding)},
		{name: "another class, IPv6", odd: marked(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, word(0xb8))},
		{name: "another hop limit, IPv6", odd: marked(unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, word(9))},
		{name: "any size, IPv6", odd: anySize},
	}
	all := []mixture{{name: "plain", odd: sized(plainSize)}}
	all = append(all, v4...)
	all = append(all,
		mixture{name: "any of these", odd: anyOf(v4...)},
		mixture{name: "all of these, in flows of their own", odd: sized(plainSize), beside: v4},
		mixture{name: "outer fragments", odd: sized(wide), wireMTU: thinWire},
		mixture{name: "UDP-Lite beside", odd: sized(plainSize), lite: true},
		mixture{name: "UDP_SEGMENT, from a pod of this node", odd: inOne, local: true},
		mixture{name: "any of these, from a pod of this node", odd: anyOf(v4...), local: true})
	for i := range outer {
		outer[i].bare = true
	}
	for i := range v6 {
		v6[i].v6 = true
	}
	all = append(all, outer...)
	all = append(all, v6...)
	return append(all, mixture{name: "any of these, IPv6", v6: true, odd: anyOf(v6...)})
}

// talker is the sending socket of a flow.
type talker struct {
	fd   int
	flow uint16
	next uint64 // number of the next datagram
	none uint64 // datagrams that have no number
	odd  func(*talker) error
	rnd  *rand.Rand
	buf  []byte
	// crate makes the frames of a bare flow, and wire sends them; nil: the kernel does.
	crate *rig.Crate
	wire  int
	ports packet.UDP
}

// newTalker opens the socket of a flow in the pod that the calling thread is in.
func newTalker(id, proto int, from, to netip.Addr, port uint16) (*talker, error) {
	f := &talker{flow: uint16(id), rnd: rand.New(rand.NewPCG(uint64(id), 1)), buf: make([]byte, max(inFragments, segments*plainSize)),
		ports: packet.UDP{Src: uint16(traffic.BasePort + id), Dst: port}}
	var err error
	if f.fd, err = traffic.Bind(proto, netip.AddrPortFrom(from, uint16(traffic.BasePort+id))); err != nil {
		return nil, err
	}
	_, far := traffic.Sockaddr(netip.AddrPortFrom(to, port))
	errs := []error{unix.Connect(f.fd, far), unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)}
	if to.Is4() {
		errs = append(errs, unix.SetsockoptInt(f.fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, unix.Close(f.fd))
	}
	return f, nil
}

// say sends a datagram, with control messages.
func (f *talker) say(size int, with ...[]byte) error { return f.sayAll(1, size, with...) }

// sayAll sends several with one call.
func (f *talker) sayAll(n, size int, with ...[]byte) error {
	for i := range n {
		datagram.Put(f.buf[i*size:][:datagram.MinSize], f.flow, f.next+uint64(i), 0)
	}
	f.next += uint64(n)
	return unix.Sendmsg(f.fd, f.buf[:n*size], slices.Concat(with...), nil, 0)
}

// plain sends a datagram that is like most.
func (f *talker) plain() error {
	if f.crate != nil {
		return f.put(f.frame(packet.IPv4{}))
	}
	return f.say(plainSize)
}

// frame is the tunnel's frame with the next plain datagram.
func (f *talker) frame(outer packet.IPv4) []byte {
	payload := f.buf[:plainSize]
	datagram.Put(payload[:datagram.MinSize], f.flow, f.next, 0)
	f.next++
	inner := f.crate.Inner(f.crate.IP(packet.IPv4{}), f.ports, packet.Raw(payload))
	return f.crate.Outer(outer, rig.SumUDP(inner, rig.EthLen))
}

// put sends a frame.
func (f *talker) put(frame []byte) error {
	_, err := unix.Write(f.wire, frame)
	return err
}

// sayNothing sends an empty datagram.
func (f *talker) sayNothing() error {
	f.none++
	return unix.Sendmsg(f.fd, nil, nil, nil, 0)
}

// message is a control message.
func message(level, kind int, value []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(value)))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = int32(level), int32(kind)
	h.SetLen(unix.CmsgLen(len(value)))
	copy(b[unix.CmsgLen(0):], value)
	return b
}

// wireSocket opens a packet socket that sends at the sender's NIC, and gets nothing: a copy of each frame would be another
// path.
func wireSocket(b *bed.Bed) (s int, err error) {
	tx := b.Sender()
	index, err := bed.Ifindex(tx.NS, tx.Wire)
	if err != nil {
		return -1, err
	}
	err = tx.NS.Do(func() error {
		if s, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(s, &unix.SockaddrLinklayer{Ifindex: index})
	})
	return s, err
}

// listeners are the receiving pod's sockets, each of which a checker looks at.
func listeners(b *bed.Bed, check *traffic.Checker) (all []int, err error) {
	pod := b.Receiver().Pods[0]
	err = pod.NS.Do(func() error {
		open := func(proto int, ip netip.Addr, port uint16) error {
			s, err := traffic.Bind(proto, netip.AddrPortFrom(ip, port))
			if proto == protoLite && errors.Is(err, unix.EPROTONOSUPPORT) {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, s)
			if ip.Is6() {
				err = unix.SetsockoptInt(s, unix.SOL_UDP, unix.UDP_NO_CHECK6_RX, 1)
			}
			return errors.Join(err, check.Attach(s))
		}
		return errors.Join(open(unix.IPPROTO_UDP, pod.IP4, traffic.Port), open(unix.IPPROTO_UDP, pod.IP4, sparsePort),
			open(unix.IPPROTO_UDP, pod.IP6, traffic.Port), open(protoLite, pod.IP4, traffic.Port))
	})
	return all, err
}
