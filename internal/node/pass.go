// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/netns"
)

// pass is one scan. It runs on a thread of its own, which it moves from
// namespace to namespace; every namespace is identified anew by its cookie.
type pass struct {
	s        *Scanner
	full     bool // scan every namespace, not only those that are new or ours
	walked   int  // how far namespaces without names were searched for
	at       int  // descriptor of the namespace that the thread is in
	home     *space
	order    []*space
	byInode  map[uint64]*space
	unopened map[uint64]error // namespaces that could not be opened, by inode
	// elsewhere counts tunnels that other namespaces' NICs carry.
	elsewhere int
	again     bool // something may be ready soon of which no event will tell
	snap      Snapshot
}

const (
	walkedNone = iota
	walkedProcs
	walkedFDs
)

func (p *pass) skip(d Dev, format string, args ...any) {
	p.skipPart(PodPart, d, format, args...)
}

func (p *pass) skipPart(part Part, d Dev, format string, args ...any) {
	p.snap.Skipped = append(p.snap.Skipped, Skip{d, fmt.Sprintf(format, args...), part})
}

func (p *pass) close() {
	for _, sp := range p.order {
		if sp.c != nil {
			sp.c.Close()
		}
		sp.h.Close()
	}
}

func (p *pass) run(ctx context.Context) error {
	h, err := netns.OfPath(p.s.homePath)
	if err != nil {
		return err
	}
	if err := p.adopt(h, p.s.homePath, netns.Mount{}); err != nil {
		h.Close()
		return err
	}
	p.home = p.order[0]
	for _, m := range p.s.mounts.all() {
		p.add(m.Path(), m.Inode, m)
	}
	p.magic(p.s.homeKnownAs)
	if !p.remembered() || p.full {
		p.procs()
	}
	if !p.watched() {
		p.descriptors()
	}
	// Examining one namespace can bring others to light.
	for i := 0; i < len(p.order); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		sp := p.order[i]
		if err := p.examine(sp); err != nil {
			if sp == p.home {
				return err
			}
			if p.served(sp.itself(), err) {
				return err
			}
			p.s.wantFull.Store(true) // and scan again next time
			p.gone(sp.path, err)
			sp.ours, sp.tunnels = nil, false
		}
	}
	for _, k := range p.s.known {
		if err := p.unopened[k.inode]; p.byInode[k.inode] == nil && p.served(k.itself(), err) {
			return err
		}
	}
	if err := p.underlays(); err != nil {
		return err
	}
	for _, sp := range p.order {
		if len(sp.ours) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.pods(sp); err != nil {
			if p.served(sp.itself(), err) {
				return err
			}
			p.gone(sp.path, err)
		}
	}
	for _, sp := range p.order {
		if err := p.stacked(sp); err != nil {
			p.gone(sp.path, err)
		}
	}
	p.sort()
	return nil
}

// patience is for how long scans fail because what the last one found cannot be read. Then it is left out, so that
// what stays unreadable does not keep the others from being served.
const patience = time.Minute

// served reports whether the scan is worth nothing without what could not be read: the last one found it, and it has
// not ended. Its programs and settings would be taken from it because files or memory are short for a moment.
func (p *pass) served(key DevKey, err error) bool {
	if err == nil || ended(err) || !p.s.served[key] {
		return false
	}
	if p.s.failing.IsZero() {
		p.s.failing = time.Now()
	}
	return time.Since(p.s.failing) < patience
}

// watched reports whether the namespaces that we watch have been found. If
// only we hold one, it is time to let go of it.
func (p *pass) watched() bool {
	for cookie := range p.s.watches {
		if !slices.ContainsFunc(p.order, func(sp *space) bool { return sp.cookie == cookie }) {
			return false
		}
	}
	return true
}

// examine lists the devices of a namespace that may have tunnels of ours and
// finds the namespaces that such a one leads to.
func (p *pass) examine(sp *space) error {
	_, seen := p.s.known[sp.cookie]
	if sp != p.home && seen && !p.full && !sp.tunnels && len(sp.stacks) == 0 {
		return nil
	}
	if err := p.dial(sp); err != nil {
		return err
	}
	if err := p.list(sp); err != nil {
		return err
	}
	sp.tunnels = len(sp.ours) > 0
	if sp != p.home && !sp.tunnels {
		return nil
	}
	// What changes after the list was read must cause an event, so that a
	// namespace is listed again when the watch on it is new.
	fresh, err := p.watch(sp)
	if err != nil {
		return err
	}
	if fresh && sp != p.home {
		if err := p.list(sp); err != nil {
			return err
		}
	}
	return p.resolve(sp)
}

func (p *pass) list(sp *space) error {
	var err error
	if sp.links, err = sp.c.links(); err != nil {
		return err
	}
	sp.ours, sp.vlans, sp.stacks = nil, nil, nil
	homeID := -1 // what LowerNSID is for home
	for _, l := range sp.links {
		if stacks(l.Kind) && l.LowerNSID != -1 {
			sp.stacks = append(sp.stacks, l)
		}
		if l.tunnel == nil && l.Kind != "vlan" {
			continue
		}
		if sp != p.home && homeID == -1 && l.LowerNSID != -1 {
			if homeID, err = sp.c.nsidOf(p.home.h.FD()); err != nil {
				return err
			}
		}
		// In other namespaces, -1 is what sends and receives there.
		onHome := l.LowerNSID == homeID && (sp == p.home || homeID != -1)
		switch {
		case l.Kind == "vlan":
		case onHome:
			sp.ours = append(sp.ours, l)
		default:
			p.elsewhere++
		}
	}
	if sp == p.home || homeID != -1 {
		sp.vlans = vlansOn(sp.links, homeID)
	}
	return nil
}

// resolve finds out which namespaces the ids mean that this one has for
// others. It searches wider when an id stays unknown: first all processes, then
// everything that processes hold open.
func (p *pass) resolve(sp *space) error {
	ids, err := sp.c.nsids()
	if err != nil {
		return err
	}
	if err := p.ask(sp); err != nil {
		return err
	}
	lacks := func() (any bool) {
		for _, id := range ids {
			any = p.lacks(sp, id) || any
		}
		return any
	}
	for lacks() && p.walked < walkedFDs {
		if p.walked == walkedNone {
			p.procs()
		} else {
			p.descriptors()
		}
		if err := p.ask(sp); err != nil {
			return err
		}
	}
	if lacks() {
		p.again = true // the search goes on
	}
	return nil
}

// ask looks up the ids of the namespaces found since it was last asked.
func (p *pass) ask(sp *space) error {
	for ; sp.asked < len(p.order); sp.asked++ {
		o := p.order[sp.asked]
		id, err := sp.c.nsidOf(o.h.FD())
		if err != nil {
			return err
		}
		if id != -1 { // it can have one for itself, too
			sp.ids[id] = o
		}
	}
	return nil
}

// watch makes changes in the namespace cause events from now on.
func (p *pass) watch(sp *space) (fresh bool, err error) {
	w := p.s.watches[sp.cookie]
	if w == nil {
		if err := p.enter(sp); err != nil {
			return false, err
		}
		if w, err = p.s.watchHere(sp.cookie); err != nil {
			return false, err
		}
		p.s.watches[sp.cookie] = w
		fresh = true
	}
	p.s.watchHolder(w, sp.known)
	return fresh, nil
}

// itself is the namespace among what is served.
func (k *known) itself() DevKey { return DevKey{k.cookie, 0} }

// dev names a device of the space.
func (sp *space) dev(l *link) Dev { return Dev{sp.cookie, l.Index, l.Name} }
