// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/node"
)

var (
	podMAC    = MAC{2, 0, 0, 0, 0, 7}
	tunnelMAC = MAC{2, 0, 0, 0, 0, 8}
	aPath     = Path{node.Dev{NetnsCookie: 9, Ifindex: 1, Name: "vx0"}, node.Dev{NetnsCookie: 9, Ifindex: 3, Name: "ve1"}}
)

// parts are the devices of the path, to be changed by a test.
type parts struct{ tunnel, bridge, host *Device }

// overlay is a bridged overlay that nothing speaks against.
func overlay(change func(f *Facts, p parts)) Facts {
	port := Port{State: forwarding, Learning: true}
	tunnelPort, hostPort := port, port
	t := Device{Name: "vx0", Kind: "vxlan", Address: tunnelMAC, MTU: 1450, Master: 2, Port: &tunnelPort, Qdisc: "noqueue"}
	b := Device{Name: "br0", Kind: "bridge", MTU: 1450, Bridge: &Bridge{Ageing: 5 * time.Minute}, Qdisc: "noqueue"}
	h := Device{
		Name: "ve1", Kind: "veth", MTU: 1450, Master: 2, Port: &hostPort, Qdisc: "noqueue",
		Peer: &Peer{Device{MTU: 1400, Address: podMAC}, &Entry{Dev: 3}},
	}
	f := Facts{Cookie: 9}
	change(&f, parts{&t, &b, &h})
	f.Devices = map[int]Device{1: t, 2: b, 3: h}
	return f
}

