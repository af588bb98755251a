// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// read looks at everything in scope.
func (o *observer) read() (Snapshot, error) {
	s := Snapshot{facts: map[key]fact{}, names: map[uint64]string{}}
	maps, err := o.readBPF(&s)
	if err != nil {
		return s, err
	}
	if err := o.readMounts(&s); err != nil {
		return s, err
	}
	if err := o.readDirs(&s); err != nil {
		return s, err
	}

	namespaces := append([]*namespace{o.home}, o.given...)
	if o.scope.Machine {
		others, err := o.openOthers()
		if err != nil {
			return s, err
		}
		for _, ns := range others {
			defer ns.file.Close()
		}
		namespaces = append(namespaces, others...)
	}
	for _, ns := range namespaces {
		s.names[ns.cookie] = ns.name
		s.add(key{ns: ns.cookie, what: whatNetns}, o.rule(ns), "inode %d", ns.inode)
	}
	// The kernel makes the values of thousands of files: all cores take part.
	parts, errs := make([]Snapshot, len(namespaces)), make([]error, len(namespaces))
	var all sync.WaitGroup
	for i, ns := range namespaces {
		parts[i].facts = map[key]fact{}
		all.Go(func() {
			if err := ns.do(func() error { return readNamespace(&parts[i], ns.cookie, o.rule(ns)) }); err != nil {
				errs[i] = fmt.Errorf("read %s: %w", ns.name, err)
			}
		})
	}
	all.Wait()
	for _, part := range parts {
		for k, f := range part.facts {
			s.facts[k] = f
		}
	}
	if err := errors.Join(errs...); err != nil {
		return s, err
	}
	return s, o.readProcesses(&s, namespaces, maps)
}

// rule says which differences count among the devices of a namespace. At home,
// other tests may make and move devices; elsewhere on the machine, namespaces
// end when their makers please.
func (o *observer) rule(ns *namespace) counts {
	switch {
	case o.owns(ns.inode), ns.home && o.scope.Machine:
		return any_
	case ns.home:
		return changes
	default:
		return appears | changes
	}
}

// ofObjects says which differences count among BPF objects. Others may take theirs away, also where only this test's
// count: when their holder ends between the look at objects and the one at holders, they seem to have none, and count.
const ofObjects = appears | changes

// pinned says which differences count among mounts and pins. Where all processes' are in scope, others may take
// theirs away.
func (o *observer) pinned() counts {
	if o.scope.Machine {
		return appears | changes
	}
	return any_
}

// openOthers opens every namespace that is neither home nor named in the scope.
func (o *observer) openOthers() ([]*namespace, error) {
	all, err := listNamespaces()
	if err != nil {
		return nil, err
	}
	var others []*namespace
	for ino, path := range all {
		if o.watches(ino) {
			continue
		}
		ns, err := openNamespace(path)
		if err != nil || ns.inode != ino {
			continue // ended since
		}
		ns.name += ", held by " + holder(path)
		others = append(others, ns)
	}
	return others, nil
}

// readNamespace runs on a thread in the namespace.
func readNamespace(s *Snapshot, cookie uint64, rule counts) error {
	devices, err := readLinks(s, cookie, rule)
	if err != nil {
		return err
	}
	for _, read := range []func(*Snapshot, uint64, counts, []device) error{
		readQdiscs, readTCX, readNAPI, readEthtool, readSysfs, readSysctls,
	} {
		if err := read(s, cookie, rule, devices); err != nil {
			return err
		}
	}
	return nil
}

// readMounts lists bpffs mounts, what is pinned in them, and named namespaces.
func (o *observer) readMounts(s *Snapshot) error {
	bpffs, err := mountsOf("bpf")
	if err != nil {
		return err
	}
	for _, m := range bpffs {
		if o.scope.named(filepath.Base(m.point)) {
			s.add(key{what: "mount " + m.point}, o.pinned(), "bpf file system")
		}
		err := filepath.WalkDir(m.point, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == m.point {
				return nil // another program's, or removed since
			}
			for _, part := range strings.Split(strings.TrimPrefix(path, m.point+"/"), "/") {
				if o.scope.named(part) {
					s.add(key{what: "pin " + path}, o.pinned(), "%v", d.Type())
					break
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	named, err := mountsOf("nsfs")
	if err != nil {
		return err
	}
	for _, m := range named {
		if o.scope.named(filepath.Base(m.point)) {
			s.add(key{what: "mount " + m.point}, appears, "namespace")
		}
	}
	return nil
}

func (o *observer) readDirs(s *Snapshot) error {
	for _, dir := range o.scope.Dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			s.add(key{what: "file " + path}, any_, "%v", d.Type())
			return nil
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, err)
		}
	}
	return nil
}
