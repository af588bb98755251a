// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"errors"
	"fmt"
	"sync"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// Namespaces finds network namespaces.
type Namespaces interface {
	Namespace(cookie uint64) (*netns.Handle, error)
}

// scanner remembers names from one scan to the next.
var scanner struct {
	sync.Mutex
	Scanner
}

// Dataplanes are the devices whose packets a foreign dataplane decides about, each with
// the reason for which steering and aggregation leave it alone. They are looked for on the underlays, the tunnels and
// the host ends of the pods. A pod has its reason on its own end, where its settings are.
//
// The programs of such a dataplane read hash and tc_index of a packet, on any of the devices
// that it crosses, and both are what overlane's tcx programs write: Cilium keeps flags in the
// low bits of tc_index, where a tagged packet has its slot's number. A packet
// that theirs take no program behind them sees. And what aggregation joins it would have to cut up again where it
// rewrites headers. Neither in front of nor behind such programs could overlane's be without
// changing what they see, so they are nowhere on that path: whatever shares the NIC is left
// alone with it.
func Dataplanes(s Namespaces, snap node.Snapshot) map[node.DevKey]string {
	return dataplanes(s, snap, loaded)
}

// loaded tells whether a program of such a dataplane is anywhere on the machine.
func loaded() (bool, error) {
	scanner.Lock()
	defer scanner.Unlock()
	return scanner.dataplane()
}

// dataplanes asks no device where no such program is loaded: each answer waits for all that changes devices, and there
// may be hundreds.
func dataplanes(s Namespaces, snap node.Snapshot, loaded func() (bool, error)) map[node.DevKey]string {
	list := map[node.DevKey]string{}
	if any, err := loaded(); err == nil && !any {
		return list
	}
	hooks := On(s, snap)
	says := func(on node.Dev) string {
		h := hooks[on.Key()]
		if h.Err != nil {
			return fmt.Sprintf("left alone: programs of others on %s could not be looked for: %v", on.Name, h.Err)
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

// Found is what was found on a device.
type Found struct {
	Hooks
	Err error
}

// On checks the devices that overlay packets cross: underlays, tunnels and the host ends of the pods.
func On(s Namespaces, snap node.Snapshot) map[node.DevKey]Found {
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
	scanner.Lock()
	defer scanner.Unlock()
	found := map[node.DevKey]Found{}
	for cookie, devs := range bySpace {
		ns, err := s.Namespace(cookie)
		if errors.Is(err, node.ErrGone) {
			continue
		}
		var hooks map[int]Hooks
		if err == nil {
			hooks, err = netns.Read(ns, func() (map[int]Hooks, error) { return scanner.Scan(devs) })
			err = errors.Join(err, ns.Close())
		}
		for _, dev := range devs {
			found[node.DevKey{NetnsCookie: cookie, Ifindex: dev}] = Found{hooks[dev], err}
		}
	}
	return found
}
