// SPDX-License-Identifier: Apache-2.0

// Package nlsock is netlink in one network namespace: questions to rtnetlink,
// nfnetlink, IPsec and sock_diag, devices as rtnetlink tells them, and
// subscriptions to what the kernel tells by itself.
//
// The netlink library keeps neither IFLA_QDISC nor IFLA_TARGET_NETNSID, cannot
// list namespace ids, and takes 64 KiB of new memory for each answer; a scan
// asks hundreds of small questions per namespace.
package nlsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a request socket in one namespace.
type Conn struct {
	fd  int
	seq uint32
	buf []byte
}

// ErrInterrupted says that a dump changed under us more often than we retry.
var ErrInterrupted = errors.New("the answer kept changing while it was read")

// protocols names those that are asked.
var protocols = map[int]string{
	unix.NETLINK_ROUTE: "rtnetlink", unix.NETLINK_NETFILTER: "nfnetlink", unix.NETLINK_XFRM: "netlink of IPsec", unix.NETLINK_SOCK_DIAG: "sock_diag",
}

// Dial opens a socket to one of netlink's protocols in the namespace of the calling
// thread, which it keeps alive until Close. Answers are read into buf. To ask what is
// in a module that is not loaded makes the kernel load it; that may be so for all but rtnetlink.
func Dial(protocol int, buf []byte) (*Conn, error) {
	c, err := dial(protocol, buf)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", protocols[protocol], err)
	}
	return c, nil
}

func dial(protocol int, buf []byte) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	// The kernel answers before send returns; the limit is for its bugs.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		return nil, errors.Join(fmt.Errorf("set timeout: %w", err), unix.Close(fd))
	}
	if protocol == unix.NETLINK_ROUTE {
		// Filters in dump requests are only honoured with strict checking (4.20).
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
			return nil, errors.Join(fmt.Errorf("set strict checking: %w", err), unix.Close(fd))
		}
	}
	return &Conn{fd: fd, buf: buf}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Ask sends a request that has one answer, and returns its body, which lasts until the next question.
func (c *Conn) Ask(typ uint16, body []byte) (answer []byte, err error) {
	err = c.once(typ, 0, body, func(b []byte) { answer = b })
	return answer, err
}

// Dump sends a request for a list and calls each for the body of every answer. The body
// is valid only during the call. A dump that was interrupted by a change is
// repeated, after reset, so that no answer is a mixture of two states.
func (c *Conn) Dump(typ uint16, body []byte, reset func(), each func([]byte)) error {
	return whole(func() error {
		reset()
		return c.once(typ, unix.NLM_F_DUMP, body, each)
	})
}

// Collect dumps what parse makes of each answer; what it refuses is left out.
func Collect[T any](c *Conn, typ uint16, body []byte, parse func([]byte) (T, bool)) (list []T, err error) {
	err = c.Dump(typ, body, func() { list = nil }, func(b []byte) {
		if v, ok := parse(b); ok {
			list = append(list, v)
		}
	})
	return list, err
}

// repeatFor is for how long dumps are repeated more than once: one that takes longer is likely interrupted again, and the
// daemon does nothing else meanwhile. Its caller asks again later.
const repeatFor = 50 * time.Millisecond

// whole repeats a dump that was interrupted.
func whole(dump func() error) (err error) {
	began := time.Now()
	for made := 1; made <= 5; made++ {
		err = dump()
		if !errors.Is(err, ErrInterrupted) || made > 1 && time.Since(began) >= repeatFor {
			break
		}
	}
	return err
}

func (c *Conn) once(typ, flags uint16, body []byte, each func([]byte)) error {
	c.seq++
	req := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	ne := binary.NativeEndian
	ne.PutUint32(req[0:], uint32(unix.SizeofNlMsghdr+len(body)))
	ne.PutUint16(req[4:], typ)
	ne.PutUint16(req[6:], flags|unix.NLM_F_REQUEST)
	ne.PutUint32(req[8:], c.seq)
	req = append(req, body...)
	if err := unix.Sendto(c.fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for m := range Messages(c.buf[:n]) {
			if m.Seq != c.seq {
				continue
			}
			if m.Flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			if m.Type == unix.NLMSG_ERROR || m.Type == unix.NLMSG_DONE {
				if e := int32(U32(m.Body)); e != 0 {
					return unix.Errno(-e)
				}
				if interrupted {
					return ErrInterrupted
				}
				return nil
			}
			each(m.Body)
			if m.Flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

// Message is one netlink message.
type Message struct {
	Type, Flags uint16
	Seq         uint32
	Body        []byte
}

// Messages walks the messages of one datagram and stops at the first whose
// length lies.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		ne := binary.NativeEndian
		for len(b) >= unix.SizeofNlMsghdr {
			l := int(ne.Uint32(b))
			if l < unix.SizeofNlMsghdr || l > len(b) {
				return
			}
			if !yield(Message{ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), b[unix.SizeofNlMsghdr:l]}) {
				return
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}

// nlaTypeMask cuts NLA_F_NESTED and NLA_F_NET_BYTEORDER off an attribute type.
const nlaTypeMask = 0x3fff

// Attrs walks netlink attributes and stops at the first whose length lies.
func Attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		ne := binary.NativeEndian
		for len(b) >= unix.SizeofRtAttr {
			l := int(ne.Uint16(b))
			if l < unix.SizeofRtAttr || l > len(b) {
				return
			}
			if !yield(ne.Uint16(b[2:])&nlaTypeMask, b[unix.SizeofRtAttr:l]) {
				return
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}

// Attr appends one attribute.
func Attr(b []byte, typ uint16, val []byte) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint16(b, uint16(unix.SizeofRtAttr+len(val)))
	b = ne.AppendUint16(b, typ)
	b = append(b, val...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// Attr32 appends an attribute that is a number of 32 bits.
func Attr32(b []byte, typ uint16, val uint32) []byte {
	return Attr(b, typ, binary.NativeEndian.AppendUint32(nil, val))
}

// U32 reads an attribute's value; what is too short reads as zero.
func U32(b []byte) uint32 { return number(b, 4, binary.NativeEndian.Uint32) }

// U32BE reads a value in network byte order, and zero of what is too short.
func U32BE(b []byte) uint32 { return number(b, 4, binary.BigEndian.Uint32) }

// U16BE reads a value in network byte order, and zero of what is too short.
func U16BE(b []byte) uint16 { return number(b, 2, binary.BigEndian.Uint16) }

func number[T any](b []byte, size int, read func([]byte) T) (n T) {
	if len(b) >= size {
		n = read(b)
	}
	return n
}

// Str reads a string, with or without the zero that ends it.
func Str(b []byte) string { return unix.ByteSliceToString(b) }

// Addr reads an address; an unspecified one counts as none.
func Addr(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}
