// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shell"
)

// Level says how much a finding matters.
type Level uint8

// Levels, the worst first.
const (
	Broken Level = iota // packets are lost
	Slow                // packets cost more than they need to
	Note                // overlane leaves the device alone, or does less with it
)

func (l Level) String() string { return [...]string{"broken", "slow", "note"}[l] }

// MarshalText makes JSON say the word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is a classic cause of a slow overlay, found on this node.
type Finding struct {
	Level  Level
	Device node.Dev
	What   string
	Fix    shell.Line // the exact command; for what is another program's, the one that shows whose
}

// MarshalJSON names the device as plans do.
func (f Finding) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Level   Level      `json:"level"`
		Netns   uint64     `json:"netns"`
		Ifindex int        `json:"ifindex"`
		Device  string     `json:"device"`
		What    string     `json:"what"`
		Fix     shell.Line `json:"fix"`
	}{f.Level, f.Device.NetnsCookie, f.Device.Ifindex, f.Device.Name, f.What, f.Fix})
}

// dev is what a diagnosis knows of one device.
type dev struct {
	node.Dev
	at       string // the path of the device's namespace, unless commands are run there
	offloads map[string]ethtool.Feature
	rx       queues
	threaded bool          // NAPI in threads
	hooks    foreign.Hooks // without what is ours
	xdp      string        // a foreign XDP program
	badSums  uint64        // packets that TCP and UDP of its namespace dropped for a wrong checksum meanwhile
}

// queues are a NIC's receive queues.
type queues struct {
	word    string // ethtool's name: rx or combined
	now, of int
}

// besideDataplane is what becomes of overlane where foreign programs decide.
const besideDataplane = "what crosses it is left alone by pipeline, micro-flows, aggregation and express, which change what it goes by; priority is possible"

func named(p foreign.Program) string {
	if p.Name == "" {
		return fmt.Sprint(p.ID)
	}
	return fmt.Sprintf("%s (%d)", p.Name, p.ID)
}

// untilMade goes with an MTU that an engine or a CNI sets again.
const untilMade = "  # until the %s is made anew: set it in the network's own configuration, too"

// wrongChecksums accuses the offload of checksums by what arrives. The flag alone says nothing:
// most NICs do it right, and those that do not spoil what others receive.
func wrongChecksums(snap node.Snapshot, devs map[node.DevKey]dev) (list []Finding) {
	const why = "packets with a wrong checksum were dropped while doctor looked, %d in the network namespace of this %s%s: " +
		"most often the NIC or the virtual switch of a sending node computes checksums of tunnelled packets wrongly (known of vmxnet3 and ice)"
	accuse := func(d dev, where, others string, tunnels []node.Dev) {
		if len(tunnels) == 0 {
			return
		}
		list = append(list, Finding{Broken, d.Dev, fmt.Sprintf(why, d.badSums, where, others),
			shell.Command("ethtool -K %s tx-checksum-ip-generic off  # on each node that sends to this one; on takes it back", tunnels[0].Name).In(devs[tunnels[0].Key()].at)})
	}
	for _, u := range snap.Underlays {
		if d := devs[u.Key()]; d.badSums > 0 {
			for _, t := range snap.Tunnels {
				if slices.ContainsFunc(t.Underlays, u.Same) {
					accuse(d, "NIC", "", []node.Dev{t.Dev})
					break
				}
			}
			break // all underlays are in one namespace
		}
	}
	var worst node.Pod
	var most dev
	hit := 0
	for _, p := range snap.Pods {
		if d := devs[p.Peer.Key()]; d.badSums > 0 {
			if hit++; d.badSums > most.badSums {
				worst, most = p, d
			}
		}
	}
	others := ""
	if hit > 1 {
		others = fmt.Sprintf(" and some in those of %d others", hit-1)
	}
	accuse(most, "pod", others, worst.Tunnels)
	return list
}

// leftChecksums says where no XDP program takes frames since their senders leave checksums to the receiver, and of a veth
// whose other end is out of sight that this may be so.
func leftChecksums(u node.Underlay, d dev, add func(Level, dev, shell.Line, string, ...any)) {
	const without = "there is no priority, no express path and no lane of the nic stage"
	if u.Unfinished != "" {
		add(Note, d, shell.Line{}, without+": %s", u.Unfinished)
		return
	}
	for _, r := range u.Receivers {
		if r.Hidden() {
			add(Note, d, r.FinishChecksums(), "the other end of %s is out of sight: if it leaves checksums to the receiver, as a veth does by default, overlane's XDP programs leave with the first such frame, and "+without, r.Name)
		}
	}
}

// unthread switches threaded NAPI of a tunnel off. In another namespace its command has a sysfs made for that.
func unthread(d dev) shell.Line {
	if d.at != "" {
		return shell.Command(`unshare -m sh -c 'mount -t sysfs sysfs /sys && echo 0 >"/sys/class/net/$0/threaded"' %s  # if nothing comes out of it then: ethtool -K %s gro off, or make it anew; echo 1 takes it back`, d.Name, d.Name)
	}
	return shell.Command("echo 0 >/sys/class/net/%s/threaded  # if nothing comes out of it then: ethtool -K %s gro off, or make it anew; echo 1 takes it back", d.Name, d.Name)
}

