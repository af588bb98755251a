// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
)

// A container runtime makes the sysfs superblock of a container's network namespace read-only, and with
// it every mount of that namespace's sysfs, ours as well. It is made writable right before attributes of
// a namespace are written, and read-only right after. The journal names it before: a process that is
// killed in between leaves that to its guardian as any other setting.

// announce returns what the journal is to say before attributes are written: the superblocks that
// have to be made writable for it.
func (k *kernel) announce(places []*settingPlace) ([]Entry, error) {
	var entries []Entry
	for _, s := range places {
		if s.Kind != plan.SysfsAttr || k.announced[s.NetnsCookie] {
			continue
		}
		at, value, err := k.superblock(s)
		if err != nil {
			return nil, err
		}
		if value != plan.ReadOnly {
			continue
		}
		k.announced[s.NetnsCookie] = true
		entries = append(entries, Entry{Setting: at.Setting, Inode: at.inode, First: plan.ReadOnly, Wrote: plan.Writable})
	}
	return entries, nil
}

// superblock is that of the sysfs that an attribute is in.
func (k *kernel) superblock(s *settingPlace) (*settingPlace, string, error) {
	at, err := k.find(Entry{Setting: plan.SysfsOf(s.NetnsCookie)})
	if err != nil {
		return nil, "", err
	}
	value, err := at.get()
	return at, value, err
}

// reach makes a setting writable that is going to be written: the superblock of an attribute, if that has
// been announced. It stays so until something else is written.
func (k *kernel) reach(s *settingPlace) error {
	attr := s.Kind == plan.SysfsAttr
	if k.opened != nil && attr && k.opened.NetnsCookie == s.NetnsCookie {
		return nil
	}
	_ = k.leave() // shut tries again, and says why not
	if !attr || !k.announced[s.NetnsCookie] {
		return nil
	}
	sb, value, err := k.superblock(s)
	if err != nil || value != plan.ReadOnly {
		return err
	}
	at("superblock:before")
	if err := sb.putSuperblock(plan.Writable); err != nil {
		return err
	}
	k.opened = sb
	at("superblock:after")
	return nil
}

// leave makes the superblock read-only again that reach has made writable.
func (k *kernel) leave() error {
	sb := k.opened
	if sb == nil {
		return nil
	}
	k.opened = nil
	return sb.putSuperblock(plan.ReadOnly)
}

// shut makes the superblocks read-only again that the journal names, and drops them there. One that cannot be
// stays in the journal, with the reason in the report.
func (l *Locked) shut(k *kernel, rep *Report) {
	_ = k.leave() // what restore tries again
	kept := slices.Clone(l.j.entries)
	for i, e := range slices.Backward(l.j.entries) {
		if e.Kind != plan.Superblock {
			continue
		}
		res := k.restore(e)
		if res.Outcome == Kept {
			kept[i].Kept = res.Reason
		} else {
			kept = slices.Delete(kept, i, i+1)
		}
		if res.Outcome == Kept || !k.announced[e.NetnsCookie] {
			rep.Results = append(rep.Results, res)
		}
	}
	if !slices.Equal(kept, l.j.entries) {
		l.j.rewrite(kept)
	}
}

func (s *settingPlace) getSuperblock() (string, error) {
	on, err := netns.SysfsReadOnly(s.sysfs)
	if err != nil {
		return "", err
	}
	if on {
		return plan.ReadOnly, nil
	}
	return plan.Writable, nil
}

// patience is how long a foreign program may have an attribute open for writing.
const patience = 20 * time.Millisecond

func (s *settingPlace) putSuperblock(value string) error {
	if value != plan.ReadOnly && value != plan.Writable {
		return fmt.Errorf("%q is neither %s nor %s", value, plan.ReadOnly, plan.Writable)
	}
	err := netns.ReconfigureSysfs(s.sysfs, value)
	for begun := time.Now(); errors.Is(err, unix.EBUSY) && time.Since(begun) < patience; {
		time.Sleep(time.Millisecond)
		err = netns.ReconfigureSysfs(s.sysfs, value)
	}
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("a file of it is open for writing: %w", err)
	}
	return err
}
