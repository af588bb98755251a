// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// ending bounds the wait for a namespace that no process holds any more: it ends by a worker of the
// kernel's, after a grace period of RCU.
const ending = time.Second

// forgetEnding drops what is journalled of devices that are gone, before the rest is restored. A
// namespace that is not found is no proof for the journal: where parts of /proc are closed to us,
// it may exist for all that we see. But we have known its device, and see that go.
func (h *Host) forgetEnding(which func(apply.Entry) bool) error {
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) { // nothing tells of that end
		waits := false
		err := h.locked.Forget(func(e apply.Entry) bool {
			switch {
			case !which(e) || e.Ifindex == 0:
				return false // not of a device
			case h.Gone(e):
				return true
			}
			waits = waits || e.Kept == "" && !h.Found(e.NetnsCookie)
			return false
		})
		if err != nil || !waits || time.Since(begin) > ending {
			return err
		}
	}
}

// Found tells whether a namespace is still where the last scan saw it.
func (h *Host) Found(cookie uint64) bool {
	_, found := h.inode(cookie)
	return found
}

// inode is that of a namespace; false: it has gone since the scan.
func (h *Host) inode(cookie uint64) (uint64, bool) {
	ns, err := h.scanner.Namespace(cookie)
	if err != nil {
		return 0, false
	}
	defer ns.Close()
	return ns.Inode(), true
}

// Gone tells that the device of an entry exists no more; where that cannot be told it does. One that is renamed
// does. An entry that was kept may be of a namespace that no scan has ever seen, and that exists.
func (h *Host) Gone(e apply.Entry) bool {
	sysfs, err := h.scanner.Sysfs(e.NetnsCookie)
	if err != nil {
		return e.Kept == "" && errors.Is(err, node.ErrGone)
	}
	return apply.DeviceGone(sysfs, e.Target)
}

// followNames has the journal call devices as the last scan did: mechanisms look for what is theirs by that name.
func (h *Host) followNames() {
	names := map[node.DevKey]string{}
	for _, dev := range h.snap.Receivers() {
		names[dev.Key()] = dev.Name
	}
	for _, u := range h.snap.Underlays {
		names[u.Key()] = u.Name
	}
	for _, t := range h.snap.Tunnels {
		names[t.Key()] = t.Name
	}
	for _, p := range h.snap.Pods {
		names[p.Peer.Key()] = p.Peer.Name
	}
	at := newScanned(h.scanner)
	err := h.locked.Rename(at, func(t plan.Target) string { return names[node.Dev(t).Key()] })
	if err = errors.Join(err, at.Close()); err != nil {
		h.log.Warn("names of devices could not be followed", "reason", err)
	}
}

// Entries are what the journal has.
func (h *Host) Entries() []apply.Entry { return h.locked.Entries() }

// SyncJournal has the journal's file say no more than what is changed, where it could not be rewritten so far. The
// error is why it still cannot be, which the log says once.
func (h *Host) SyncJournal() error {
	was := h.behind
	h.behind = h.locked.Sync()
	switch {
	case h.behind != nil && was == nil:
		h.log.Warn("the journal's file is not up to date, and may name settings that are restored", "reason", h.behind)
	case h.behind == nil && was != nil:
		h.log.Info("the journal is rewritten")
	}
	return h.behind
}

// JournalBehind is what SyncJournal said last.
func (h *Host) JournalBehind() error { return h.behind }

// Owned are the settings that a mechanism has changed.
func (h *Host) Owned(by plan.Owner) map[plan.Setting]plan.Owned {
	return apply.Owned(h.locked.Entries(), by)
}

// Readings are how devices receive, as of a while ago, and the settings that any mechanism has changed.
func (h *Host) Readings() (devices node.Reader, ours map[plan.Setting]plan.Owned) {
	return h.readings, h.readings.now(h.locked.Entries())
}

