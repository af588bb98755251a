// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// bpfLinks remembers which of the machine's BPF links are at hooks of
// netfilter. They do not say in which namespace; that there is one is enough.
type bpfLinks struct {
	seen map[uint32]bool // by id, which is not used again for long
}

// netfilter counts them. Only links that are new are opened.
func (l *bpfLinks) netfilter() (int, error) {
	seen, n := map[uint32]bool{}, 0
	for id := uint32(0); ; {
		var err error
		if id, err = nextLink(id); errors.Is(err, unix.ENOENT) {
			l.seen = seen
			return n, nil
		}
		if err != nil {
			return 0, fmt.Errorf("list BPF links: %w", err)
		}
		is, known := l.seen[id]
		if !known {
			is, err = atNetfilter(id)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EAGAIN) {
				continue // gone already, or being made: the next check will see it
			}
			if err != nil {
				return 0, fmt.Errorf("read BPF link %d: %w", id, err)
			}
		}
		seen[id] = is
		if is {
			n++
		}
	}
}

func atNetfilter(id uint32) (bool, error) {
	l, err := link.NewFromID(link.ID(id))
	if err != nil {
		return false, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, err
	}
	return info.Type == link.NetfilterType, nil
}

// nextLink asks for the id that follows one. The library opens every link on
// its way.
func nextLink(id uint32) (uint32, error) {
	attr := struct{ start, next, flags uint32 }{start: id}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_GET_NEXT_ID, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return 0, errno
	}
	return attr.next, nil
}
