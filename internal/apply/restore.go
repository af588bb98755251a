// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/overlane/overlane/internal/plan"
)

// Restore brings every journalled setting back to the value first seen, the
// last one first, and empties the journal. It may be repeated at any time,
// also after it was cut short. A setting that could not be brought back
// stays in the journal with the reason, and is Kept in the report. What keeps the
// journal from being rewritten is Sync's to say.
func (l *Locked) Restore(ns Namespaces) (Report, error) {
	return l.RestoreIf(ns, func(Entry) bool { return true })
}

// RestoreLeft restores what an earlier run has left behind in the caller's network namespace, whose
// cookie it is. It fails with ErrBusy while another program has the lock, and where something is kept.
func RestoreLeft(stateDir string, cookie uint64) (Report, error) {
	dir, err := Open(stateDir, cookie)
	if err != nil {
		return Report{}, err
	}
	defer dir.Close()
	locked, err := dir.Lock()
	if err != nil {
		return Report{}, err
	}
	finder := NewFinder()
	rep, err := locked.Restore(finder)
	return rep, errors.Join(err, rep.Left(), finder.Close(), locked.Unlock())
}

// RestoreIf is Restore for some of the entries: what a mechanism has changed that ends while others go on, or a
// device that is let go.
func (l *Locked) RestoreIf(ns Namespaces, which func(Entry) bool) (Report, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return Report{}, ErrUnlocked
	}
	rep := Report{Damaged: l.j.damaged}
	defer l.told(&rep)
	k := newKernel(ns)
	defer k.close()

	l.announce(k, which)
	var left []Entry
	seen := true
	for _, e := range slices.Backward(l.j.entries) {
		if e.Kind == plan.Superblock {
			left = append(left, e) // after the attributes
			continue
		}
		if !which(e) {
			left = append(left, e)
			seen = false
			continue
		}
		res := k.restore(e)
		rep.Results = append(rep.Results, res)
		if res.Outcome == Kept {
			e.Kept = res.Reason
			left = append(left, e)
		}
	}
	slices.Reverse(left)
	if len(rep.Results) > 0 || rep.Damaged > 0 {
		l.j.rewrite(left)
	}
	l.shut(k, &rep)
	l.unseen = l.unseen && !seen
	return rep, nil
}

// announce has the journal say which sysfs superblocks are made writable for what is restored. Where its file
// cannot be written all is restored nevertheless: the superblock is as it was in a moment.
func (l *Locked) announce(k *kernel, which func(Entry) bool) {
	var add []Entry
	for _, e := range l.j.entries {
		if e.Kind != plan.SysfsAttr || !which(e) {
			continue
		}
		// Of one that is not found, or not announced, restore says why.
		if at, err := k.find(e); err == nil {
			entries, _ := k.announce([]*settingPlace{at})
			add = append(add, entries...)
		}
	}
	if len(add) > 0 && l.j.add(add) != nil {
		l.j.rewrite(slices.Concat(l.j.entries, add))
	}
}

// Sync has the journal's file say what is changed, and no more, where it could not be rewritten so far. The error is
// why it still cannot be.
func (l *Locked) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return ErrUnlocked
	}
	return l.j.sync()
}

func (k *kernel) restore(e Entry) Result {
	res := Result{Setting: e.Setting}
	to := func(o Outcome, reason string) Result {
		res.Outcome, res.Reason = o, reason
		return res
	}
	place, err := k.find(e)
	switch {
	case errors.Is(err, errOther):
		return to(LeftAlone, err.Error())
	case certainlyGone(err):
		return to(Gone, err.Error())
	case err != nil:
		return to(Kept, err.Error())
	}
	value, err := place.get()
	switch {
	case err != nil && place.left():
		return to(Gone, errGone.Error())
	case errors.Is(err, fs.ErrNotExist):
		return to(Gone, "the device has no such setting any more")
	case err != nil:
		return to(Kept, err.Error())
	}
	res.From, res.To = value, value
	switch {
	case e.Same(value, e.First):
		return to(Untouched, "")
	case !e.ours(value):
		return to(LeftAlone, fmt.Sprintf("changed by another program from %s to %s", e.Wrote, value))
	}
	at("restore:before")
	if err := place.putBack(e.First); err != nil {
		if place.left() {
			return to(Gone, errGone.Error())
		}
		return to(Kept, err.Error())
	}
	at("restore:after")
	res.To = e.First
	return to(Restored, "")
}

// Forget drops the entries of devices that have gone, so that the journal
// does not grow with the coming and going of pods. Forgetting a device that
// still exists means that its settings are never brought back.
func (l *Locked) Forget(which func(Entry) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return ErrUnlocked
	}
	l.drop(which)
	return nil
}

// Rename has the journal call devices as they are called now: a setting is looked up by the name as well.
// called is that of a device, "" where it is not known. An entry of another device that has the index stays
// as it is.
func (l *Locked) Rename(ns Namespaces, called func(plan.Target) string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return ErrUnlocked
	}
	k := newKernel(ns)
	defer k.close()
	entries, renamed := slices.Clone(l.j.entries), false
	for i, e := range entries {
		name := called(e.Target)
		if e.Ifindex == 0 || name == "" || name == e.Name {
			continue
		}
		if e.Kind != plan.ThreadSched { // a thread is told by more than its device
			at, err := k.find(e)
			if err != nil {
				continue
			}
			name = at.Name
		}
		if e.Name = name; l.j.find(e.Setting) == nil {
			entries[i], renamed = e, true
		}
	}
	if renamed {
		l.j.rewrite(entries)
	}
	return nil
}

// Ended tells that an entry is of a thread that has ended: a device may make its threads anew many times.
func (e Entry) Ended() bool {
	return e.Kind == plan.ThreadSched && errors.Is(findThread(e.Attr), errGone)
}

// Entries returns what is changed now, in the order in which it was changed.
func (l *Locked) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return slices.Clone(l.j.entries)
}

// Owned is what a mechanism's plan has to know about its entries.
func Owned(entries []Entry, by plan.Owner) map[plan.Setting]plan.Owned {
	return Ours(slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.By != by }))
}

// Ours is the same of all mechanisms: what one of them finds in another's way is not a foreign program's.
func Ours(entries []Entry) map[plan.Setting]plan.Owned {
	ours := make(map[plan.Setting]plan.Owned, len(entries))
	for _, e := range entries {
		ours[e.Setting] = plan.Owned{First: e.First, Wrote: e.Wrote}
	}
	return ours
}
