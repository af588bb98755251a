// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Just enough netlink to read.

var ne = binary.NativeEndian

// errInterrupted: the list changed while the kernel was dumping it.
var errInterrupted = errors.New("dump interrupted")

// dump sends one request and returns the payloads of all answers, repeating
// when the kernel says that the answers do not fit together.
func dump(family int, typ uint16, payload []byte) ([][]byte, error) {
	for range 10 {
		answers, err := ask(family, typ, unix.NLM_F_DUMP, payload)
		if !errors.Is(err, errInterrupted) {
			return answers, err
		}
	}
	return nil, errInterrupted
}

func ask(family int, typ, flags uint16, payload []byte) ([][]byte, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, family)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer unix.Close(s)
	timeout := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, err
	}

	request := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(payload))
	ne.PutUint32(request[0:], uint32(unix.SizeofNlMsghdr+len(payload)))
	ne.PutUint16(request[4:], typ)
	ne.PutUint16(request[6:], unix.NLM_F_REQUEST|flags)
	request = append(request, payload...)
	if err := unix.Sendto(s, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send netlink: %w", err)
	}

	var answers [][]byte
	interrupted := false
	for buf := make([]byte, 1<<17); ; {
		n, _, err := unix.Recvfrom(s, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("receive netlink: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, fmt.Errorf("parse netlink: %w", err)
		}
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if len(m.Data) >= 4 {
					if errno := int32(ne.Uint32(m.Data)); errno < 0 {
						return nil, syscall.Errno(-errno)
					}
				}
				if interrupted {
					return nil, errInterrupted
				}
				return answers, nil
			default:
				answers = append(answers, append([]byte(nil), m.Data...))
				if m.Header.Flags&unix.NLM_F_MULTI == 0 {
					return answers, nil
				}
			}
		}
	}
}

// attrs cuts a run of netlink attributes. The last of a type wins.
func attrs(b []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	for len(b) >= 4 {
		size, typ := int(ne.Uint16(b)), ne.Uint16(b[2:])&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)
		if size < 4 || size > len(b) {
			break
		}
		found[typ] = b[4:size]
		b = b[min(len(b), (size+3)&^3):]
	}
	return found
}

func attr(typ uint16, value []byte) []byte {
	b := make([]byte, 4, 4+len(value)+3)
	ne.PutUint16(b, uint16(4+len(value)))
	ne.PutUint16(b[2:], typ)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// number reads an unsigned attribute of any width; 0 when it is absent.
func number(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(ne.Uint16(b))
	case 4:
		return uint64(ne.Uint32(b))
	case 8:
		return ne.Uint64(b)
	}
	return 0
}

func text(b []byte) string { return unix.ByteSliceToString(b) }