// diagnose is the part that only thinks.
func diagnose(snap node.Snapshot, devs map[node.DevKey]dev) []Finding {
	var list []Finding
	add := func(l Level, d dev, fix shell.Line, what string, args ...any) {
		list = append(list, Finding{l, d.Dev, fmt.Sprintf(what, args...), fix.In(d.at)})
	}
	set := func(d dev, flag, to string) shell.Line { return shell.Command("ethtool -K %s %s %s", d.Name, flag, to) }
	show := func(program uint32) shell.Line { return shell.Command("bpftool prog show id %s", program) }
	others := func(d dev) {
		for _, p := range d.hooks.Programs {
			if p.Owner().Dataplane() {
				add(Note, d, show(p.ID), "%s's program %s (%d) is at %s: %s", p.Owner(), p.Name, p.ID, p.Hook, besideDataplane)
				continue
			}
			add(Note, d, show(p.ID), "the foreign program %s is at %s: what it takes no program behind it sees, and behind overlane's it sees the hash and tc_index of steered packets",
				named(p), p.Hook)
		}
		for _, kind := range d.hooks.Filters {
			add(Note, d, shell.Command("tc filter show dev %s ingress", d.Name), "a foreign tc filter (%s) is attached; it may redirect packets before overlane's programs see them", kind)
		}
	}

	underlay := map[node.DevKey]node.Underlay{}
	for _, u := range snap.Underlays {
		underlay[u.Key()] = u
		d, ok := devs[u.Key()]
		if !ok {
			continue
		}
		if u.ForeignXDP {
			add(Note, d, show(u.XDPProgID), "the foreign XDP program %s is attached: overlane puts none there, so there is no priority, no express path and no lane of the nic stage", d.xdp)
		}
		others(d)
		leftChecksums(u, d, add)
		if f, ok := d.offloads["rx-gro"]; ok && !f.Active {
			add(Slow, d, set(d, "gro", "on"), "GRO is off: every packet crosses the overlay on its own")
		}
		if f, ok := d.offloads["rx-checksum"]; ok && !f.Active && !f.Fixed {
			add(Slow, d, set(d, "rx", "on"), "receive checksums are left to the CPU")
		}
		if f := d.offloads["rx-lro"]; f.Active && !f.Fixed {
			add(Slow, d, set(d, "lro", "off"), "LRO is on: it merges packets in a way that cannot be undone when they are forwarded, and forbids XDP")
		}
		if f, ok := d.offloads["tx-udp_tnl-segmentation"]; ok && !f.Active && !f.Fixed {
			add(Slow, d, set(d, "tx-udp_tnl-segmentation", "on"), "the NIC could segment tunnelled packets and is not allowed to")
		}
		if q := d.rx; q.now == 1 && q.of > 1 {
			add(Slow, d, shell.Command("ethtool -L %s %s %s", d.Name, q.word, q.of), "one receive queue is in use of %d: all packets start on one core", q.of)
		}
	}
	tunnels := map[node.DevKey]node.Tunnel{}
	for _, t := range snap.Tunnels {
		tunnels[t.Key()] = t
		d, ok := devs[t.Key()]
		if !ok {
			continue
		}
		others(d)
		if d.threaded {
			add(Broken, d, unthread(d), "threaded NAPI is on: a thread polls the queue that a core keeps for this tunnel from any other core, and that queue has no lock "+
				"(net/core/gro_cells.c): packets are lost, soon all of them, and a broken queue stays broken until the tunnel is made anew or its GRO is off")
		}
		if f, ok := d.offloads["rx-gro"]; ok && !f.Active && !d.threaded {
			add(Slow, d, set(d, "gro", "on"), "GRO is off: every packet crosses the bridge and the veth on its own")
		}
		for _, on := range t.Underlays {
			u, ok := underlay[on.Key()]
			if !ok {
				continue
			}
			if most := u.MTU - t.Overhead(u); t.MTU > most {
				add(Broken, d, shell.Command("ip link set dev %s mtu %s"+untilMade, d.Name, most, "network"),
					"its MTU %d and the outer headers (%d) do not fit the MTU %d of %s: large packets are sent as fragments or dropped", t.MTU, t.Overhead(u), u.MTU, u.Name)
				break
			}
		}
	}
	ends := map[foreign.Owner]int{}
	for _, p := range snap.Pods {
		d := devs[p.Host.Key()]
		theirs, ok := d.hooks.Dataplane()
		if !ok {
			continue
		}
		if ends[theirs.Owner()]++; ends[theirs.Owner()] == 1 {
			add(Note, d, show(theirs.ID), "%s's program %s (%d) is at %s of this pod: %s",
				theirs.Owner(), theirs.Name, theirs.ID, theirs.Hook, besideDataplane)
		}
	}
	for _, p := range snap.Pods {
		d, ok := devs[p.Peer.Key()]
		if !ok {
			continue
		}
		least := 0
		for _, on := range p.Tunnels {
			if t := tunnels[on.Key()]; t.Bridge != nil && (least == 0 || t.MTU < least) {
				least = t.MTU
			}
		}
		// A router would say "too big"; a bridge drops without a word.
		if least != 0 && p.PeerMTU > least {
			add(Broken, d, shell.Command("ip link set dev %s mtu %s"+untilMade, d.Name, least, "pod"), "its MTU %d is above the tunnel's %d: a bridge drops large packets without telling the sender", p.PeerMTU, least)
		}
	}
	list = append(list, wrongChecksums(snap, devs)...)
	slices.SortStableFunc(list, func(a, b Finding) int { return cmp.Compare(a.Level, b.Level) })
	return list
}
