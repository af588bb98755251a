// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Sockaddr is an address as system calls take it, and its family.
func Sockaddr(at netip.AddrPort) (family int, sa unix.Sockaddr) {
	if at.Addr().Is6() {
		return unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	return unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
}

// Bind opens a socket of UDP, or UDP-Lite, at an address of the calling thread's network namespace.
func Bind(proto int, addr netip.AddrPort) (int, error) {
	family, sa := Sockaddr(addr)
	s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(s, sa); err != nil {
		return -1, errors.Join(err, unix.Close(s))
	}
	return s, nil
}

// wakeReader lets a thread that waits for data on a socket notice within 50 ms that it shall not.
func wakeReader(s int) error {
	patience := unix.NsecToTimeval(int64(50 * time.Millisecond))
	return unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
}

// forAll does the same with each, whatever comes of the others.
func forAll[T any](list []T, do func(T) error) error {
	var errs []error
	for _, one := range list {
		errs = append(errs, do(one))
	}
	return errors.Join(errs...)
}
