// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// object is a BPF program, map or link.
type object struct {
	kind  objectKind
	id    uint32
	name  string // links have none
	value string
	uses  []uint32 // maps of a program; the program of a link
}

type objectKind struct {
	name       string // as in /proc/PID/fdinfo: "prog_id:", "map_id:", "link_id:"
	next, open int
	infoSize   uint32 // what is read of struct bpf_*_info
}

var (
	programs = objectKind{name: "prog", next: unix.BPF_PROG_GET_NEXT_ID, open: unix.BPF_PROG_GET_FD_BY_ID, infoSize: 232}
	maps     = objectKind{name: "map", next: unix.BPF_MAP_GET_NEXT_ID, open: unix.BPF_MAP_GET_FD_BY_ID, infoSize: 96}
	links    = objectKind{name: "link", next: unix.BPF_LINK_GET_NEXT_ID, open: unix.BPF_LINK_GET_FD_BY_ID, infoSize: 64}
)

// readBPF writes down the objects in scope and returns the ids of the maps.
func (o *observer) readBPF(s *Snapshot) (map[uint32]bool, error) {
	progs, err := listObjects(programs)
	if err != nil {
		return nil, err
	}
	allMaps, err := listObjects(maps)
	if err != nil {
		return nil, err
	}
	allLinks, err := listObjects(links)
	if err != nil {
		return nil, err
	}

	// An object counts by its name, or because one that counts uses it.
	progCounts, mapCounts, linkCounts := map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, p := range progs {
		if o.scope.named(p.name) {
			progCounts[p.id] = true
			for _, m := range p.uses {
				mapCounts[m] = true
			}
		}
	}
	for _, m := range allMaps {
		if o.scope.named(m.name) {
			mapCounts[m.id] = true
		}
	}
	for _, l := range allLinks {
		if o.scope.Machine || len(l.uses) > 0 && progCounts[l.uses[0]] {
			linkCounts[l.id] = true
		}
	}
	if !o.scope.Machine && len(progCounts)+len(mapCounts) > 0 {
		theirs, err := o.heldByOthers()
		if err != nil {
			return nil, err
		}
		theirs.spread(allLinks, progs)
		for _, pair := range []struct {
			kind string
			mine map[uint32]bool
		}{{"prog", progCounts}, {"map", mapCounts}, {"link", linkCounts}} {
			for id := range pair.mine {
				if theirs.only(pair.kind, id) {
					delete(pair.mine, id)
				}
			}
		}
	}

	for _, set := range []struct {
		objects []object
		count   map[uint32]bool
	}{{progs, progCounts}, {allMaps, mapCounts}, {allLinks, linkCounts}} {
		for _, x := range set.objects {
			if set.count[x.id] {
				s.add(key{what: fmt.Sprintf("BPF %s %d", x.kind.name, x.id)}, ofObjects, "%s", x.value)
			}
		}
	}
	return mapCounts, nil
}

func listObjects(kind objectKind) ([]object, error) {
	var found []object
	for id := uint32(0); ; {
		next := make([]uint32, 3) // from, next, flags
		next[0] = id
		if _, err := bpf(kind.next, words(next)); errors.Is(err, unix.ENOENT) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("list BPF %ss: %w", kind.name, err)
		}
		id = next[1]
		x, err := openObject(kind, id)
		if gone(err) || errors.Is(err, unix.EAGAIN) {
			continue // has just ended, or is just being made
		}
		if err != nil {
			return nil, fmt.Errorf("read BPF %s %d: %w", kind.name, id, err)
		}
		found = append(found, x)
	}
}

