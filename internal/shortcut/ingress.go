// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shell"
)

// Ingress is what is asked about of the NIC's side: whether what the host does
// with a tunnel's packets, from the NIC's XDP hook to the tunnel, may be skipped.
type Ingress struct {
	NIC   node.Dev   // in the namespace that is checked
	Local netip.Addr // the outer destination address of the tunnel's packets; invalid or unspecified: the tunnel takes any of the host's
	Port  uint16     // UDP, of the tunnel; only handed back
}

// IngressVerdict is the verdict on one NIC for one tunnel.
//
// It covers packets of outer IPv4 without options, fragments and VLAN tag, sent to
// MAC and one of Locals, from an address that is not the host's own. Not evaluated
// are packet sockets and counters, and a macvlan or ipvlan on the NIC that was
// moved to another namespace: of it nothing is seen here, and but for a macvlan in
// mode passthru, with which the host gets nothing, it leaves such packets alone.
type IngressVerdict struct {
	Ingress
	// Reason says why nothing may be skipped, in words for people; empty if it may.
	// The other fields are set only then.
	Reason string
	MAC    MAC // the NIC's
	// Locals are the IPv4 addresses that are the host's on that NIC, and to which
	// such packets may be sent, sorted. With Ingress.Local it is that one.
	Locals []netip.Addr
}

// Safe tells that what is between the NIC and the tunnel may be skipped.
func (v IngressVerdict) Safe() bool { return v.Reason == "" }

// EvaluateIngress decides about one NIC. The order is that of Evaluate.
func EvaluateIngress(f IngressFacts, in Ingress) IngressVerdict {
	v := IngressVerdict{Ingress: in}
	if f.Unknown != "" {
		v.Reason = f.Unknown
		return v
	}
	if in.NIC.NetnsCookie != f.Cookie {
		v.Reason = fmt.Sprintf("%s is not in the network namespace that was scanned", in.NIC.Name)
		return v
	}
	ing := ingress{f: f, in: in, nic: f.NICs[in.NIC.Ifindex]}
	for _, check := range []func() string{ing.device, ing.addresses, ing.tags, ing.programs, ing.hooks, ing.rules, ing.sources, ing.ipsec} {
		if v.Reason = check(); v.Reason != "" {
			return v
		}
	}
	v.MAC, v.Locals = ing.nic.Address, ing.locals()
	return v
}

type ingress struct {
	f   IngressFacts
	in  Ingress
	nic NIC
}

func (ing *ingress) device() string {
	n := ing.nic
	switch {
	case n.Name == "":
		return fmt.Sprintf("%s is no longer there", ing.in.NIC.Name)
	case n.Unknown != "":
		return n.Unknown
	case !n.Up:
		return shell.See(n.Name+" is down", shell.Command("ip link set dev %s up", n.Name))
	case n.Address == MAC{}:
		return fmt.Sprintf("%s has no Ethernet address of its own", n.Name)
	case n.Master != 0:
		return fmt.Sprintf("%s is a port of %s, which takes what it receives", n.Name, n.PortOf)
	}
	for _, u := range n.Above {
		if !bystander(u.Kind) {
			return fmt.Sprintf("%s (%s) is on %s and may take what that receives", u.Name, u.Kind, n.Name)
		}
	}
	return ""
}

// bystander tells of a kind of devices that name a NIC and take no packets from it before IP does: tunnels say by which
// they send, and pairs which is their other end.
func bystander(kind string) bool { return bystanders[kind] || encap.Known(kind) }

var bystanders = map[string]bool{
	"ipip": true, "sit": true, "gre": true, "gretap": true, "erspan": true,
	"ip6tnl": true, "ip6gre": true, "ip6gretap": true, "ip6erspan": true, "vti": true, "vti6": true,
	"veth": true, "netkit": true, "vxcan": true,
}

func (ing *ingress) addresses() string {
	n, local := ing.nic, ing.in.Local.Unmap()
	switch {
	case local.Is6() && !local.IsUnspecified():
		return fmt.Sprintf("the tunnel's packets are sent to %s, and of the outer ones only IPv4 is understood", local)
	case len(ing.locals()) > 0:
		return ""
	case any4(local):
		return fmt.Sprintf("%s has no IPv4 address", n.Name)
	}
	return fmt.Sprintf("%s is no address of %s: the host gets the tunnel's packets by another device", local, n.Name)
}

func any4(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }

// locals returns those of the NIC's addresses that the tunnel takes.
func (ing *ingress) locals() []netip.Addr {
	local := ing.in.Local.Unmap()
	if any4(local) {
		return ing.nic.Addrs
	}
	if slices.Contains(ing.nic.Addrs, local) {
		return []netip.Addr{local}
	}
	return nil
}

// tags asks for frames of VLANs that the host would drop, and which no program can tell from others
// once their tag is off. At the other end of a veth is this machine, which sends none by mistake.
func (ing *ingress) tags() string {
	if n := ing.nic; n.Tags && n.Kind != "veth" {
		return shell.See(fmt.Sprintf("%s takes VLAN tags off the frames that it lets in from any VLAN (rxvlan off would mend that, too, or to end what has it promiscuous)", n.Name),
			shell.Command("ethtool -K %s rx-vlan-filter on", n.Name))
	}
	return ""
}

func (ing *ingress) programs() string {
	n := ing.nic
	if n.XDP != 0 {
		return fmt.Sprintf("XDP program %d on %s is foreign", n.XDP, n.Name)
	}
	if found := classified(n.Device); found != "" {
		return found
	}
	if moves := (node.Settings{RPSCPUs: n.RPS}).Moves(n.Name); moves != "" {
		return moves
	}
	if ing.f.Selectors > 0 {
		return shell.See("BPF programs choose sockets or dissect packets in some network namespace", shell.Command("bpftool link"))
	}
	return ""
}

// hooks asks for IPv4 and what sees all protocols: the outer headers are IPv4.
func (ing *ingress) hooks() string {
	for _, c := range ing.f.Netfilter.Chains {
		receives := c.Hook < 0 || c.Family == unix.NFPROTO_NETDEV && c.Hook == unix.NF_NETDEV_INGRESS || c.Family == unix.NFPROTO_INET && c.Hook == nfInetIngress
		if receives && c.on(ing.nic.Name) {
			return fmt.Sprintf("nftables has a hook on %s: %s", ing.nic.Name, c)
		}
	}
	n := ing.f.Netfilter
	if found := hooked(n, unix.NFPROTO_IPV4, n.Tables4, unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN); found != "" {
		return "the tunnel's packets pass netfilter on their way from " + ing.nic.Name + ", and " + found
	}
	return ""
}

// kernelRules are those that every namespace begins with.
var kernelRules = []Rule{
	{0, unix.RT_TABLE_LOCAL, true},
	{32766, unix.RT_TABLE_MAIN, true},
	{32767, unix.RT_TABLE_DEFAULT, true},
}

// rules asks for rules of others, and for a rule of the kernel's that is gone: it
// may have moved.
func (ing *ingress) rules() string {
	if ing.f.Rules == nil {
		return "" // the kernel knows no rules
	}
	for _, r := range ing.f.Rules {
		if !slices.Contains(kernelRules, r) {
			return shell.See(fmt.Sprintf("the routing rule %d is not one that the kernel begins with, and may apply to the tunnel's packets", r.Priority), shell.Command("ip rule"))
		}
	}
	for _, r := range kernelRules {
		if !slices.Contains(ing.f.Rules, r) {
			return shell.See(fmt.Sprintf("the routing rule %d, with which the kernel begins, is gone", r.Priority), shell.Command("ip rule"))
		}
	}
	return ""
}

// sources asks what IP asks about a sender's address.
func (ing *ingress) sources() string {
	switch n := ing.nic; {
	case n.PathFilter == 0:
		return ""
	case n.PathFilter == strictPath:
		return shell.See(fmt.Sprintf("the host takes packets only from where it would send back by %s (rp_filter 1 of %[1]s or of all, which 2 or 0 would mend)", n.Name),
			shell.Command("grep . /proc/sys/net/ipv4/conf/all/rp_filter /proc/sys/net/ipv4/conf/%s/rp_filter", n.Name))
	case n.PathFilter != loosePath:
		return fmt.Sprintf("rp_filter of %s or of all is %d, which is not known", n.Name, n.PathFilter)
	case !ing.f.Default:
		return fmt.Sprintf("the host takes packets only from senders to which it has a route (rp_filter 2 of %s or of all), and there is no IPv4 default route", n.Name)
	}
	return ""
}

// Values of rp_filter.
const (
	strictPath = 1
	loosePath  = 2
)

func (ing *ingress) ipsec() string {
	switch {
	case ing.f.Policies > 0:
		return shell.See("there are IPsec policies here, which may ask for encryption", shell.Command("ip xfrm policy"))
	case ing.f.Blocks:
		return shell.See("IPsec takes only what a policy allows (the default for incoming packets is block)", shell.Command("ip xfrm policy getdefault"))
	}
	return ""
}
