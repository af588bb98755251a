// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/privilege"
)

// Program is a BPF program at a tc hook of a device.
type Program struct {
	ID   uint32
	Name string // empty: it may not be read
	Hook string // tcx ingress, tc filter egress, ...
}

// Owner is whose the program is.
func (p Program) Owner() Owner { return OwnerOf(p.Name) }

// Hooks are what is at a device's tc hooks, in the order in which packets meet it.
type Hooks struct {
	Programs []Program
	// Filters are the kinds of tc filters that are no programs.
	Filters []string
}

// Dataplane is the first program of a product that decides where packets go.
func (h Hooks) Dataplane() (Program, bool) {
	i := slices.IndexFunc(h.Programs, func(p Program) bool { return p.Owner().Dataplane() })
	if i < 0 {
		return Program{}, false
	}
	return h.Programs[i], true
}

// Scanner reads devices. It remembers the names of programs, whose numbers are not used
// again for long.
type Scanner struct{ names map[uint32]string }

// mostNames bounds what is remembered.
const mostNames = 4096

// tcHooks are those of a device.
var tcHooks = []struct {
	direction string
	tcx       ebpf.AttachType
	filter    uint32
}{
	{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
}

// Scan lists what is at the tc hooks of devices in the calling thread's namespace. A device
// that is gone has nothing there.
func (l *Scanner) Scan(devs []int) (map[int]Hooks, error) {
	filtered, err := filtered()
	if err != nil {
		return nil, err
	}
	all := map[int]Hooks{}
	for _, dev := range devs {
		var h Hooks
		for _, hook := range tcHooks {
			res, err := link.QueryPrograms(link.QueryOptions{Target: dev, Attach: hook.tcx})
			if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !gone(err) {
				return nil, fmt.Errorf("list tcx programs of device %d: %w", dev, err)
			}
			if err == nil {
				for _, p := range res.Programs {
					h.Programs = append(h.Programs, l.program(uint32(p.ID), "tcx "+hook.direction))
				}
			}
			if !filtered[dev] {
				continue
			}
			list, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: dev}}, hook.filter)
			if err != nil && !gone(err) {
				return nil, fmt.Errorf("list tc filters of device %d: %w", dev, err)
			}
			for _, f := range list {
				if b, ok := f.(*netlink.BpfFilter); ok && b.Id > 0 {
					h.Programs = append(h.Programs, l.program(uint32(b.Id), "tc filter "+hook.direction))
				} else if !slices.Contains(h.Filters, f.Type()) {
					h.Filters = append(h.Filters, f.Type())
				}
			}
		}
		all[dev] = h
	}
	return all, nil
}

func (l *Scanner) program(id uint32, hook string) Program {
	return Program{ID: id, Name: l.name(id), Hook: hook}
}

func (l *Scanner) name(id uint32) string {
	name, known := l.names[id]
	if !known {
		name = ProgramName(id)
		if len(l.names) >= mostNames || l.names == nil {
			l.names = map[uint32]string{}
		}
		l.names[id] = name
	}
	return name
}

// dataplane tells whether a program of a product that decides where packets go is loaded, on whatever device.
func (l *Scanner) dataplane() (is bool, err error) {
	err = privilege.With(unix.CAP_SYS_ADMIN, func() error {
		for id := ebpf.ProgramID(0); !is; {
			next, err := ebpf.ProgramGetNextID(id)
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("list BPF programs: %w", err)
			}
			id = next
			is = OwnerOf(l.name(uint32(id))).Dataplane()
		}
		return nil
	})
	return is, err
}

// filtered are the devices that have a qdisc for tc filters on their way.
func filtered() (map[int]bool, error) {
	list, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	devs := map[int]bool{}
	for _, q := range list {
		if q.Type() == "clsact" || q.Type() == "ingress" {
			devs[q.Attrs().LinkIndex] = true
		}
	}
	return devs, nil
}

// gone tells that a device went away while it was scanned.
func gone(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) }
