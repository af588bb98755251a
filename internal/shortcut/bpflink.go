// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// bpfLinks remembers the kinds of the machine's BPF links. That there is one of a
// kind is enough: those at hooks of netfilter do not say in which namespace.
type bpfLinks struct {
	seen map[uint32]link.Type // by id, which is not used again for long
}

// linkCounts are the BPF links of the machine, by kind.
type linkCounts struct {
	netfilter int // at hooks of netfilter
	netns     int // at a namespace: sk_lookup, flow dissectors
}

// count opens only links that are new.
func (l *bpfLinks) count() (n linkCounts, err error) {
	err = privilege.With(unix.CAP_SYS_ADMIN, func() (err error) {
		n, err = l.all()
		return err
	})
	return n, err
}

func (l *bpfLinks) all() (linkCounts, error) {
	seen := map[uint32]link.Type{}
	var n linkCounts
	for id := uint32(0); ; {
		var err error
		if id, err = nextLink(id); errors.Is(err, unix.ENOENT) {
			l.seen = seen
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("list BPF links: %w", err)
		}
		kind, known := l.seen[id]
		if !known {
			kind, err = kindOf(id)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EAGAIN) {
				continue // gone already, or being made: the next check will see it
			}
			if err != nil {
				return n, fmt.Errorf("read BPF link %d: %w", id, err)
			}
		}
		seen[id] = kind
		switch kind {
		case link.NetfilterType:
			n.netfilter++
		case link.NetNsType:
			n.netns++
		}
	}
}

func kindOf(id uint32) (link.Type, error) {
	l, err := link.NewFromID(link.ID(id))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	return info.Type, nil
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
