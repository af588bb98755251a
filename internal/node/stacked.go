// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Stacked is a container's device that sits on a tunnel, or on the bridge of one: a macvlan or an ipvlan. It has no end on
// the host's side, and no receive queue in front of it that packets could be moved from.
type Stacked struct {
	Dev
	Kind    string
	MTU     int
	On      Dev
	Tunnels []Dev // that lead to it, sorted
}

// Alone says which mechanisms leave it alone, and why.
func (d Stacked) Alone() string {
	return fmt.Sprintf("left alone: its device is a %s on %s and has no end on the host's side, which express, the pod stage of pipeline and mode sync of priority need; aggregate, priority and the tunnel stage serve it", d.Kind, d.On.Name)
}

// stacks tells of a kind of devices that share the frames of another one.
func stacks(kind string) bool {
	return kind == "macvlan" || kind == "ipvlan" || kind == "macvtap" || kind == "ipvtap"
}

// stacked reports the devices of a namespace that sit on tunnels elsewhere, or on their bridges.
func (p *pass) stacked(sp *space) error {
	if len(sp.stacks) == 0 {
		return nil
	}
	if err := p.dial(sp); err != nil {
		return err
	}
	for _, host := range p.order {
		if host == sp || len(host.ours) == 0 {
			continue
		}
		id, err := sp.c.nsidOf(host.h.FD())
		if err != nil {
			return err
		}
		for _, l := range sp.stacks {
			on := host.links[l.Lower]
			if id == -1 || l.LowerNSID != id || on == nil {
				continue
			}
			if tunnels := beneath(host, on); len(tunnels) > 0 {
				p.snap.Stacked = append(p.snap.Stacked, Stacked{sp.dev(l), l.Kind, l.MTU, host.dev(on), tunnels})
			}
		}
	}
	return nil
}

// beneath returns the tunnels whose frames come by a device: itself, the ports of a bridge, or what a VLAN is on.
func beneath(sp *space, l *link) []Dev {
	for range len(sp.links) { // the kernel has no loops, but devices may change while they are listed
		if l.Kind != "vlan" || l.LowerNSID != -1 || sp.links[l.Lower] == nil {
			break
		}
		l = sp.links[l.Lower]
	}
	var list []Dev
	for _, t := range sp.ours {
		if t == l || l.Kind == "bridge" && t.Master == l.Index {
			list = append(list, sp.dev(t))
		}
	}
	return list
}

// Known are the namespaces that the last scan saw, or Other has found since.
func (s *Scanner) Known() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.known))
}

// other is which namespace an id means, 0 if it was searched for in vain.
type other struct {
	cookie uint64
	since  time.Time
}

// Other is the namespace that has an id in another one, 0 if it was not found. It fails with ErrGone if it has ended, and
// with it the device in it that is asked about.
func (s *Scanner) Other(cookie uint64, id, dev int) (uint64, error) {
	key := nsKey{cookie, id}
	if there, is := s.asked(key); is {
		return there, nil
	}
	s.scanning.Lock()
	defer s.scanning.Unlock()
	err := s.home.Visit(func() error {
		p := &pass{s: s, byInode: map[uint64]*space{}, unopened: map[uint64]error{}}
		defer p.close()
		return p.other(key, dev)
	})
	if err != nil {
		return 0, fmt.Errorf("find the network namespace with the id %d in %d: %w", id, cookie, err)
	}
	return s.others[key].cookie, nil
}

// asked is what was found when an id was asked for last, if that is still so.
func (s *Scanner) asked(key nsKey) (there uint64, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, asked := s.others[key]
	_, known := s.known[o.cookie]
	return o.cookie, asked && (known || o.cookie == 0 && time.Since(o.since) < walkEvery)
}

// other looks up what the ids of a namespace mean, and searches for the one that is asked for as scans do.
func (p *pass) other(key nsKey, dev int) error {
	for _, m := range p.s.mounts.all() {
		p.add(m.Path(), m.Inode, m)
	}
	p.magic(p.s.homePath)
	p.remembered()
	i := slices.IndexFunc(p.order, func(sp *space) bool { return sp.cookie == key.cookie })
	if i < 0 {
		return ErrGone
	}
	sp := p.order[i]
	if err := p.dial(sp); err != nil {
		return err
	}
	for _, search := range []func(){func() {}, p.procs, p.descriptors} {
		search()
		if err := p.ask(sp); err != nil {
			return err
		}
		if sp.ids[key.id] != nil {
			break
		}
		// One that ends is not found, although its devices may still be listed.
		if _, err := sp.c.LinkIn(key.id, dev); errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
			return ErrGone
		}
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.others[key] = other{since: time.Now()}
	for id, o := range sp.ids {
		p.s.others[nsKey{key.cookie, id}] = other{cookie: o.cookie}
		if p.s.known[o.cookie] == nil { // it may have tunnels
			p.s.known[o.cookie] = o.known
			p.s.wantFull.Store(true)
			p.s.poke()
		}
	}
	return nil
}