func openObject(kind objectKind, id uint32) (object, error) {
	fd, err := bpf(kind.open, words([]uint32{id, 0, 0}))
	if err != nil {
		return object{}, err
	}
	defer unix.Close(fd)
	x := object{kind: kind, id: id}
	info, err := objectInfo(fd, kind.infoSize, nil)
	if err != nil {
		return object{}, err
	}
	switch kind.name {
	case "prog": // struct bpf_prog_info
		x.name = text(info[64:80])
		x.value = fmt.Sprintf("%s, type %d, tag %x", orNone(x.name), ne.Uint32(info), info[8:16])
		if n := ne.Uint32(info[52:]); n > 0 {
			x.uses = make([]uint32, n)
			if _, err := objectInfo(fd, kind.infoSize, x.uses); err != nil {
				return object{}, err
			}
		}
	case "map": // struct bpf_map_info
		x.name = text(info[24:40])
		x.value = fmt.Sprintf("%s, type %d", orNone(x.name), ne.Uint32(info))
	case "link": // struct bpf_link_info
		x.uses = []uint32{ne.Uint32(info[8:])}
		x.value = fmt.Sprintf("type %d, program %d", ne.Uint32(info), x.uses[0])
	}
	return x, nil
}

// objectInfo asks for the info of an object; for a program it also fills in
// the ids of its maps when there is room for them.
func objectInfo(fd int, size uint32, mapIDs []uint32) ([]byte, error) {
	info := make([]byte, size)
	if len(mapIDs) > 0 {
		ne.PutUint32(info[52:], uint32(len(mapIDs)))
		ne.PutUint64(info[56:], uint64(uintptr(unsafe.Pointer(&mapIDs[0]))))
	}
	attr := make([]uint64, 2) // fd, size of info; address of info
	ne.PutUint32(bytesOf(attr), uint32(fd))
	ne.PutUint32(bytesOf(attr)[4:], size)
	attr[1] = uint64(uintptr(unsafe.Pointer(&info[0])))
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, bytesOf(attr))
	runtime.KeepAlive(info)
	runtime.KeepAlive(mapIDs)
	return info, err
}

// Attach types that a device has a list of programs for, from linux/bpf.h.
var deviceHooks = []struct {
	what string
	typ  uint32
	kind string // only devices of this kind
}{
	{"tcx ingress", 46, ""},
	{"tcx egress", 47, ""},
	{"netkit primary", 54, "netkit"},
	{"netkit peer", 55, "netkit"},
}

// readTCX runs on a thread in the namespace: device numbers are looked up there.
func readTCX(s *Snapshot, ns uint64, rule counts, devices []device) error {
	for _, d := range devices {
		for _, hook := range deviceHooks {
			if hook.kind != "" && hook.kind != d.kind {
				continue
			}
			attached, err := queryHook(d.index, hook.typ)
			if err != nil {
				if gone(err) {
					continue
				}
				return fmt.Errorf("query %s of %s: %w", hook.what, d.name, err)
			}
			s.add(key{ns, d.name, hook.what}, rule, "%s", attached)
		}
	}
	return nil
}

func queryHook(index int, typ uint32) (string, error) {
	const room = 64
	progIDs, linkIDs := make([]uint32, room), make([]uint32, room)
	attr := make([]uint64, 8) // attr.query of union bpf_attr
	b := bytesOf(attr)
	ne.PutUint32(b[0:], uint32(index))
	ne.PutUint32(b[4:], typ)
	attr[2] = uint64(uintptr(unsafe.Pointer(&progIDs[0])))
	ne.PutUint32(b[24:], room)
	attr[5] = uint64(uintptr(unsafe.Pointer(&linkIDs[0])))
	_, err := bpf(unix.BPF_PROG_QUERY, b)
	runtime.KeepAlive(progIDs)
	runtime.KeepAlive(linkIDs)
	switch {
	case errors.Is(err, unix.ENOENT): // nothing was ever attached
		return "none", nil
	case errors.Is(err, unix.EINVAL): // before Linux 6.6
		return "none", nil
	case err != nil:
		return "", err
	}
	var attached []string
	for i := range min(ne.Uint32(b[24:]), room) {
		attached = append(attached, fmt.Sprintf("program %d link %d", progIDs[i], linkIDs[i]))
	}
	return orNone(strings.Join(attached, "; ")), nil
}

func bpf(cmd int, attr []byte) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(unsafe.Pointer(&attr[0])), uintptr(len(attr)))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

func words(w []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 4*len(w))
}

func bytesOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 8*len(w))
}
