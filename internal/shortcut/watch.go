// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/nlsock"
)

// gap is the least time between two events: a namespace with many pods has
// addresses learned all the time.
const gap = 50 * time.Millisecond

// Watcher checks one namespace, which it keeps alive: close it as soon as a
// scan of the node finds no tunnel there. Its methods may be called at the same
// time.
type Watcher struct {
	h      *netns.Handle
	thread *netns.Thread // in h
	cookie uint64
	own    func(progID uint32) bool
	hooks  *Hooks // nil: each device is asked

	mu     sync.Mutex // a check
	rtnl   *nlsock.Conn
	nft    nftables
	bpf    bpfLinks
	paths  readings // of the last Check
	nics   readings // of the last CheckIngress
	calls  readings // of the last BridgeCalls
	side   side
	files  files
	queued queued
	closed bool

	subs   []*os.File // subscriptions
	poked  chan struct{}
	events chan struct{}
	done   chan struct{}
	wg     sync.WaitGroup
}

// Watch takes over the handle of a namespace. own reports whether a BPF program
// is overlane's. hooks make Poll faster, and may be nil.
func Watch(h *netns.Handle, own func(progID uint32) bool, hooks *Hooks) (*Watcher, error) {
	w := &Watcher{
		h: h, own: own, hooks: hooks,
		poked: make(chan struct{}, 1), events: make(chan struct{}, 1), done: make(chan struct{}),
	}
	var err error
	if w.cookie, err = h.Cookie(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if w.thread, err = h.Thread(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	err = w.thread.Do(func() error {
		if w.rtnl, err = nlsock.Dial(unix.NETLINK_ROUTE, make([]byte, 1<<16)); err != nil {
			return err
		}
		return w.subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_TC)
	})
	w.wg.Go(w.pace)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch what forwards in a network namespace: %w", err), w.Close())
	}
	return w, nil
}

// Events tells that the next Check may decide otherwise than the last: that a
// device or a port of a bridge, an entry of a bridge's table, a qdisc, a filter
// or nftables have changed. Many changes make one event, the first of them at
// once. No event tells of settings (sysctl), of tcx and BPF links, of legacy
// tables and of what changes at the pod's end: call Check each second, too, and
// Poll where that is late. Once a NIC was checked, IPv4 addresses, default
// routes and rules, and IPsec policies are events as well.
func (w *Watcher) Events() <-chan struct{} { return w.events }

// FollowRules makes changes of nftables an event, if they are not yet.
func (w *Watcher) FollowRules() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errors.New("the network namespace is no longer watched")
	}
	return w.thread.Do(func() error {
		_, err := w.nftables(&readings{})
		return err
	})
}

// Close lets go of the namespace. The channel of Events is closed.
func (w *Watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	close(w.done)
	for _, f := range w.subs {
		f.Close()
	}
	w.wg.Wait()
	close(w.events)
	w.thread.Close()
	var err error
	if w.rtnl != nil {
		err = w.rtnl.Close()
	}
	return errors.Join(err, w.nft.close(), w.side.close(), w.files.close(), w.h.Close())
}

// dial opens a socket to a protocol, and joins a group of it, unless it has.
func (w *Watcher) dial(to **nlsock.Conn, protocol, group int) error {
	if *to != nil {
		return nil
	}
	c, err := nlsock.Dial(protocol, make([]byte, 1<<16))
	if err != nil {
		return err
	}
	if err := w.subscribe(protocol, group); err != nil {
		return errors.Join(err, c.Close())
	}
	*to = c
	return nil
}

// subscribe joins groups of a protocol in the calling thread's namespace.
func (w *Watcher) subscribe(protocol int, groups ...int) error {
	f, err := nlsock.Subscribe(protocol, 1<<20, groups...)
	if err != nil {
		return err
	}
	w.subs = append(w.subs, f)
	lost := func() { // changes that were lost count as a change
		w.queued.lost.Store(true)
		poke(w.poked)
	}
	w.wg.Go(func() {
		nlsock.Follow(f, lost, func(told iter.Seq[nlsock.Message]) {
			changed := false
			for m := range told {
				changed = changed || protocol != unix.NETLINK_ROUTE || matters(m)
				if protocol == unix.NETLINK_ROUTE && (m.Type == unix.RTM_NEWLINK || m.Type == unix.RTM_DELLINK) && len(m.Body) >= unix.SizeofIfInfomsg {
					w.queued.stale.Store(int(int32(nlsock.U32(m.Body[4:]))), true)
				}
			}
			if changed {
				poke(w.poked)
			}
		})
	})
	return nil
}

// matters leaves out the neighbours of IP, which come and go all the time, and of
// the routes, which may be many, all but the default ones.
func matters(m nlsock.Message) bool {
	switch m.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return len(m.Body) > 0 && m.Body[0] == unix.AF_BRIDGE
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return isDefault(m.Body)
	}
	return true
}

// poke makes a channel readable, unless it is.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // the last one was not taken yet
	}
}

// pace turns pokes into events, the first at once.
func (w *Watcher) pace() {
	for {
		select {
		case <-w.done:
			return
		case <-w.poked:
		}
		poke(w.events)
		select {
		case <-w.done:
			return
		case <-time.After(gap):
		}
	}
}
