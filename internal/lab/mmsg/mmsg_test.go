// SPDX-License-Identifier: Apache-2.0

package mmsg

import (
	"bytes"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestABatchIsWhatHasCome(t *testing.T) {
	var fds [2]int
	for i := range fds {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		fds[i] = fd
	}
	at, err := unix.Getsockname(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	patience := unix.NsecToTimeval(int64(10 * time.Second))
	if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	from, err := unix.Getsockname(fds[1])
	if err != nil {
		t.Fatal(err)
	}
	b := New(100, true)
	for _, batch := range [][]string{{"one", "", "three"}, {"the second batch is another"}} {
		for _, p := range batch {
			if err := unix.Sendto(fds[1], []byte(p), 0, at); err != nil {
				t.Fatal(err)
			}
		}
		for left := batch; len(left) > 0; {
			n, err := b.Read(fds[0])
			if err != nil || n == 0 || n > len(left) {
				t.Fatalf("%d messages, of %d that are to come: %v", n, len(left), err)
			}
			for i := range n {
				if got := b.Message(i); !bytes.Equal(got, []byte(left[i])) {
					t.Errorf("got %q, want %q", got, left[i])
				}
				sa := from.(*unix.SockaddrInet4)
				if port := b.From(i).Port; port>>8|port<<8 != uint16(sa.Port) || b.From(i).Addr != sa.Addr {
					t.Errorf("from %+v, sent from %+v", b.From(i), sa)
				}
				if c := b.Control(i); len(c) > 0 {
					t.Errorf("a control message: %x", c)
				}
			}
			left = left[n:]
		}
	}
}

func TestNothingComesInTime(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	if n, err := New(100, false).Read(fd); n != 0 || err != unix.EAGAIN {
		t.Errorf("%d messages: %v", n, err)
	}
}
