// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shortcut"
)

// judges watch the namespaces in which frames would pass by what others have put there.
type judges struct {
	scanner  *node.Scanner
	own      func(progID uint32) bool
	hooks    *shortcut.Hooks              // nil: each device is asked
	watchers map[uint64]*shortcut.Watcher // by namespace
	changed  chan struct{}                // what they say may be otherwise now
	glanced  time.Time                    // while the daemon waits
}

// newJudges are for one look; who looks again and again has the daemon's.
func newJudges(s *node.Scanner, own func(progID uint32) bool) *judges {
	return &judges{scanner: s, own: own, watchers: map[uint64]*shortcut.Watcher{}, changed: make(chan struct{}, 1)}
}

// newJudges are the daemon's, which share the program that reads tcx hooks.
func (d *Daemon) newJudges() *judges {
	if d.hooks == nil {
		var err error
		if d.hooks, err = shortcut.LoadHooks(); err != nil {
			d.log.Debug("each device is asked for its tcx hooks", "reason", err)
		}
	}
	j := newJudges(d.scanner, d.dp.Owns)
	j.hooks = d.hooks
	return j
}

// watcher returns the one of a namespace.
func (j *judges) watcher(cookie uint64) (*shortcut.Watcher, error) {
	if w := j.watchers[cookie]; w != nil {
		return w, nil
	}
	ns, err := j.scanner.Namespace(cookie)
	if err != nil {
		return nil, err
	}
	w, err := shortcut.Watch(ns, j.own, j.hooks)
	if err != nil {
		return nil, err
	}
	j.watchers[cookie] = w
	go func() {
		for range w.Events() {
			select {
			case j.changed <- struct{}{}:
			default: // the last one was not taken yet
			}
		}
	}()
	return w, nil
}

// glance tells whether something that makes no event may be otherwise than at the last look.
func (j *judges) glance() bool {
	for _, w := range j.watchers {
		if changed, err := w.Glance(); changed || err != nil {
			return true
		}
	}
	return false
}

// events tell that what they say may be otherwise now; nil without judges.
func (j *judges) events() <-chan struct{} {
	if j == nil {
		return nil
	}
	return j.changed
}

// stirred tells while the daemon waits for something else, and takes no events, whether what they
// say may be otherwise now.
func (j *judges) stirred(now time.Time) bool {
	select {
	case <-j.changed:
		return true
	default:
	}
	if now.Sub(j.glanced) < glanceEvery {
		return false
	}
	j.glanced = now
	return j.glance()
}

// glances is the time to glance, while something rests on what makes no event.
func (d *Daemon) glances(tick <-chan time.Time) <-chan time.Time {
	if !d.expr.glancing() && d.bridge.judges == nil {
		return nil
	}
	return tick
}

// glance looks for what makes no event.
func (d *Daemon) glance(ctx context.Context, now time.Time) error {
	var err error
	if d.bridge.judges != nil && d.bridge.judges.glance() {
		err = d.tryBridging(now)
	}
	if d.expr.glancing() {
		err = errors.Join(err, d.glanceExpress(ctx, now))
	}
	return err
}

// keep lets go of all other namespaces: to be watched keeps one alive.
func (j *judges) keep(needed func(cookie uint64) bool) error {
	var errs []error
	for cookie, w := range j.watchers {
		if !needed(cookie) {
			errs = append(errs, w.Close())
			delete(j.watchers, cookie)
		}
	}
	return errors.Join(errs...)
}

func (j *judges) close() error { return j.keep(func(uint64) bool { return false }) }
