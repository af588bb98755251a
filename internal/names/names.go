// SPDX-License-Identifier: Apache-2.0

// Package names says what devices and network namespaces are called by people.
package names

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shell"
)

// Names says what devices and namespaces are to people, in status, plan and doctor alike: by container, pod and
// network, where the kernel knows numbers.
type Names struct {
	home    uint64
	places  map[uint64]node.Place
	tunnels map[node.DevKey]node.Tunnel
	spoken  map[uint64]bool // namespaces that a snapshot names
}

// New looks at which processes are in the namespaces now.
func New(s *node.Scanner, snap node.Snapshot) Names {
	n := Names{home: s.Home(), places: s.Places(), tunnels: map[node.DevKey]node.Tunnel{}, spoken: map[uint64]bool{}}
	for _, t := range snap.Tunnels {
		n.tunnels[t.Key()] = t
		n.spoken[t.NetnsCookie] = true
	}
	for _, p := range snap.Pods {
		n.spoken[p.Host.NetnsCookie], n.spoken[p.Peer.NetnsCookie] = true, true
	}
	for _, p := range snap.Stacked {
		n.spoken[p.NetnsCookie], n.spoken[p.On.NetnsCookie] = true, true
	}
	for _, sk := range snap.Skipped {
		n.spoken[sk.Dev.NetnsCookie] = true
	}
	return n
}

// Places are those of the overlay's other namespaces, in the order of their cookies.
func (n Names) Places() []node.Place {
	places := []node.Place{}
	for _, cookie := range slices.Sorted(maps.Keys(n.places)) {
		if cookie != n.home && n.spoken[cookie] {
			places = append(places, n.places[cookie])
		}
	}
	return places
}

// Place is what a namespace is.
func (n Names) Place(cookie uint64) node.Place { return n.places[cookie] }

// Network is the overlay network that a tunnel is of: as Docker calls it, or as its device is called.
func (n Names) Network(t node.Tunnel) string { return cmp.Or(n.places[t.NetnsCookie].Network, t.Name) }

// Overlay is the first of the tunnels that lead to a pod.
func (n Names) Overlay(tunnels []node.Dev) (t node.Tunnel, ok bool) {
	for _, dev := range tunnels {
		if t, ok = n.tunnels[dev.Key()]; ok {
			return t, true
		}
	}
	return t, false
}

// Pod is what people call a pod: its container or what else is known of its namespace.
func (n Names) Pod(p node.Pod) string {
	return cmp.Or(n.places[p.Peer.NetnsCookie].String(), p.Host.Name)
}

// Device is a device in a sentence.
func (n Names) Device(name string, cookie uint64) string {
	if cookie == n.home {
		return name
	}
	if at := n.at(cookie); at != "" {
		return name + " of " + at
	}
	return name + " in a network namespace without a name"
}

// at is a namespace in a sentence, empty if nothing is known of it.
func (n Names) at(cookie uint64) string {
	p := n.places[cookie]
	switch s := p.String(); {
	case s == "":
		return ""
	case s == p.Container:
		return "container " + s
	case p.Balancer:
		return "load balancer " + strconv.Quote(s)
	case s == p.Mount:
		return "network namespace " + strconv.Quote(s)
	default:
		return s
	}
}

// numbered finds what plan.Target and node.Dev say of themselves.
var numbered = regexp.MustCompile(`(\S+) \(ifindex [0-9]+ in network namespace ([0-9]+)\)|(\S+)\(([0-9]+)/[0-9]+\)|\bnetwork namespace ([0-9]+)\b`)

// Text is a sentence with names in the place of numbers. A command at its end stays as it is.
func (n Names) Text(s string) string {
	sentence, command := shell.Cut(s)
	return n.text(sentence) + command
}

func (n Names) text(s string) string {
	return numbered.ReplaceAllStringFunc(s, func(found string) string {
		m := numbered.FindStringSubmatch(found)
		cookie, err := strconv.ParseUint(cmp.Or(m[2], m[4], m[5]), 10, 64)
		if _, known := n.places[cookie]; err != nil || !known && cookie != n.home {
			return found
		}
		if m[5] == "" {
			return n.Device(cmp.Or(m[1], m[3]), cookie)
		}
		switch at := n.at(cookie); {
		case cookie == n.home:
			return "this network namespace"
		case at == "":
			return "a network namespace without a name"
		default:
			return "the network namespace of " + at
		}
	})
}
