// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

var (
	nicMAC    = MAC{2, 0, 0, 0, 0, 9}
	addr1     = netip.MustParseAddr("192.0.2.1")
	addr2     = netip.MustParseAddr("192.0.2.2")
	anIngress = Ingress{NIC: node.Dev{NetnsCookie: 9, Ifindex: 1, Name: "eth0"}, Port: 4789}
	compare   = cmpopts.EquateComparable(netip.Addr{})
	verdicts  = cmp.Options{compare, cmpopts.EquateEmpty()} // no senders are no senders
)

// host is one that nothing speaks against.
func host(change func(f *IngressFacts, n *NIC)) IngressFacts {
	n := NIC{
		Device: Device{Name: "eth0", Up: true, Address: nicMAC, MTU: 1500, Qdisc: "mq"},
		Addrs:  []netip.Addr{addr1, addr2}, RPS: []string{"00000000,00000000", "0"},
	}
	f := IngressFacts{Cookie: 9, Rules: []Rule{{0, 255, true}, {32766, 254, true}, {32767, 253, true}}}
	change(&f, &n)
	f.NICs = map[int]NIC{1: n}
	return f
}

func TestHostThatNothingSpeaksAgainst(t *testing.T) {
	both := []netip.Addr{addr1, addr2}
	same := func(*IngressFacts, *NIC) {}
	chain := func(c Chain) func(*IngressFacts, *NIC) {
		return func(f *IngressFacts, _ *NIC) { f.Netfilter.Chains = []Chain{c} }
	}
	for _, tt := range []struct {
		name   string
		local  netip.Addr
		change func(f *IngressFacts, n *NIC)
		want   []netip.Addr
	}{
		{"as it is", netip.Addr{}, same, both},
		{"a tunnel for any address", netip.IPv4Unspecified(), same, both},
		{"a tunnel for any address of any version", netip.IPv6Unspecified(), same, both},
		{"a tunnel for one address", addr2, same, []netip.Addr{addr2}},
		{"the same as IPv6 writes it", netip.AddrFrom16(addr2.As16()), same, []netip.Addr{addr2}},
		{"no RPS in the kernel", netip.Addr{}, func(_ *IngressFacts, n *NIC) { n.RPS = nil }, both},
		{"the tags of a veth", netip.Addr{}, func(_ *IngressFacts, n *NIC) { n.Tags, n.Kind = true, "veth" }, both},
		{"no rules in the kernel", netip.Addr{}, func(f *IngressFacts, _ *NIC) { f.Rules = nil }, both},
		{"loose, with a default route", netip.Addr{}, func(f *IngressFacts, n *NIC) { n.PathFilter, f.Default = 2, true }, both},
		{"tunnels and the other end of a veth", netip.Addr{}, func(_ *IngressFacts, n *NIC) {
			n.Above = []Above{{"vx0", "vxlan"}, {"gn0", "geneve"}, {"t0", "ipip"}, {"ve1", "veth"}}
		}, both},
		{"what only bridges ask for", netip.Addr{}, func(f *IngressFacts, _ *NIC) {
			f.Netfilter = Netfilter{IP4: true, IP6: true, Tables6: []string{"filter"}, Ebtables: "ebtable_nat"}
		}, both},
		{"forward", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_FORWARD}), both},
		{"output", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_LOCAL_OUT}), both},
		{"postrouting", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_POST_ROUTING}), both},
		{"ip6", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_IPV6, Hook: unix.NF_INET_LOCAL_IN}), both},
		{"arp", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_ARP, Hook: 0}), both},
		{"bridge", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_BRIDGE, Hook: unix.NF_INET_LOCAL_IN}), both},
		{"egress", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_NETDEV, Hook: 1, Devices: []Pattern{{Name: "eth0"}}}), both},
		{"ingress of another", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{{Name: "eth1"}}}), both},
		{"a flow table of others", netip.Addr{}, chain(Chain{Family: unix.NFPROTO_INET, Hook: -1, Devices: []Pattern{{Name: "eth1"}}}), both},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := anIngress
			in.Local = tt.local
			want := IngressVerdict{Ingress: in, MAC: nicMAC, Locals: tt.want}
			if d := cmp.Diff(want, EvaluateIngress(host(tt.change), in), compare); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestEachThingAtTheNICIsAReason(t *testing.T) {
	type change = func(f *IngressFacts, n *NIC)
	nic := func(c func(n *NIC)) change { return func(_ *IngressFacts, n *NIC) { c(n) } }
	chain := func(c Chain) change {
		c.Table, c.Name = "tab", "mine"
		return func(f *IngressFacts, _ *NIC) { f.Netfilter.Chains = []Chain{c} }
	}
	filter := func(n Netfilter) change { return func(f *IngressFacts, _ *NIC) { f.Netfilter = n } }
	above := func(kind string) change {
		return nic(func(n *NIC) { n.Above = []Above{{"ve1", "veth"}, {"up0", kind}} })
	}
	rule := func(r ...Rule) change { return func(f *IngressFacts, _ *NIC) { f.Rules = append(f.Rules, r...) } }
	in := func(local string) Ingress {
		i := anIngress
		i.Local = netip.MustParseAddr(local)
		return i
	}
	const pass = "the tunnel's packets pass netfilter on their way from eth0, and "
	for _, tt := range []struct {
		name   string
		in     Ingress
		change change
		want   string // how the reason begins
	}{
		{"nothing was seen", anIngress, func(f *IngressFacts, _ *NIC) { f.Unknown = "cannot read" }, "cannot read"},
		{"another namespace", anIngress, func(f *IngressFacts, _ *NIC) { f.Cookie = 8 }, "eth0 is not in the network namespace that was scanned"},
		{"gone", anIngress, nic(func(n *NIC) { *n = NIC{} }), "eth0 is no longer there"},
		{"cannot be read", anIngress, nic(func(n *NIC) { n.Unknown = "eth0: EIO" }), "eth0: EIO"},
		{"down", anIngress, nic(func(n *NIC) { n.Up = false }), "eth0 is down; see: ip link set dev eth0 up"},
		{"no Ethernet", anIngress, nic(func(n *NIC) { n.Address = MAC{} }), "eth0 has no Ethernet address"},
		{"enslaved", anIngress, nic(func(n *NIC) { n.Master, n.PortOf = 4, "bond0" }), "eth0 is a port of bond0, which takes what it receives"},
		{"vlan", anIngress, above("vlan"), "up0 (vlan) is on eth0"},
		{"macvlan", anIngress, above("macvlan"), "up0 (macvlan) is on eth0"},
		{"ipvlan", anIngress, above("ipvlan"), "up0 (ipvlan) is on eth0"},
		{"of a kind not told", anIngress, above(""), "up0 () is on eth0"},
		{"no address", anIngress, nic(func(n *NIC) { n.Addrs = nil }), "eth0 has no IPv4 address"},
		{"no address for whatever tunnel", in("0.0.0.0"), nic(func(n *NIC) { n.Addrs = nil }), "eth0 has no IPv4 address"},
		{"another's address", in("192.0.2.3"), nic(func(*NIC) {}), "192.0.2.3 is no address of eth0"},
		{"IPv6", in("2001:db8::1"), nic(func(*NIC) {}), "the tunnel's packets are sent to 2001:db8::1, and of the outer ones only IPv4"},
		{"XDP", anIngress, nic(func(n *NIC) { n.XDP = 5 }), "XDP program 5 on eth0 is foreign"},
		{"tcx", anIngress, nic(func(n *NIC) { n.TCX = []uint32{6} }), "tc program 6 on eth0 is foreign"},
		{"clsact", anIngress, nic(func(n *NIC) { n.Filters = "clsact" }), "the foreign qdisc clsact, with its filters, is on eth0"},
		{"VLAN tags", anIngress, nic(func(n *NIC) { n.Tags = true }), "eth0 takes VLAN tags off the frames that it lets in"},
		{"RPS", anIngress, nic(func(n *NIC) { n.RPS = []string{"0", "00000000,00000002"} }), "RPS moves what eth0 receives to other cores"},
		{"sk_lookup", anIngress, func(f *IngressFacts, _ *NIC) { f.Selectors = 1 }, "BPF programs choose sockets or dissect packets"},
		{"netdev ingress", anIngress, chain(Chain{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{{Name: "eth0"}}}), "nftables has a hook on eth0: chain netdev tab mine"},
		{"inet ingress", anIngress, chain(Chain{Family: unix.NFPROTO_INET, Hook: 5, Devices: []Pattern{{Name: "et", Prefix: true}}}), "nftables has a hook on eth0: chain inet tab mine"},
		{"flow table", anIngress, chain(Chain{Family: unix.NFPROTO_IPV4, Hook: -1, Devices: []Pattern{{Name: "eth0"}}}), "nftables has a hook on eth0: flowtable ip tab mine"},
		{"devices not told", anIngress, chain(Chain{Family: unix.NFPROTO_NETDEV, Devices: anyDevice}), "nftables has a hook on eth0"},
		{"ip prerouting", anIngress, chain(Chain{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_PRE_ROUTING}), pass + "there are rules in chain ip tab mine"},
		{"ip input", anIngress, chain(Chain{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_LOCAL_IN}), pass + "there are rules in chain ip tab mine"},
		{"inet prerouting", anIngress, chain(Chain{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_PRE_ROUTING}), pass + "there are rules in chain inet tab mine"},
		{"inet input", anIngress, chain(Chain{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_LOCAL_IN}), pass + "there are rules in chain inet tab mine"},
		{"legacy tables", anIngress, filter(Netfilter{Tables4: []string{"raw", "filter"}}), pass + "there are rules in the tables: raw, filter"},
		{"IPVS", anIngress, filter(Netfilter{IPVS: true}), pass + "IPVS has services here"},
		{"BPF at netfilter", anIngress, filter(Netfilter{Programs: 1}), pass + "BPF programs are on netfilter hooks"},
		{"connection tracking", anIngress, filter(Netfilter{Conntrack: true}), pass + "connections are tracked here"},
		{"a rule", anIngress, rule(Rule{100, 254, true}), "the routing rule 100 is not one that the kernel begins with"},
		{"a rule in the place of another", anIngress, rule(Rule{32766, 5, true}), "the routing rule 32766 is not one"},
		{"a condition", anIngress, func(f *IngressFacts, _ *NIC) { f.Rules[1].Plain = false }, "the routing rule 32766 is not one"},
		{"a rule is gone", anIngress, func(f *IngressFacts, _ *NIC) { f.Rules = f.Rules[1:] }, "the routing rule 0, with which the kernel begins, is gone"},
		{"all rules are gone", anIngress, func(f *IngressFacts, _ *NIC) { f.Rules = f.Rules[:0] }, "the routing rule 0, with which the kernel begins, is gone"},
		{"strict", anIngress, func(f *IngressFacts, n *NIC) { n.PathFilter, f.Default = 1, true }, "the host takes packets only from where it would send back by eth0"},
		{"loose, without a default route", anIngress, nic(func(n *NIC) { n.PathFilter = 2 }), "the host takes packets only from senders to which it has a route"},
		{"a filter of a later kernel", anIngress, func(f *IngressFacts, n *NIC) { n.PathFilter, f.Default = 3, true }, "rp_filter of eth0 or of all is 3"},
		{"IPsec", anIngress, func(f *IngressFacts, _ *NIC) { f.Policies = 1 }, "there are IPsec policies here"},
		{"IPsec without policies", anIngress, func(f *IngressFacts, _ *NIC) { f.Blocks = true }, "IPsec takes only what a policy allows"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := EvaluateIngress(host(tt.change), tt.in)
			if got.Safe() || !strings.HasPrefix(got.Reason, tt.want) {
				t.Fatalf("reason %q\nwant   %q...", got.Reason, tt.want)
			}
			if d := cmp.Diff(IngressVerdict{Ingress: tt.in, Reason: got.Reason}, got, compare); d != "" {
				t.Fatalf("says what to do all the same:\n%s", d)
			}
		})
	}
	if EvaluateIngress(IngressFacts{}, Ingress{}).Safe() {
		t.Fatal("knows nothing and finds it safe")
	}
}
