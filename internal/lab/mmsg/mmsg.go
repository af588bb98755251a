// SPDX-License-Identifier: Apache-2.0

// Package mmsg reads datagrams by the batch, with one system call (recvmmsg), as programs do that
// take many. It needs nothing of the machine.
package mmsg

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Most is how many messages one call reads.
const Most = 64

// Batch is the room for what one call reads. It is not safe for concurrent use.
type Batch struct {
	room     int
	buf      []byte
	from     [Most]unix.RawSockaddrInet4
	control  [][64]byte // of each message, if wanted
	vecs     [Most]unix.Iovec
	messages [Most]message
}

// message is struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
	_ [4]byte
}

// New makes a batch of messages of at most room bytes, with their control messages, or without.
func New(room int, control bool) *Batch {
	b := &Batch{room: room, buf: make([]byte, Most*room)}
	if control {
		b.control = make([][64]byte, Most)
	}
	for i := range b.messages {
		m := &b.messages[i]
		b.vecs[i].Base = &b.buf[i*room]
		b.vecs[i].SetLen(room)
		m.Iov, m.Iovlen = &b.vecs[i], 1
		m.Name = (*byte)(unsafe.Pointer(&b.from[i]))
	}
	return b
}

// Read waits for the first message, and returns how many there are. Senders are those of IPv4.
func (b *Batch) Read(fd int) (n int, err error) {
	for i := range b.messages {
		m := &b.messages[i]
		m.Namelen = unix.SizeofSockaddrInet4
		if b.control != nil {
			m.Control = &b.control[i][0]
			m.SetControllen(len(b.control[i]))
		}
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.messages)), Most, unix.MSG_WAITFORONE, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Message is what came i-th. It is overwritten by the next call.
func (b *Batch) Message(i int) []byte { return b.buf[i*b.room:][:b.messages[i].n] }

// From is the address of the sender.
func (b *Batch) From(i int) *unix.RawSockaddrInet4 { return &b.from[i] }

// Control is its control message.
func (b *Batch) Control(i int) []byte {
	if b.control == nil {
		return nil
	}
	return b.control[i][:b.messages[i].Controllen]
}
