// SPDX-License-Identifier: Apache-2.0

// Package ethtool asks the kernel about network devices of the calling
// thread's network namespace, by ethtool's ioctl: which features they have and
// do, how many channels. Answers are those of the moment.
//
// The kernel reads and writes memory of which Go's runtime does not know that
// it does. Up to the system call that memory is therefore held by pointers and
// never by an integer: a goroutine's stack may move at any call, and with it
// what lies there.
package ethtool

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// conn is a socket to ask about one device.
type conn struct {
	fd   int
	name [unix.IFNAMSIZ]byte
}

func open(device string) (*conn, error) {
	c := new(conn)
	if len(device) >= len(c.name) {
		return nil, fmt.Errorf("device %s: %w", device, unix.ENODEV)
	}
	copy(c.name[:], device)
	var err error
	// Any socket will do; this kind is in every kernel that has ethtool.
	if c.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC); err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return c, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// ioctl passes buf, whose first word is the command, and returns the result.
// The answer is in buf.
func (c *conn) ioctl(buf []byte) (uintptr, error) {
	// struct ifreq is 40 bytes: a name and a union, here of a pointer.
	ifr := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{name: c.name, data: unsafe.Pointer(unsafe.SliceData(buf))}
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	runtime.KeepAlive(buf)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// words lays out a command, its argument and what follows, in the
// machine's byte order.
func words(cmd, arg uint32, rest []uint32) []byte {
	buf := make([]byte, 0, 8+4*len(rest))
	for _, w := range append([]uint32{cmd, arg}, rest...) {
		buf = binary.NativeEndian.AppendUint32(buf, w)
	}
	return buf
}

// word returns the nth word of buf.
func word(buf []byte, n int) uint32 { return binary.NativeEndian.Uint32(buf[4*n:]) }
