// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// conn is a request socket to rtnetlink in one namespace.
//
// The netlink library keeps neither IFLA_QDISC nor IFLA_TARGET_NETNSID, cannot
// list namespace ids, and takes 64 KiB of new memory for each answer; a scan
// asks hundreds of small questions per namespace.
type conn struct {
	fd  int
	seq uint32
	buf []byte
}

// errInterrupted says that a dump changed under us more often than we retry.
var errInterrupted = errors.New("the answer kept changing while it was read")

// dial opens a socket in the namespace of the calling thread. The socket keeps
// the namespace alive until close.
func dial(buf []byte) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// The kernel answers before send returns; the limit is for its bugs.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		return nil, errors.Join(fmt.Errorf("set rtnetlink timeout: %w", err), unix.Close(fd))
	}
	// Filters in dump requests are only heeded with strict checking (4.20).
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return nil, errors.Join(fmt.Errorf("set rtnetlink strict checking: %w", err), unix.Close(fd))
	}
	return &conn{fd: fd, buf: buf}, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// do sends one request and calls each for the body of every answer. The body
// is valid only during the call. A dump that was interrupted by a change is
// repeated, after reset, so that no answer is a mixture of two states.
func (c *conn) do(typ, flags uint16, body []byte, reset func(), each func([]byte) error) error {
	for range 5 {
		reset()
		err := c.once(typ, flags, body, each)
		if !errors.Is(err, errInterrupted) {
			return err
		}
	}
	return errInterrupted
}

func (c *conn) once(typ, flags uint16, body []byte, each func([]byte) error) error {
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
	var failed error // of each; the rest of the answer still has to be read
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for m := range messages(c.buf[:n]) {
			if m.seq != c.seq {
				continue
			}
			if m.flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = true
			}
			switch {
			case m.typ == unix.NLMSG_ERROR || m.typ == unix.NLMSG_DONE:
				if len(m.body) >= 4 {
					if e := int32(ne.Uint32(m.body)); e != 0 {
						return unix.Errno(-e)
					}
				}
				if interrupted {
					return errInterrupted
				}
				return failed
			case failed == nil:
				failed = each(m.body)
			}
			if m.flags&unix.NLM_F_MULTI == 0 {
				return failed
			}
		}
	}
}

type message struct {
	typ, flags uint16
	seq        uint32
	body       []byte
}

// messages walks the messages of one datagram and stops at the first whose
// length lies.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		ne := binary.NativeEndian
		for len(b) >= unix.SizeofNlMsghdr {
			l := int(ne.Uint32(b))
			if l < unix.SizeofNlMsghdr || l > len(b) {
				return
			}
			if !yield(message{ne.Uint16(b[4:]), ne.Uint16(b[6:]), ne.Uint32(b[8:]), b[unix.SizeofNlMsghdr:l]}) {
				return
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}

// nlaTypeMask cuts NLA_F_NESTED and NLA_F_NET_BYTEORDER off an attribute type.
const nlaTypeMask = 0x3fff

// attrs walks netlink attributes and stops at the first whose length lies.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
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

// attr appends one attribute.
func attr(b []byte, typ uint16, val []byte) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint16(b, uint16(unix.SizeofRtAttr+len(val)))
	b = ne.AppendUint16(b, typ)
	b = append(b, val...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func attr32(b []byte, typ uint16, val uint32) []byte {
	return attr(b, typ, binary.NativeEndian.AppendUint32(nil, val))
}

// u32, u16be and str read attribute values; what is too short reads as zero.
func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func u16be(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func str(b []byte) string { return unix.ByteSliceToString(b) }
