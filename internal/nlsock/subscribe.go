// SPDX-License-Identifier: Apache-2.0

package nlsock

import (
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// Subscribe opens a socket to what the kernel tells groups of a netlink protocol, in the namespace of the calling
// thread, which it keeps alive until it is closed. Of what was not read yet the kernel keeps rcvbuf bytes.
func Subscribe(protocol, rcvbuf int, groups ...int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	sa := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		sa.Groups |= 1 << (g - 1)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, rcvbuf),
		unix.Bind(fd, sa),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to netlink: %w", err), f.Close())
	}
	return f, nil
}

// Follow reads a subscription until it is closed. lost is called where messages came faster than they were read.
func Follow(f *os.File, lost func(), told func(iter.Seq[Message])) {
	buf := make([]byte, 1<<16)
	for {
		n, err := f.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case err != nil:
			return
		default:
			told(Messages(buf[:n]))
		}
	}
}