// CarryOut writes the journal and then the settings, each device's by themselves. A device that refuses one is left
// alone: refused says why.
func (h *Host) CarryOut(steps []plan.Step) (refused map[plan.Target]string, err error) {
	rep, err := h.carryOut(h.locked.DoEach, steps)
	refused = map[plan.Target]string{}
	for _, r := range rep.Results {
		if r.Outcome == apply.Refused {
			refused[r.Target] = r.Reason
		}
	}
	return refused, err
}

// CarryOutWhole does so with all or none.
func (h *Host) CarryOutWhole(steps []plan.Step) error {
	_, err := h.carryOut(h.locked.Do, steps)
	return err
}

func (h *Host) carryOut(do func(apply.Namespaces, []plan.Step) (apply.Report, error), steps []plan.Step) (apply.Report, error) {
	if len(steps) == 0 {
		return apply.Report{}, nil
	}
	at := newScanned(h.scanner)
	rep, err := do(at, steps)
	return rep, errors.Join(err, at.Close())
}

// Restore takes back what a mechanism has changed; which: of that, nil: all. It forgets settings of devices that are
// gone. What cannot be taken back is Kept in the report, and tried again with the next Restore. Where its namespace is
// not seen it waits for the end of the daemon: each search of the machine would hold up the decisions.
func (h *Host) Restore(by plan.Owner, which func(plan.Setting) bool) (apply.Report, error) {
	mine := func(e apply.Entry) bool { return e.By == by && (which == nil || which(e.Setting)) }
	return h.restore(mine, func(e apply.Entry) bool { return mine(e) && (e.Kept == "" || h.Found(e.NetnsCookie)) })
}

// Unneeded is what a mechanism has changed and needs no more, on devices that live on. Of those that are gone it is
// forgotten. What was changed in a network namespace that cannot be opened now waits: that is about to go, and its devices
// with it, or the next scan finds it by another path.
func (h *Host) Unneeded(by plan.Owner, needed func(plan.Setting) bool) ([]apply.Entry, error) {
	needs := func(e apply.Entry) bool { return e.By != by || needed(e.Setting) }
	err := h.locked.Forget(func(e apply.Entry) bool { return !needs(e) && e.Ifindex != 0 && h.Gone(e) })
	return slices.DeleteFunc(h.locked.Entries(), func(e apply.Entry) bool {
		return needs(e) || e.Ifindex != 0 && !h.Found(e.NetnsCookie)
	}), err
}

// RestoreUnneeded takes that back, as Restore does.
func (h *Host) RestoreUnneeded(by plan.Owner, needed func(plan.Setting) bool) (rep apply.Report, err error) {
	over, err := h.Unneeded(by, needed)
	if err != nil || len(over) == 0 {
		return rep, err
	}
	return h.Restore(by, func(s plan.Setting) bool {
		return slices.ContainsFunc(over, func(e apply.Entry) bool { return e.Setting == s })
	})
}

// RestoreRest takes back, at the end, what is in the journal beyond what a report says to be kept: what an earlier run
// left and its mechanism has not touched in this one, and what is of namespaces that are not seen.
func (h *Host) RestoreRest(tried apply.Report) (apply.Report, error) {
	rest := func(e apply.Entry) bool {
		return !slices.ContainsFunc(tried.Results, func(r apply.Result) bool { return r.Setting == e.Setting })
	}
	return h.restore(rest, rest)
}

// restore forgets what is gone of some entries, and takes back what is to be tried of them.
func (h *Host) restore(of, try func(apply.Entry) bool) (apply.Report, error) {
	forgotten := h.forgetEnding(of)
	at := newSearched(h.scanner)
	rep, err := h.locked.RestoreIf(at, try)
	return rep, errors.Join(forgotten, err, at.Close())
}

// Forget drops entries from the journal, as of devices that have gone with their settings.
func (h *Host) Forget(which func(apply.Entry) bool) error { return h.locked.Forget(which) }
