// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"reflect"
)

// readings are what a scan has read that changes without an event. The scan's own
// readers read it again: what Poll sees cannot be something else.
type readings struct {
	again []func() (same bool, err error)
	hooks []func() (same bool, err error) // the same of devices' tcx hooks
	made  bool                            // a scan was made
	// attached is what was on all tcx hooks before the scan asked each, if that is known.
	attached uint64
	known    bool
}

// read reads something, on a thread in the namespace, and notes it down.
func read[T any](rs *readings, from func() (T, error)) (T, error) {
	saw, err := from()
	rs.note(sameAs(saw, err, from))
	return saw, err
}

// note has a scan be told apart from the next by what again says.
func (rs *readings) note(again func() (same bool, err error)) {
	rs.made = true
	rs.again = append(rs.again, again)
}

// sameAs reads again what was seen.
func sameAs[T any](saw T, err error, from func() (T, error)) func() (bool, error) {
	return func() (bool, error) {
		now, failed := from()
		return err == nil && reflect.DeepEqual(saw, now), failed
	}
}

// fail notes down that a scan came to no end, for which reason the next may see
// anything.
func (rs *readings) fail(err error) {
	rs.again = rs.again[:0]
	rs.note(func() (bool, error) { return false, err })
}

// allSame stops at the first difference.
func allSame(readers []func() (bool, error)) (bool, error) {
	for _, again := range readers {
		if same, err := again(); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// attached is what is on all tcx hooks now, on a thread in the namespace, if that can be told.
func (w *Watcher) attached() (digest uint64, known bool) {
	if w.hooks == nil {
		return 0, false
	}
	digest, err := w.hooks.digest()
	return digest, err == nil
}

// sameHooks tells whether the same programs of others are on devices' tcx hooks. Each is asked only
// where something has changed on any: ours, or at a device of no path, make no difference.
func (w *Watcher) sameHooks(scans []*readings) (bool, error) {
	now, known := w.attached()
	for _, rs := range scans {
		if known && rs.known && rs.attached == now {
			continue
		}
		if same, err := allSame(rs.hooks); !same || err != nil {
			return false, err
		}
		rs.attached, rs.known = now, known
	}
	return true, nil
}

// Poll tells whether what makes no event is otherwise than the last Check,
// CheckIngress or BridgeCalls saw it, or cannot be read; the reason is then in err. It is true
// before the first scan, too.
//
// It reads again the programs on tcx hooks, new BPF links, small files (settings,
// legacy tables, connection tracking, IPVS) and RPS. It lists no devices, for which
// reason it does not see what changes at the pod's end, nor new queues of a NIC: they
// take a scan. It takes some ten files and one run of a program, 0.13 ms for one pod as for fifty
// as measured (BenchmarkPoll). Without Hooks, and where something has changed on any
// hook there, it takes two system calls for each device of these scans, too, each of which
// asks for the kernel's lock on all devices.
func (w *Watcher) Poll() (changed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return true, errors.New("the network namespace is no longer watched")
	}
	if !w.paths.made && !w.nics.made && !w.calls.made {
		return true, nil
	}
	scans := []*readings{&w.paths, &w.nics, &w.calls}
	unchanged := true
	err = w.thread.Do(func() (err error) {
		if unchanged, err = w.sameHooks(scans); !unchanged || err != nil {
			return err
		}
		for _, rs := range scans {
			if unchanged, err = allSame(rs.again); !unchanged || err != nil {
				return err
			}
		}
		return nil
	})
	return !unchanged || err != nil, err
}
