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
type linkCounts map[link.Type]int

// netfilter are those at hooks of netfilter.
func (n linkCounts) netfilter() int { return n[link.NetfilterType] }

// netns are those at a namespace: sk_lookup, flow dissectors.
func (n linkCounts) netns() int { return n[link.NetNsType] }

// count opens only links that are new. All up to last were there to be seen.
func (l *bpfLinks) count() (n linkCounts, last uint32, err error) {
	err = privilege.With(unix.CAP_SYS_ADMIN, func() (err error) {
		seen := map[uint32]link.Type{}
		n, last, err = l.after(0, seen)
		l.seen = seen
		return err
	})
	return n, last, err
}

// noneAfter tells whether none has come after the last of a count that would count: the kernel numbers
// links one after the other, and begins anew after two thousand millions.
func (l *bpfLinks) noneAfter(last uint32) (none bool, err error) {
	err = privilege.With(unix.CAP_SYS_ADMIN, func() error {
		n, _, err := l.after(last, l.seen)
		none = err == nil && n.netfilter()+n.netns() == 0
		return err
	})
	return none, err
}

// after counts those after a link, and notes their kinds down.
func (l *bpfLinks) after(id uint32, seen map[uint32]link.Type) (n linkCounts, last uint32, err error) {
	n, last = linkCounts{}, id
	for whole := true; ; {
		if id, err = nextLink(id); errors.Is(err, unix.ENOENT) {
			return n, last, nil
		}
		if err != nil {
			return n, last, fmt.Errorf("list BPF links: %w", err)
		}
		kind, known := l.seen[id]
		if !known {
			kind, err = kindOf(id)
		}
		switch {
		case errors.Is(err, os.ErrNotExist): // gone already
		case errors.Is(err, unix.EAGAIN):
			whole = false // being made: the next scan will see it
		case err != nil:
			return n, last, fmt.Errorf("read BPF link %d: %w", id, err)
		default:
			seen[id] = kind
			n[kind]++
		}
		if whole {
			last = id
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
