// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/neighbour"
	"github.com/overlane/overlane/internal/node"
)

// theirs are the devices whose packets a foreign dataplane decides about, each with
// the reason for which steering and aggregation leave it alone.
//
// The programs of such a dataplane read hash and tc_index of a packet, on any of the devices
// that it crosses, and both are what overlane's tcx programs write: Cilium keeps flags in the
// low bits of tc_index, where a carrier has its slot's number. A packet
// that theirs take no program behind them sees. And what aggregation joins it would have to cut up again where it
// rewrites headers. Neither in front of nor behind such programs could overlane's be without
// changing what they see, so they are nowhere on that path: whatever shares the NIC is left
// alone with it.
type theirs map[node.DevKey]string

// looker remembers names from one look to the next.
var looker struct {
	sync.Mutex
	neighbour.Looker
}

// dataplanes looks for them on the underlays, the tunnels and the host ends of the pods. A
// pod has its reason on its own end, where its settings are.
func dataplanes(s Looker, snap node.Snapshot) theirs {
	hooks := lookAtHooks(s, snap)
	list := theirs{}
	says := func(on node.Dev) string {
		h := hooks[on.Key()]
		if h.err != nil {
			return fmt.Sprintf("left alone: programs of others on %s could not be looked for: %v", on.Name, h.err)
		}
		p, ok := h.Dataplane()
		if !ok {
			return ""
		}
		return fmt.Sprintf("left alone: %s is on its way: %s (program %d) at %s of %s goes by what steering and aggregation change in a packet; priority leaves that as it is, and remains possible",
			p.Owner(), p.Name, p.ID, p.Hook, on.Name)
	}
	note := func(key node.DevKey, reason string) {
		if reason != "" && list[key] == "" {
			list[key] = reason
		}
	}
	for _, u := range snap.Underlays {
		note(u.Key(), says(u.Dev))
	}
	for _, t := range snap.Tunnels {
		note(t.Key(), says(t.Dev))
	}
	// Which pod a packet is for is not known where it begins to be steered.
	for _, p := range snap.Pods {
		for _, t := range p.Tunnels {
			note(t.Key(), says(p.Host))
		}
	}
	for _, u := range snap.Underlays {
		for _, r := range u.Receivers {
			note(u.Key(), says(r.Dev))
		}
	}
	// A program on a NIC would see all that comes by it. Tunnels may have several.
	for known := -1; known != len(list); {
		known = len(list)
		for _, t := range snap.Tunnels {
			for _, u := range t.Underlays {
				note(u.Key(), list[t.Key()])
				note(t.Key(), list[u.Key()])
			}
		}
	}
	for _, u := range snap.Underlays {
		for _, r := range u.Receivers {
			note(r.Key(), list[u.Key()])
		}
	}
	for _, p := range snap.Pods {
		reason := ""
		for _, t := range p.Tunnels {
			if reason = list[t.Key()]; reason == "" {
				break // by this one it is served
			}
		}
		note(p.Peer.Key(), reason)
	}
	return list
}

// hooksOf is what was found on a device.
type hooksOf struct {
	neighbour.Hooks
	err error
}

func lookAtHooks(s Looker, snap node.Snapshot) map[node.DevKey]hooksOf {
	bySpace := map[uint64][]int{}
	add := func(d node.Dev) { bySpace[d.NetnsCookie] = append(bySpace[d.NetnsCookie], d.Ifindex) }
	for _, u := range snap.Underlays {
		add(u.Dev)
		for _, r := range u.Receivers {
			if !r.Same(u.Dev) {
				add(r.Dev)
			}
		}
	}
	for _, t := range snap.Tunnels {
		add(t.Dev)
	}
	for _, p := range snap.Pods {
		add(p.Host)
	}
	looker.Lock()
	defer looker.Unlock()
	found := map[node.DevKey]hooksOf{}
	for cookie, devs := range bySpace {
		ns, err := s.Namespace(cookie)
		if errors.Is(err, node.ErrGone) {
			continue
		}
		var hooks map[int]neighbour.Hooks
		if err == nil {
			err = errors.Join(ns.Visit(func() (err error) {
				hooks, err = looker.Look(devs)
				return err
			}), ns.Close())
		}
		for _, dev := range devs {
			found[node.DevKey{NetnsCookie: cookie, Ifindex: dev}] = hooksOf{hooks[dev], err}
		}
	}
	return found
}

const (
	// enoughPackets out of tunnels tell that a program which has seen none does not see them.
	enoughPackets = 100
	// seesWithin is how long these are waited for. Without traffic no packet is overtaken.
	seesWithin = 300 * time.Millisecond
)

// sees makes sure that the programs on the underlays see what goes through the tunnels: a
// foreign program in front of them may take it. Masks would then spread flows whose order no
// program guards.
func (p *pipeline) sees(ctx context.Context, snap node.Snapshot) error {
	front := p.inFront(snap)
	if p.layout.Split || front == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, seesWithin)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	hook, tunnels, err := p.packets()
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		h, t, err := p.packets()
		switch {
		case err != nil || h != hook:
			return err
		case t-tunnels >= enoughPackets:
			return fmt.Errorf("%s takes the packets before overlane's program sees them", front)
		}
	}
}

// packets counts those that the programs on the underlays saw go to tunnels, and those that
// came out of these.
func (p *pipeline) packets() (hook, tunnels uint64, err error) {
	c, err := p.dp.Counters()
	if err != nil {
		return 0, 0, err
	}
	cores, err := p.dp.Cores()
	for _, core := range cores {
		tunnels += core.Packets[datapath.Tunnel]
	}
	return c.Overlay, tunnels, err
}

// inFront names a foreign program on the way of packets to ours, empty if there is
// none.
func (p *pipeline) inFront(snap node.Snapshot) string {
	nics := node.Snapshot{Underlays: slices.DeleteFunc(slices.Clone(snap.Underlays), func(u node.Underlay) bool { return p.left[u.Key()] })}
	hooks := lookAtHooks(p.scanner, nics)
	for _, u := range nics.Underlays {
		for _, other := range hooks[u.Key()].Programs {
			if other.Hook == "tcx ingress" && !p.dp.Owns(other.ID) {
				return fmt.Sprintf("%s at %s of %s", neighbour.Say(other.ID), other.Hook, u.Name)
			}
		}
	}
	return ""
}