func TestOverlayThatNothingSpeaksAgainst(t *testing.T) {
	same := func(*Facts, parts) {}
	for _, tt := range []struct {
		name   string
		change func(f *Facts, p parts)
		want   Verdict
	}{
		{"as it is", same, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"the tunnel's port does not learn", func(_ *Facts, p parts) { p.tunnel.Port.Learning = false }, Verdict{MTU: 1400}},
		{"the pod's port does not learn", func(_ *Facts, p parts) { p.host.Port.Learning = false }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"the host's end is the smaller", func(_ *Facts, p parts) { p.host.MTU = 1300 }, Verdict{MTU: 1300, Refresh: 5 * time.Minute}},
		{"the tunnel forgets sooner than the bridge", func(_ *Facts, p parts) { p.tunnel.Learning = time.Minute }, Verdict{MTU: 1400, Refresh: 5 * time.Minute, Relearn: time.Minute}},
		{"the tunnel forgets later than the bridge", func(_ *Facts, p parts) { p.tunnel.Learning = time.Hour }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"only the tunnel learns", func(_ *Facts, p parts) { p.tunnel.Port.Learning, p.tunnel.Learning = false, time.Minute }, Verdict{MTU: 1400, Relearn: time.Minute}},
		{"marks", func(_ *Facts, p parts) { p.tunnel.Marks = true }, Verdict{MTU: 1400, Refresh: 5 * time.Minute, Marked: true}},
		{"geneve", func(_ *Facts, p parts) { p.tunnel.Kind = "geneve" }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"only one port is isolated", func(_ *Facts, p parts) { p.host.Port.Isolated = true }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"the pod's port is locked: what the pod sends", func(_ *Facts, p parts) { p.host.Port.Locked = true }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"br_netfilter with nothing to call", func(f *Facts, _ parts) { f.Netfilter.IP4, f.Netfilter.IP6 = true, true }, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"rules that br_netfilter does not reach", func(f *Facts, p parts) {
			f.Netfilter = Netfilter{
				Tables4: []string{"filter"}, Tables6: []string{"filter"}, Conntrack: true, IPVS: true, Programs: 1,
				Chains: []Chain{{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_FORWARD}},
			}
		}, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"rules for what the host itself gets and sends", func(f *Facts, p parts) {
			f.Netfilter = Netfilter{IP4: true, IP6: true, Chains: []Chain{
				{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_LOCAL_IN}, {Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_LOCAL_OUT},
			}}
		}, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"rules for the other version of IP", func(f *Facts, p parts) {
			f.Netfilter = Netfilter{IP4: true, Tables6: []string{"filter"}, Chains: []Chain{{Family: unix.NFPROTO_IPV6, Hook: unix.NF_INET_FORWARD}}}
		}, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
		{"a hook on another device", func(f *Facts, p parts) {
			f.Netfilter.Chains = []Chain{{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{{Name: "eth0"}, {Name: "vx"}, {Name: "ve11", Prefix: true}}}}
		}, Verdict{MTU: 1400, Refresh: 5 * time.Minute}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Path, tt.want.MAC, tt.want.TunnelMAC = aPath, podMAC, tunnelMAC
			if tt.want.Relearn == 0 {
				tt.want.Relearn = tt.want.Refresh
			}
			if d := cmp.Diff(tt.want, Evaluate(overlay(tt.change), aPath)); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestEachViolationIsAReason(t *testing.T) {
	chain := func(c Chain) func(*Facts, parts) {
		return func(f *Facts, p parts) {
			c.Table, c.Name = "tab", "mine"
			f.Netfilter = Netfilter{IP4: true, IP6: true, Chains: []Chain{c}}
		}
	}
	calls := func(n Netfilter) func(*Facts, parts) {
		return func(f *Facts, p parts) { n.IP4 = true; f.Netfilter = n }
	}
	const handed = "br_netfilter hands the frames of br0 to iptables (bridge-nf-call-iptables), and "
	tests := []struct {
		name   string
		change func(f *Facts, p parts)
		want   string // how the reason begins
	}{
		{"nothing was seen", func(f *Facts, _ parts) { f.Unknown = "cannot read" }, "cannot read"},
		{"another namespace", func(f *Facts, _ parts) { f.Cookie = 8 }, "tunnel and veth are not both in the network namespace"},
		{"the tunnel is gone", func(_ *Facts, p parts) { *p.tunnel = Device{} }, "tunnel or veth are no longer there"},
		{"the veth is gone", func(_ *Facts, p parts) { *p.host = Device{} }, "tunnel or veth are no longer there"},
		{"something else has the tunnel's index", func(_ *Facts, p parts) { p.tunnel.Kind = "gretap" }, "vx0 is no tunnel"},
		{"something else has the veth's index", func(_ *Facts, p parts) { p.host.Kind = "tun" }, "ve1 is no veth"},
		{"a tunnel for all identifiers", func(_ *Facts, p parts) { p.tunnel.Metadata = true }, "vx0 takes packets of any network identifier"},
		{"routed", func(_ *Facts, p parts) { p.tunnel.Master, p.tunnel.Port, p.host.Master, p.host.Port = 0, nil, 0, nil }, "vx0 is not in a bridge: the host routes"},
		{"the veth alone is in a bridge", func(_ *Facts, p parts) { p.tunnel.Master, p.tunnel.Port = 0, nil }, "vx0 is not in a bridge: the host routes"},
		{"a port of Open vSwitch", func(_ *Facts, p parts) { p.bridge.Bridge = nil }, "vx0 is a port of something that is no bridge"},
		{"the tunnel alone is in a bridge", func(_ *Facts, p parts) { p.host.Master, p.host.Port = 0, nil }, "ve1 is not in the bridge br0"},
		{"two bridges", func(_ *Facts, p parts) { p.host.Master = 4 }, "ve1 is not in the bridge br0"},
		{"one namespace", func(_ *Facts, p parts) { p.host.Peer = nil }, "both ends of ve1 are in one network namespace"},
		{"the peer cannot be read", func(_ *Facts, p parts) { p.host.Peer, p.host.Unknown = nil, "ve1: EIO" }, "ve1: EIO"},
		{"the bridge cannot be read", func(_ *Facts, p parts) { p.bridge.Unknown = "br0: EIO" }, "br0: EIO"},
		{"the tunnel cannot be read", func(_ *Facts, p parts) { p.tunnel.Unknown = "vx0: EIO" }, "vx0: EIO"},
		{"VLANs", func(_ *Facts, p parts) { p.bridge.Bridge.VLANs = true }, "br0 filters by VLAN"},
		{"tunnel blocked", func(_ *Facts, p parts) { p.tunnel.Port.State = 4 }, "port vx0 of br0 is blocking, not forwarding"},
		{"veth disabled", func(_ *Facts, p parts) { p.host.Port.State = 0 }, "port ve1 of br0 is disabled, not forwarding"},
		{"a state of a later kernel", func(_ *Facts, p parts) { p.host.Port.State = 9 }, "port ve1 of br0 is in a state that is not known"},
		{"isolated", func(_ *Facts, p parts) { p.tunnel.Port.Isolated, p.host.Port.Isolated = true, true }, "ports vx0 and ve1 of br0 are isolated"},
		{"locked", func(_ *Facts, p parts) { p.tunnel.Port.Locked = true }, "port vx0 of br0 is locked"},
		{"vlan_tunnel at the tunnel", func(_ *Facts, p parts) { p.tunnel.Port.VLANTunnel = true }, "br0 makes VLANs"},
		{"vlan_tunnel at the veth", func(_ *Facts, p parts) { p.host.Port.VLANTunnel = true }, "br0 makes VLANs"},
		{"no address", func(_ *Facts, p parts) { p.host.Peer.Address = MAC{} }, "the pod's end of ve1 has no Ethernet address"},
		{"a bridge in the pod", func(_ *Facts, p parts) { p.host.Peer.Master = 5 }, "the pod's end of ve1 is a port"},
		{"not learned", func(_ *Facts, p parts) { p.host.Peer.Entry = nil }, "br0 has not learned the pod's address 02:00:00:00:00:07"},
		{"learned elsewhere", func(_ *Facts, p parts) { p.host.Peer.Entry.Dev = 1 }, "br0 has the pod's address 02:00:00:00:00:07 behind another port"},
		{"an address of the host", func(_ *Facts, p parts) { p.host.Peer.Entry.Local = true }, "br0 has the pod's address 02:00:00:00:00:07 for one of the host's own"},
		{"not let in", func(_ *Facts, p parts) { p.host.Peer.Entry.Locked = true }, "br0 has not let the pod's address 02:00:00:00:00:07 in yet"},
		{"XDP on the bridge", func(_ *Facts, p parts) { p.bridge.XDP = 5 }, "XDP program 5 is on br0"},
		{"XDP on the veth", func(_ *Facts, p parts) { p.host.XDP = 5 }, "XDP program 5 is on ve1"},
		{"XDP in the pod", func(_ *Facts, p parts) { p.host.Peer.XDP = 5 }, "XDP program 5 is on the pod's end of ve1"},
		{"tcx on the tunnel", func(_ *Facts, p parts) { p.tunnel.TCX = []uint32{6} }, "tc program 6 on vx0 is foreign"},
		{"tcx on the bridge", func(_ *Facts, p parts) { p.bridge.TCX = []uint32{6} }, "tc program 6 on br0 is foreign"},
		{"tcx on the veth", func(_ *Facts, p parts) { p.host.TCX = []uint32{6} }, "tc program 6 on ve1 is foreign"},
		{"clsact on the tunnel", func(_ *Facts, p parts) { p.tunnel.Filters = "clsact" }, "the foreign qdisc clsact, with its filters, is on vx0; see: tc filter show dev vx0"},
		{"clsact on the bridge", func(_ *Facts, p parts) { p.bridge.Filters = "clsact" }, "the foreign qdisc clsact, with its filters, is on br0"},
		{"ingress on the veth", func(_ *Facts, p parts) { p.host.Filters = "ingress" }, "the foreign qdisc ingress, with its filters, is on ve1"},
		{"a queue at the pod's end", func(_ *Facts, p parts) { p.host.Queues = true }, "TCP segmentation is off on ve1, so that the pod's end may have a queue of its own"},
		{"shaped", func(_ *Facts, p parts) { p.host.Qdisc = "tbf" }, "the qdisc tbf is on ve1"},
		{"not told its qdisc", func(_ *Facts, p parts) { p.host.Qdisc = "" }, "the qdisc  is on ve1"},
		{"ebtables", func(f *Facts, _ parts) { f.Netfilter.Ebtables = "ebtable_nat" }, "legacy ebtables is in the kernel (ebtable_nat)"},
		{"a bridge chain", func(f *Facts, p parts) {
			f.Netfilter.Chains = []Chain{{Family: unix.NFPROTO_BRIDGE, Hook: 2, Table: "filter", Name: "FORWARD"}}
		}, "nftables filters what bridges forward: chain bridge filter FORWARD"},
		{"a hook on the tunnel", chain(Chain{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{{Name: "eth0"}, {Name: "vx0"}}}), "nftables has a hook on vx0: chain netdev tab mine"},
		{"a hook on the veth", chain(Chain{Family: unix.NFPROTO_NETDEV, Hook: 1, Devices: []Pattern{{Name: "ve", Prefix: true}}}), "nftables has a hook on ve1: chain netdev tab mine"},
		{"a hook on the bridge", chain(Chain{Family: unix.NFPROTO_INET, Hook: 5, Devices: []Pattern{{Name: "br0"}}}), "nftables has a hook on br0: chain inet tab mine"},
		{"a flow table", chain(Chain{Family: unix.NFPROTO_INET, Hook: -1, Devices: []Pattern{{Name: "vx0"}}}), "nftables has a hook on vx0: flowtable inet tab mine"},
		{"a hook on devices not told", chain(Chain{Family: unix.NFPROTO_NETDEV, Devices: anyDevice}), "nftables has a hook on vx0"},
		{"ip prerouting", chain(Chain{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_PRE_ROUTING}), handed + "there are rules in chain ip tab mine"},
		{"inet forward", chain(Chain{Family: unix.NFPROTO_INET, Hook: unix.NF_INET_FORWARD}), handed + "there are rules in chain inet tab mine"},
		{"ip6 postrouting", chain(Chain{Family: unix.NFPROTO_IPV6, Hook: unix.NF_INET_POST_ROUTING}),
			"br_netfilter hands the frames of br0 to ip6tables (bridge-nf-call-ip6tables), and there are rules in chain ip6 tab mine"},
		{"the bridge's own setting", func(f *Facts, p parts) {
			p.bridge.Bridge.IP4 = true
			f.Netfilter.Chains = []Chain{{Family: unix.NFPROTO_IPV4, Hook: unix.NF_INET_FORWARD, Table: "filter", Name: "FORWARD"}}
		}, handed + "there are rules in chain ip filter FORWARD"},
		{"the bridge's own setting for IPv6", func(f *Facts, p parts) {
			p.bridge.Bridge.IP6 = true
			f.Netfilter.Tables6 = []string{"filter"}
		}, "br_netfilter hands the frames of br0 to ip6tables (bridge-nf-call-ip6tables), and there are rules in the tables: filter"},
		{"legacy tables", calls(Netfilter{Tables4: []string{"nat", "filter"}}), handed + "there are rules in the tables: nat, filter"},
		{"IPVS", calls(Netfilter{IPVS: true}), handed + "IPVS has services here"},
		{"BPF at netfilter", calls(Netfilter{Programs: 1}), handed + "BPF programs are on netfilter hooks"},
		{"connection tracking", calls(Netfilter{Conntrack: true}), handed + "connections are tracked here"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Evaluate(overlay(tt.change), aPath)
			if got.Safe() || !strings.HasPrefix(got.Reason, tt.want) {
				t.Fatalf("reason %q\nwant   %q...", got.Reason, tt.want)
			}
			if d := cmp.Diff(Verdict{Path: aPath, Reason: got.Reason}, got); d != "" {
				t.Fatalf("says what to do all the same:\n%s", d)
			}
		})
	}
}

func TestPastAHostEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Facts, parts)
		want   string
	}{
		"nothing":                      {func(*Facts, parts) {}, ""},
		"what the bridge would forbid": {func(_ *Facts, p parts) { p.bridge.XDP, p.host.Port, p.host.Peer.Entry = 5, nil, nil }, ""},
		"the veth cannot be read":      {func(_ *Facts, p parts) { p.host.Unknown = "ve1: EIO" }, "ve1: EIO"},
		"one namespace":                {func(_ *Facts, p parts) { p.host.Peer = nil }, "both ends of ve1 are in one network namespace"},
		"XDP in the pod":               {func(_ *Facts, p parts) { p.host.Peer.XDP = 5 }, "XDP program 5 is on the pod's end of ve1"},
		"tcx on the veth":              {func(_ *Facts, p parts) { p.host.TCX = []uint32{6} }, "tc program 6 on ve1 is foreign"},
		"shaped":                       {func(_ *Facts, p parts) { p.host.Qdisc = "tbf" }, "the qdisc tbf is on ve1, and would be skipped"},
	} {
		if got := pastHostEnd(overlay(tt.change), aPath.Host.Ifindex); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestNoFactsAreAReason(t *testing.T) {
	if v := Evaluate(Facts{}, Path{}); v.Safe() {
		t.Fatal("knows nothing and finds it safe")
	}
}
