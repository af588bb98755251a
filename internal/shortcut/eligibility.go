// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/shell"
)

// Evaluate decides about one path. The order is that of a person looking for the
// cause: how it is built, what the bridge does, what else is there.
func Evaluate(f Facts, p Path) Verdict {
	v := Verdict{Path: p}
	if f.Unknown != "" {
		v.Reason = f.Unknown
		return v
	}
	if p.Tunnel.NetnsCookie != f.Cookie || p.Host.NetnsCookie != f.Cookie {
		v.Reason = "tunnel and veth are not both in the network namespace that was scanned"
		return v
	}
	el := eligibility{f: f, path: p, tunnel: f.Devices[p.Tunnel.Ifindex], host: f.Devices[p.Host.Ifindex]}
	el.bridge = f.Devices[el.tunnel.Master]
	for _, check := range []func() string{el.built, el.known, el.ports, el.entry, el.programs, el.bridgeHooks, el.deviceHooks, el.ipHooks} {
		if v.Reason = check(); v.Reason != "" {
			return v
		}
	}
	v.MAC, v.MTU = el.host.Peer.Address, min(el.host.MTU, el.host.Peer.MTU)
	if el.tunnel.Port.Learning {
		v.Refresh = el.bridge.Bridge.Ageing
	}
	v.Relearn = v.Refresh
	if age := el.tunnel.Learning; age != 0 && (age < v.Relearn || v.Relearn == 0) {
		v.Relearn = age
	}
	v.Marked, v.TunnelMAC, v.Fixed = el.tunnel.Marks, el.tunnel.Address, el.tunnel.Fixed
	return v
}

type eligibility struct {
	f                    Facts
	path                 Path
	tunnel, bridge, host Device
}

func (el *eligibility) built() string {
	t, h := el.tunnel, el.host
	switch {
	case t.Name == "" || h.Name == "":
		return "tunnel or veth are no longer there"
	case !encap.Known(t.Kind):
		return fmt.Sprintf("%s is no tunnel", t.Name)
	case t.Metadata:
		return fmt.Sprintf("%s takes packets of any network identifier, and another program decides by it", t.Name)
	case h.Kind != "veth":
		return fmt.Sprintf("%s is no veth", h.Name)
	case t.Master == 0:
		return fmt.Sprintf("%s is not in a bridge: the host routes between it and the pod, and that must not be skipped (TTL, FORWARD, connection tracking)", t.Name)
	case el.bridge.Bridge == nil || t.Port == nil:
		return fmt.Sprintf("%s is a port of something that is no bridge of the kernel's", t.Name)
	case h.Master != t.Master || h.Port == nil:
		return fmt.Sprintf("%s is not in the bridge %s, as %s is", h.Name, el.bridge.Name, t.Name)
	case h.Unknown == "" && h.Peer == nil:
		return inOneNamespace(h)
	}
	return ""
}

// known is asked once it is clear that the path is one at all.
func (el *eligibility) known() string {
	for _, d := range []Device{el.tunnel, el.bridge, el.host} {
		if d.Unknown != "" {
			return d.Unknown
		}
	}
	return ""
}

var portStates = []string{"disabled", "listening", "learning", "forwarding", "blocking"}

const forwarding = 3

func (el *eligibility) ports() string {
	t, h, b := el.tunnel, el.host, el.bridge
	if b.Bridge.VLANs {
		return fmt.Sprintf("%s filters by VLAN (vlan_filtering)", b.Name)
	}
	for _, d := range []Device{t, h} {
		if s := d.Port.State; s != forwarding {
			state := "in a state that is not known"
			if int(s) < len(portStates) {
				state = portStates[s]
			}
			return fmt.Sprintf("port %s of %s is %s, not forwarding", d.Name, b.Name, state)
		}
	}
	switch {
	case t.Port.Isolated && h.Port.Isolated:
		return fmt.Sprintf("ports %s and %s of %s are isolated from each other", t.Name, h.Name, b.Name)
	case t.Port.Locked:
		return fmt.Sprintf("port %s of %s is locked: only senders that the bridge was told of may pass", t.Name, b.Name)
	case t.Port.VLANTunnel || h.Port.VLANTunnel:
		return fmt.Sprintf("%s makes VLANs of network identifiers (vlan_tunnel)", b.Name)
	}
	return ""
}

// entry does not ask how old a learned entry is: nor does the bridge, until it
// takes the entry out.
func (el *eligibility) entry() string {
	p := el.host.Peer
	switch e := p.Entry; {
	case p.Address == MAC{}:
		return fmt.Sprintf("the pod's end of %s has no Ethernet address of its own", el.host.Name)
	case p.Master != 0:
		return fmt.Sprintf("the pod's end of %s is a port of another device there", el.host.Name)
	case e == nil:
		return fmt.Sprintf("%s has not learned the pod's address %s; it does when the pod sends", el.bridge.Name, p.Address)
	case e.Local:
		return fmt.Sprintf("%s has the pod's address %s for one of the host's own", el.bridge.Name, p.Address)
	case e.Dev != el.path.Host.Ifindex:
		return fmt.Sprintf("%s has the pod's address %s behind another port than %s", el.bridge.Name, p.Address, el.host.Name)
	case e.Locked:
		return fmt.Sprintf("%s has not let the pod's address %s in yet (MAB)", el.bridge.Name, p.Address)
	}
	return ""
}

