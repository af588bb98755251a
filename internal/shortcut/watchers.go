// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/node"
)

// PollEvery is how often to poll for what makes no event.
const PollEvery = 50 * time.Millisecond

// RefreshPart is how much earlier than the bridge forgets a sender it has to see it again.
const RefreshPart = 4

// Tagged is what a device takes beyond its MTU (is_skb_forwardable).
const Tagged = 14 + 4

// Watchers watch the namespaces in which frames would pass by what foreign programs have put there.
type Watchers struct {
	scanner  *node.Scanner
	own      func(progID uint32) bool
	hooks    *Hooks              // nil: each device is asked
	watchers map[uint64]*Watcher // by namespace
	changed  chan struct{}       // what they say may be otherwise now
	polled   time.Time           // while the daemon waits
}

// NewWatchers finds namespaces by a scanner. own tells of BPF programs that they are overlane's. hooks reads tcx
// hooks; nil: each device is asked, which is enough for one scan.
func NewWatchers(s *node.Scanner, own func(progID uint32) bool, hooks *Hooks) *Watchers {
	return &Watchers{scanner: s, own: own, hooks: hooks, watchers: map[uint64]*Watcher{}, changed: make(chan struct{}, 1)}
}

// Of returns the one of a namespace.
func (ws *Watchers) Of(cookie uint64) (*Watcher, error) {
	if w := ws.watchers[cookie]; w != nil {
		return w, nil
	}
	ns, err := ws.scanner.Namespace(cookie)
	if err != nil {
		return nil, err
	}
	w, err := Watch(ns, ws.own, ws.hooks)
	if err != nil {
		return nil, err
	}
	ws.watchers[cookie] = w
	go func() {
		for range w.Events() {
			poke(ws.changed)
		}
	}()
	return w, nil
}

// Each calls do for each of these namespaces but those that have gone, and lets go of all others but keep: to be watched
// keeps one alive.
func (ws *Watchers) Each(cookies []uint64, do func(cookie uint64, w *Watcher), keep ...uint64) error {
	var errs []error
	for _, cookie := range cookies {
		w, err := ws.Of(cookie)
		if err == nil {
			do(cookie, w)
		} else if !errors.Is(err, node.ErrGone) {
			errs = append(errs, err)
		}
	}
	needed := func(cookie uint64) bool { return slices.Contains(cookies, cookie) || slices.Contains(keep, cookie) }
	return errors.Join(append(errs, ws.Keep(needed))...)
}

// Check checks each path from a tunnel to a pod; of namespaces that have gone there are no verdicts. It lets go of all
// other namespaces but keep.
func (ws *Watchers) Check(snap node.Snapshot, keep ...uint64) (verdicts []Verdict, err error) {
	var cookies []uint64
	by := map[uint64][]Path{}
	for _, pod := range snap.Pods {
		for _, t := range pod.Tunnels {
			if by[t.NetnsCookie] == nil {
				cookies = append(cookies, t.NetnsCookie)
			}
			by[t.NetnsCookie] = append(by[t.NetnsCookie], Path{Tunnel: t, Host: pod.Host})
		}
	}
	check := func(cookie uint64, w *Watcher) { verdicts = append(verdicts, w.Check(by[cookie])...) }
	err = ws.Each(cookies, check, keep...)
	return verdicts, err
}

// PastHostEnds says by the host ends of pods what packets would skip that go straight to the pods from there; empty: nothing.
// It lacks those of namespaces that cannot be read now, and lets go of all other namespaces.
func (ws *Watchers) PastHostEnds(snap node.Snapshot) map[node.DevKey]string {
	by := map[uint64][]node.Dev{}
	for _, pod := range snap.Pods {
		by[pod.Host.NetnsCookie] = append(by[pod.Host.NetnsCookie], pod.Host)
	}
	reasons := map[node.DevKey]string{}
	_ = ws.Each(slices.Collect(maps.Keys(by)), func(cookie uint64, w *Watcher) {
		for i, why := range w.PastHostEnds(by[cookie]) {
			reasons[by[cookie][i].Key()] = why
		}
	})
	return reasons
}

// Poll tells whether something that makes no event may be otherwise than at the last scan.
func (ws *Watchers) Poll() bool {
	for _, w := range ws.watchers {
		if changed, err := w.Poll(); changed || err != nil {
			return true
		}
	}
	return false
}

// Changed tells that what they say may be otherwise now; nil without watchers.
func (ws *Watchers) Changed() <-chan struct{} {
	if ws == nil {
		return nil
	}
	return ws.changed
}

// Stale tells while the daemon waits for something else, and takes no events, whether what they
// say may be otherwise now.
func (ws *Watchers) Stale(now time.Time) bool {
	select {
	case <-ws.changed:
		return true
	default:
	}
	if now.Sub(ws.polled) < PollEvery {
		return false
	}
	ws.polled = now
	return ws.Poll()
}

// Keep lets go of all other namespaces: to be watched keeps one alive.
func (ws *Watchers) Keep(needed func(cookie uint64) bool) error {
	var errs []error
	for cookie, w := range ws.watchers {
		if !needed(cookie) {
			errs = append(errs, w.Close())
			delete(ws.watchers, cookie)
		}
	}
	return errors.Join(errs...)
}

// Close lets go of all of them.
func (ws *Watchers) Close() error { return ws.Keep(func(uint64) bool { return false }) }
