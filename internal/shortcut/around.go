// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/shell"
)

// Passage is how joined datagrams come through a namespace.
type Passage struct {
	Devs  []Passed
	Ports []uint16 // of the tunnels whose outer datagrams are received here: what is inside is joined
}

// Around is what a namespace is to others that joined datagrams may come to.
type Around struct {
	Devs  []Passed // by which they come and go, and what they pass on the way
	Sends bool     // they may leave inside of what the host sends by a tunnel
	Ends  []End    // by which they go on
	Over  []Over   // devices here that get what comes by devices elsewhere
}

// End is a device whose other end is in another namespace.
type End struct {
	Name           string
	Ifindex, Other int // its number here, and the other end's there
	NSID           int // of that namespace
}

// Over is a device on one of another namespace: a macvlan, ipvlan or VLAN.
type Over struct {
	Name           string
	Ifindex, Lower int
	NSID           int // of the namespace of Lower
}

// way finds where datagrams go in a namespace.
type way struct {
	links    map[int]linkInfo
	sorted   []int
	over     map[int][]int // devices on a device here
	ports    map[int][]int // what is part of a device
	devs     []Passed
	at       map[int]int // where devs has a device
	todo     []int
	entered  map[int]bool
	forwards func(name string) bool
}

// around finds the devices that packets pass before or after those that they come in by, and where these go on: to the
// ports of a bridge, and wherever the host may route them. But not back by a veth that they come in by, as that is
// where they have been.
func around(in Passage, links map[int]linkInfo, forwards func(name string) bool) Around {
	w := &way{links: links, sorted: slices.Sorted(maps.Keys(links)), over: map[int][]int{}, ports: map[int][]int{}, at: map[int]int{}, entered: map[int]bool{}, forwards: forwards}
	var a Around
	for _, index := range w.sorted {
		l := links[index]
		if l.Master != 0 {
			w.ports[l.Master] = append(w.ports[l.Master], index)
		}
		switch {
		case l.lower == 0 || bystander(l.Kind):
		case l.nsid < 0:
			w.over[l.lower] = append(w.over[l.lower], index)
		default:
			a.Over = append(a.Over, Over{l.Name, index, l.lower, l.nsid})
		}
	}
	for _, d := range in.Devs {
		w.entered[d.Ifindex] = d.In
		w.add(d)
	}
	w.follow()
	// What a host routes is asked only where that makes a difference.
	on := slices.DeleteFunc(slices.Clone(w.sorted), func(index int) bool { return !w.leads(index) })
	encapsulates := len(in.Ports) > 0 || slices.ContainsFunc(w.sorted, func(index int) bool { return links[index].Up && tunnels(links[index].Kind) })
	if (len(on) > 0 || encapsulates) && w.routes() {
		a.Sends = encapsulates
		for _, index := range on {
			w.pass(index, false, true)
		}
		w.follow()
	}
	a.Devs = w.devs
	for _, d := range w.devs {
		if l := links[d.Ifindex]; d.Out && pair(l.Kind) && l.nsid >= 0 && !w.entered[d.Ifindex] {
			a.Ends = append(a.Ends, End{d.Name, d.Ifindex, l.lower, l.nsid})
		}
	}
	return a
}

// pair tells of a kind of devices that hand what they send to another one.
func pair(kind string) bool { return kind == "veth" || kind == "netkit" }

// tunnels tells of a kind of devices that send packets in others.
func tunnels(kind string) bool { return bystander(kind) && !pair(kind) && kind != "vxcan" }

// switches tells of a kind of devices whose ports pass packets to each other.
func switches(kind string) bool { return kind == "bridge" || kind == "openvswitch" }

func (w *way) pass(index int, in, out bool) {
	if l, ok := w.links[index]; ok {
		w.add(Passed{Ifindex: index, Name: l.Name, In: in, Out: out})
	}
}

func (w *way) add(d Passed) {
	d.Name = cmp.Or(d.Name, w.links[d.Ifindex].Name)
	i, known := w.at[d.Ifindex]
	switch {
	case !known:
		w.at[d.Ifindex] = len(w.devs)
		w.devs = append(w.devs, d)
	case d.In && !w.devs[i].In || d.Out && !w.devs[i].Out:
		w.devs[i].In, w.devs[i].Out = w.devs[i].In || d.In, w.devs[i].Out || d.Out
	default:
		return
	}
	w.todo = append(w.todo, d.Ifindex)
}

// follow goes through the devices that there is something new of.
func (w *way) follow() {
	for len(w.todo) > 0 {
		d := w.devs[w.at[w.todo[0]]]
		w.todo = w.todo[1:]
		self := w.links[d.Ifindex]
		here := self.lower != 0 && self.nsid < 0
		if d.In {
			w.pass(self.Master, true, true)
			if self.Kind == "vlan" && here {
				w.pass(self.lower, true, false)
			}
			for _, index := range w.over[d.Ifindex] {
				w.pass(index, true, false)
			}
		}
		if d.Out && here && (pair(self.Kind) || !bystander(self.Kind)) {
			w.pass(self.lower, pair(self.Kind), !pair(self.Kind))
		}
		for _, index := range w.ports[d.Ifindex] {
			switch {
			case switches(self.Kind) && !w.entered[index]: // not back to where it came from
				w.pass(index, false, true)
			case d.In && (self.Kind == "bond" || self.Kind == "team"):
				w.pass(index, true, false)
			}
		}
	}
}

// leads tells whether datagrams that are routed would go on by a device that they have not gone by.
func (w *way) leads(index int) bool {
	i, known := w.at[index]
	l := w.links[index]
	return l.Up && l.Master == 0 && l.Name != "lo" && !w.entered[index] && !(known && w.devs[i].Out)
}

// routes tells whether the host may send on what comes in.
func (w *way) routes() bool {
	return slices.ContainsFunc(w.devs, func(d Passed) bool { return d.In && w.links[d.Ifindex].Master == 0 && w.forwards(d.Name) })
}

// forwards tells whether the host routes what comes by a device of the calling thread's namespace.
func forwards(dev string) bool {
	for _, family := range []string{"ipv4", "ipv6"} {
		// What cannot be read may be on.
		if v, err := lines("/proc/sys/net/" + family + "/conf/" + dev + "/forwarding"); err != nil || len(v) > 0 && v[0] != "0" {
			return true
		}
	}
	return false
}

// machine says whether the program behind a device, most likely a virtual machine, gets joined datagrams as one packet. The
// kernel takes them apart for one that has not asked (tun_net_xmit, drivers/net/tun.c; tap_handle_frame,
// drivers/net/tap.c), and does not tell what one behind a macvtap has asked for.
func machine(l linkInfo, d Passed) (o Onlooker, err error) {
	const behind = "the program behind %s, most likely a virtual machine, %s joined datagrams as they are"
	switch {
	case d.In && (l.Kind == "macvtap" || l.Kind == "ipvtap"):
		return Onlooker{fmt.Sprintf(behind, d.Name, "may take"), shell.Command("ip -d link show dev %s", d.Name)}, nil
	case d.Out && l.Kind == "tun":
		features, err := ethtool.Features(d.Name)
		if err != nil || !features[ethtool.USO].Active {
			return o, err
		}
		return Onlooker{fmt.Sprintf(behind, d.Name, "takes") + " (" + ethtool.USO + ")", shell.Command("ethtool -k %s", d.Name)}, nil
	}
	return o, nil
}