// programs asks about the bridge, too, although frames that it forwards meet no
// program of its own device: the foreign program that is there acts on purpose.
func (el *eligibility) programs() string {
	// What is on the tunnel's XDP hook has run already.
	if id := el.bridge.XDP; id != 0 {
		return fmt.Sprintf("XDP program %d is on %s", id, el.bridge.Name)
	}
	for _, d := range []Device{el.tunnel, el.bridge} {
		if found := classified(d); found != "" {
			return found
		}
	}
	return behind(el.host)
}

// behind says what a packet meets between the host's end of a veth and the pod; empty if nothing.
func behind(host Device) string {
	if id := host.XDP; id != 0 {
		return fmt.Sprintf("XDP program %d is on %s", id, host.Name)
	}
	if id := host.Peer.XDP; id != 0 {
		return fmt.Sprintf("XDP program %d is on the pod's end of %s", id, host.Name)
	}
	if found := classified(host); found != "" {
		return found
	}
	if host.Queues {
		return shell.See(fmt.Sprintf("TCP segmentation is off on %s, so that the pod's end may have a queue of its own", host.Name), shell.Command("ethtool -K %s tso on", host.Name))
	}
	if q := host.Qdisc; q != "noqueue" {
		return fmt.Sprintf("the qdisc %s is on %s, and would be skipped", q, host.Name)
	}
	return ""
}

// pastHostEnd says what a packet would skip that goes to the pod straight from the tc egress of a veth's end on the
// host; empty if nothing. nftables' egress hook comes before that.
func pastHostEnd(f Facts, ifindex int) string {
	host, there := f.Devices[ifindex]
	switch {
	case !there:
		return "its host end is no longer there"
	case host.Unknown != "":
		return host.Unknown
	case host.Peer == nil:
		return inOneNamespace(host)
	}
	return behind(host)
}

func inOneNamespace(host Device) string {
	return fmt.Sprintf("both ends of %s are in one network namespace", host.Name)
}

// classified says what else is at a device's tc hooks; empty if nothing is.
func classified(d Device) string {
	switch {
	case len(d.TCX) > 0:
		return fmt.Sprintf("tc program %d on %s is foreign", d.TCX[0], d.Name)
	case d.Filters != "":
		return shell.See(fmt.Sprintf("the foreign qdisc %s, with its filters, is on %s", d.Filters, d.Name), shell.Command("tc filter show dev %s", d.Name))
	}
	return ""
}

func (el *eligibility) bridgeHooks() string {
	if m := el.f.Netfilter.Ebtables; m != "" {
		return legacyEbtables(m)
	}
	for _, c := range el.f.Netfilter.Chains {
		if c.Family == unix.NFPROTO_BRIDGE {
			return fmt.Sprintf("nftables filters what bridges forward: %s", c)
		}
	}
	return ""
}

func legacyEbtables(module string) string {
	return fmt.Sprintf("legacy ebtables is in the kernel (%s), and whether it has rules here cannot be read without making them; where it is not used: %s", module, shell.Command("modprobe -r %s", module))
}

func (el *eligibility) deviceHooks() string {
	for _, c := range el.f.Netfilter.Chains {
		for _, d := range []Device{el.tunnel, el.bridge, el.host} {
			if c.on(d.Name) {
				return fmt.Sprintf("nftables has a hook on %s: %s", d.Name, c)
			}
		}
	}
	return ""
}

// bridgedHooks are those that br_netfilter calls for what a bridge forwards.
var bridgedHooks = []int{unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}

// ipHooks evaluates what br_netfilter calls, if it is there.
func (el *eligibility) ipHooks() string {
	n := el.f.Netfilter
	for _, v := range []struct {
		on     bool
		family uint8
		name   string
		legacy []string
	}{
		{n.IP4 || el.bridge.Bridge.IP4, unix.NFPROTO_IPV4, "iptables", n.Tables4},
		{n.IP6 || el.bridge.Bridge.IP6, unix.NFPROTO_IPV6, "ip6tables", n.Tables6},
	} {
		if !v.on {
			continue
		}
		calls := "br_netfilter hands the frames of " + el.bridge.Name + " to " + v.name + " (bridge-nf-call-" + v.name + "), and "
		if found := hooked(n, v.family, v.legacy, bridgedHooks...); found != "" {
			return calls + found
		}
	}
	return ""
}

// hooked says what is at netfilter's hooks that packets of one version of IP pass;
// empty if nothing is. Only nftables tells which hooks.
func hooked(n Netfilter, family uint8, legacy []string, hooks ...int) string {
	switch {
	case len(legacy) > 0:
		return "there are rules in the tables: " + strings.Join(legacy, ", ")
	case n.IPVS:
		return "IPVS has services here"
	case n.Programs > 0:
		return shell.See("BPF programs are on netfilter hooks", shell.Command("bpftool net"))
	case n.Conntrack:
		return "connections are tracked here"
	}
	for _, c := range n.Chains {
		if (c.Family == family || c.Family == unix.NFPROTO_INET) && c.Devices == nil && slices.Contains(hooks, c.Hook) {
			return "there are rules in " + c.String()
		}
	}
	return ""
}

var families = map[uint8]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_ARP: "arp",
	unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// String names the chain as nft(8) does.
func (c Chain) String() string {
	what := "chain"
	if c.Hook < 0 {
		what = "flowtable"
	}
	return fmt.Sprintf("%s %s %s %s", what, families[c.Family], shell.Word(c.Table), shell.Word(c.Name))
}

// on tells whether the chain is bound to a device.
func (c Chain) on(dev string) bool {
	return slices.ContainsFunc(c.Devices, func(p Pattern) bool { return p.matches(dev) })
}

func (p Pattern) matches(dev string) bool {
	return dev == p.Name || p.Prefix && strings.HasPrefix(dev, p.Name)
}
