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
	last uint32               // all up to this one were there to be seen
}

// linkCounts are the BPF links of the machine, by kind.
type linkCounts struct {
	netfilter int // at hooks of netfilter
	netns     int // at a namespace: sk_lookup, flow dissectors
}

func (n *linkCounts) add(kind link.Type) {
	switch kind {
	case link.NetfilterType:
		n.netfilter++
	case link.NetNsType:
		n.netns++
	}
}

// count opens only links that are new.
func (l *bpfLinks) count() (n linkCounts, err error) {
	was := l.seen
	l.seen, l.last = map[uint32]link.Type{}, 0
	err = privilege.With(unix.CAP_SYS_ADMIN, func() (err error) {
		n, err = l.from(was)
		return err
	})
	return n, err
}

// same tells whether there is none that a count would count and the last has not, of those after
// the last: the kernel numbers links one after the other, and begins anew after two thousand millions.
func (l *bpfLinks) same() (same bool, err error) {
	err = privilege.With(unix.CAP_SYS_ADMIN, func() error {
		n, err := l.from(nil)
		same = n == linkCounts{}
		return err
	})
	return same && err == nil, err
}

// from counts those after the last. known are the kinds of some.
func (l *bpfLinks) from(known map[uint32]link.Type) (n linkCounts, err error) {
	whole := true
	for id := l.last; ; {
		if id, err = nextLink(id); errors.Is(err, unix.ENOENT) {
			return n, nil
		}
		if err != nil {
			return n, fmt.Errorf("list BPF links: %w", err)
		}
		kind, ok := known[id]
		if !ok {
			kind, err = kindOf(id)
		}
		switch {
		case errors.Is(err, os.ErrNotExist): // gone already
		case errors.Is(err, unix.EAGAIN):
			whole = false // being made: who comes next will see it
			continue
		case err != nil:
			return n, fmt.Errorf("read BPF link %d: %w", id, err)
		default:
			l.seen[id] = kind
			n.add(kind)
		}
		if whole {
			l.last = id
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
