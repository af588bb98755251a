// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// What this machine's kernel may not have is tested by what it would answer.
func TestNftablesAnswers(t *testing.T) {
	header := func(family byte) []byte { return []byte{family, 0, 0, 1} }
	hook := func(num uint32, more ...[]byte) []byte {
		return nlsock.Attr(nil, unix.NFTA_CHAIN_HOOK, append(nlsock.Attr(nil, unix.NFTA_HOOK_HOOKNUM, be(num)), slices.Concat(more...)...))
	}
	devs := func(more ...[]byte) []byte { return nlsock.Attr(nil, nftaHookDevs, slices.Concat(more...)) }
	name := func(s string) []byte { return nlsock.Attr(nil, nftaDeviceName, zstr(s)) }
	flows := func(more ...[]byte) []byte { return nlsock.Attr(nil, nftaFlowtableHook, slices.Concat(more...)) }
	for _, tt := range []struct {
		name  string
		parse func([]byte) (Chain, bool)
		msg   []byte
		want  Chain
		ok    bool
	}{
		{"no base chain", parseChain, slices.Concat(header(unix.NFPROTO_IPV4), nlsock.Attr(nil, unix.NFTA_CHAIN_NAME, zstr("x"))),
			Chain{Family: unix.NFPROTO_IPV4, Name: "x"}, false},
		{"a base chain", parseChain, slices.Concat(header(unix.NFPROTO_IPV4), hook(2)), Chain{Family: unix.NFPROTO_IPV4, Hook: 2}, true},
		{"a device", parseChain, slices.Concat(header(unix.NFPROTO_NETDEV), hook(0, devs(name("eth0")))),
			Chain{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{{Name: "eth0"}}}, true},
		{"a prefix", parseChain, slices.Concat(header(unix.NFPROTO_NETDEV), hook(1, devs(name("eth0"), nlsock.Attr(nil, nftaDevicePrefix, []byte("ve"))))),
			Chain{Family: unix.NFPROTO_NETDEV, Hook: 1, Devices: []Pattern{{Name: "eth0"}, {Name: "ve", Prefix: true}}}, true},
		{"no device any more", parseChain, slices.Concat(header(unix.NFPROTO_NETDEV), hook(0, devs())),
			Chain{Family: unix.NFPROTO_NETDEV, Devices: []Pattern{}}, true},
		{"something of a later kernel", parseChain, slices.Concat(header(unix.NFPROTO_NETDEV), hook(0, devs(name("eth0"), nlsock.Attr(nil, 9, nil)))),
			Chain{Family: unix.NFPROTO_NETDEV, Devices: anyDevice}, true},
		{"devices not told", parseChain, slices.Concat(header(unix.NFPROTO_INET), hook(nfInetIngress)),
			Chain{Family: unix.NFPROTO_INET, Hook: nfInetIngress, Devices: anyDevice}, true},
		{"a flow table", parseFlowtable, slices.Concat(header(unix.NFPROTO_INET), nlsock.Attr(nil, nftaFlowtableTable, zstr("t")), nlsock.Attr(nil, nftaFlowtableName, zstr("f")),
			flows(nlsock.Attr(nil, nftaFlowtableHookDevs, name("vx0")))),
			Chain{Family: unix.NFPROTO_INET, Table: "t", Name: "f", Hook: -1, Devices: []Pattern{{Name: "vx0"}}}, true},
		{"a flow table of devices not told", parseFlowtable, header(unix.NFPROTO_INET), Chain{Family: unix.NFPROTO_INET, Hook: -1, Devices: anyDevice}, true},
		{"too short", parseChain, []byte{7}, Chain{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := tt.parse(tt.msg)
			if d := cmp.Diff(tt.want, got); d != "" || ok != tt.ok {
				t.Fatalf("%t\n%s", ok, d)
			}
		})
	}
}

func TestEntriesOfABridge(t *testing.T) {
	b := make([]byte, unix.SizeofNdMsg)
	b[0], b[4], b[8] = unix.AF_BRIDGE, 3, unix.NUD_REACHABLE
	if d := cmp.Diff(&Entry{Dev: 3}, parseEntry(b)); d != "" {
		t.Fatal(d)
	}
	b[8] = unix.NUD_PERMANENT
	if d := cmp.Diff(&Entry{Dev: 3, Local: true}, parseEntry(b)); d != "" {
		t.Fatal(d)
	}
	b[8] = unix.NUD_STALE
	if d := cmp.Diff(&Entry{Dev: 3, Locked: true}, parseEntry(nlsock.Attr32(b, ndaFlagsExt, ntfExtLocked))); d != "" {
		t.Fatal(d)
	}
	b[0] = unix.AF_INET
	if e := parseEntry(b); e != nil {
		t.Fatalf("a neighbour of IP was taken for %+v", e)
	}
}

func TestTunnelsAndProgramsOfADevice(t *testing.T) {
	tunnel := func(kind string, data ...[]byte) []byte {
		info := nlsock.Attr(nil, unix.IFLA_INFO_KIND, zstr(kind))
		info = nlsock.Attr(info, unix.IFLA_INFO_DATA, slices.Concat(data...))
		return nlsock.Attr(nlsock.IfInfo(3), unix.IFLA_LINKINFO, info)
	}
	byt := func(typ uint16, v byte) []byte { return nlsock.Attr(nil, typ, []byte{v}) }
	age := nlsock.Attr32(nil, unix.IFLA_VXLAN_AGEING, 60)
	for _, tt := range []struct {
		name string
		msg  []byte
		want Device
	}{
		{"it learns", tunnel("vxlan", byt(unix.IFLA_VXLAN_LEARNING, 1), age), Device{Kind: "vxlan", Learning: time.Minute}},
		{"it does not learn", tunnel("vxlan", byt(unix.IFLA_VXLAN_LEARNING, 0), age), Device{Kind: "vxlan"}},
		{"it does not forget", tunnel("vxlan", byt(unix.IFLA_VXLAN_LEARNING, 1), nlsock.Attr32(nil, unix.IFLA_VXLAN_AGEING, 0)), Device{Kind: "vxlan"}},
		{"GBP", tunnel("vxlan", nlsock.Attr(nil, unix.IFLA_VXLAN_GBP, nil)), Device{Kind: "vxlan", Marks: true}},
		{"GPE", tunnel("vxlan", nlsock.Attr(nil, unix.IFLA_VXLAN_GPE, nil)), Device{Kind: "vxlan", Marks: true}},
		{"of any identifier", tunnel("vxlan", byt(unix.IFLA_VXLAN_COLLECT_METADATA, 1)), Device{Kind: "vxlan", Metadata: true}},
		{"of one", tunnel("vxlan", byt(unix.IFLA_VXLAN_COLLECT_METADATA, 0)), Device{Kind: "vxlan"}},
		{"geneve has other numbers", tunnel("geneve", byt(unix.IFLA_VXLAN_LEARNING, 1), age), Device{Kind: "geneve"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := nlsock.ParseLink(tt.msg)
			if d := cmp.Diff(tt.want, linkOf(l).Device); d != "" || l.Index != 3 {
				t.Fatalf("%d\n%s", l.Index, d)
			}
		})
	}

	// In the driver's mode alone an id is told twice; with one in hardware there are two.
	l := linkOf(nlsock.ParseLink(nlsock.Attr(nlsock.IfInfo(3), unix.IFLA_XDP, slices.Concat(
		nlsock.Attr32(nil, unix.IFLA_XDP_PROG_ID, 0), nlsock.Attr32(nil, unix.IFLA_XDP_DRV_PROG_ID, 7), nlsock.Attr32(nil, unix.IFLA_XDP_HW_PROG_ID, 8)))))
	for ours, want := range map[uint32]uint32{7: 8, 8: 7, 9: 7} {
		w := &Watcher{own: func(id uint32) bool { return id == ours }}
		if got := w.foreignXDP(l); got != want || l.XDP != 7 {
			t.Errorf("with %d ours: %d foreign ones, want %d; on it: %d", ours, got, want, l.XDP)
		}
	}
}

func TestAnswersOfRouting(t *testing.T) {
	rule := func(change func(h []byte), attrs ...[]byte) []byte {
		h := make([]byte, sizeofRuleHdr)
		h[0], h[4], h[7] = unix.AF_INET, unix.RT_TABLE_MAIN, unix.FR_ACT_TO_TBL
		change(h)
		return append(h, slices.Concat(nlsock.Attr32(nil, unix.FRA_PRIORITY, 5), slices.Concat(attrs...))...)
	}
	same := func([]byte) {}
	for _, tt := range []struct {
		name string
		msg  []byte
		want Rule
	}{
		{"plain", rule(same, nlsock.Attr32(nil, unix.FRA_SUPPRESS_PREFIXLEN, notSuppressed), nlsock.Attr(nil, unix.FRA_PROTOCOL, []byte{2})), Rule{5, 254, true}},
		{"a great table", rule(func(h []byte) { h[4] = 0 }, nlsock.Attr32(nil, unix.FRA_TABLE, 1000)), Rule{5, 1000, true}},
		{"to a network", rule(func(h []byte) { h[1] = 8 }), Rule{5, 254, false}},
		{"from a network", rule(func(h []byte) { h[2] = 8 }), Rule{5, 254, false}},
		{"of a class", rule(func(h []byte) { h[3] = 4 }), Rule{5, 254, false}},
		{"prohibits", rule(func(h []byte) { h[7] = 8 }), Rule{5, 254, false}},
		{"not", rule(func(h []byte) { h[8] = 2 }), Rule{5, 254, false}},
		{"of a mark", rule(same, nlsock.Attr32(nil, unix.FRA_FWMARK, 1)), Rule{5, 254, false}},
		{"no default routes", rule(same, nlsock.Attr32(nil, unix.FRA_SUPPRESS_PREFIXLEN, 0)), Rule{5, 254, false}},
		{"of a later kernel", rule(same, nlsock.Attr32(nil, 99, 1)), Rule{5, 254, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, parseRule(tt.msg)); d != "" {
				t.Fatal(d)
			}
		})
	}

	addr := func(ip string, index byte) []byte {
		b := []byte{unix.AF_INET, 24, 0, 0, index, 0, 0, 0}
		a := netip.MustParseAddr(ip)
		return nlsock.Attr(nlsock.Attr(b, unix.IFA_ADDRESS, []byte{192, 0, 2, 99}), unix.IFA_LOCAL, a.AsSlice())
	}
	for msg, want := range map[string]bool{
		string(addr("192.0.2.1", 3)): true, string(addr("192.0.2.1", 4)): false, string(addr("224.0.0.5", 3)): false,
		string(addr("127.0.0.2", 3)): false, string(addr("0.0.0.0", 3)): false, "short": false,
	} {
		if a, ok := parseAddr([]byte(msg), 3); ok != want || ok && a.String() != "192.0.2.1" {
			t.Errorf("%q: %s %t", msg, a, ok)
		}
	}
	if n := parsePolicies(nil); n != -1 {
		t.Errorf("%d policies in no answer", n)
	}
	info := nlsock.Attr(make([]byte, 4), xfrmaSPDInfo, []byte{1, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0})
	if n := parsePolicies(info); nlsock.U32([]byte{1, 0, 0, 0}) == 1 && n != 7 {
		t.Errorf("%d policies, want 7", n)
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add(nlsock.Attr(nlsock.IfInfo(3), unix.IFLA_LINKINFO, nlsock.Attr(nil, unix.IFLA_INFO_KIND, []byte("bridge\x00"))))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if l := nlsock.ParseLink(b); l != nil {
			linkOf(l)
		}
		parsePort(b)
		parseEntry(b)
		parseChain(b)
		parseFlowtable(b)
		parseAddr(b, 3)
		parsePolicies(b)
		isDefault(b)
		if len(b) >= sizeofRuleHdr {
			parseRule(b)
		}
		for m := range nlsock.Messages(b) {
			matters(m)
		}
	})
}

// A tunnel that learns drops what comes from another host than the one that it was told of.
func TestFixedSendersAreThoseThatATunnelWasToldOf(t *testing.T) {
	const tunnel = 7
	mac, far := MAC{2, 0, 0, 0, 0, 1}, netip.MustParseAddr("192.0.2.1")
	entry := func(dev uint32, state uint16, flags byte, attrs ...[]byte) []byte {
		b := make([]byte, unix.SizeofNdMsg)
		b[0], b[10] = unix.AF_BRIDGE, flags
		binary.NativeEndian.PutUint32(b[4:], dev)
		binary.NativeEndian.PutUint16(b[8:], state)
		return slices.Concat(append([][]byte{b}, attrs...)...)
	}
	at, to := nlsock.Attr(nil, unix.NDA_LLADDR, mac[:]), nlsock.Attr(nil, unix.NDA_DST, far.AsSlice())
	for _, tt := range []struct {
		name string
		msg  []byte
		host netip.Addr
		ok   bool
	}{
		{"permanent", entry(tunnel, unix.NUD_PERMANENT, unix.NTF_SELF, at, to), far, true},
		{"static", entry(tunnel, unix.NUD_NOARP, unix.NTF_SELF, at, to), far, true},
		{"behind a nexthop", entry(tunnel, unix.NUD_REACHABLE, unix.NTF_SELF, at, nlsock.Attr32(nil, ndaNexthop, 1)), netip.Addr{}, true},
		{"learned", entry(tunnel, unix.NUD_REACHABLE, unix.NTF_SELF, at, to), far, false},
		{"the bridge's", entry(tunnel, unix.NUD_NOARP, 0, at), netip.Addr{}, false},
		{"another tunnel's", entry(tunnel+1, unix.NUD_PERMANENT, unix.NTF_SELF, at, to), far, false},
		{"for all that is unknown", entry(tunnel, unix.NUD_PERMANENT, unix.NTF_SELF, nlsock.Attr(nil, unix.NDA_LLADDR, make([]byte, 6)), to), far, false},
		{"too short", []byte{unix.AF_BRIDGE}, netip.Addr{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, host, ok := parseFixed(tt.msg, tunnel)
			if ok != tt.ok || ok && (m != mac || host != tt.host) {
				t.Errorf("%s behind %s, %t", m, host, ok)
			}
		})
	}
}

// Lines as Linux 6.8 writes them.
func TestLinesOfSockets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parse func(string) (Socket, bool, error)
		line  string
		want  Socket
		ok    bool
	}{
		{"tcpdump", parsePacket, "0000000000000000 3      3    0003   2     1 0      0      123456", Socket{Kind: "packet", Inode: 123456, Device: 2, LinkLayer: true}, true},
		{"DHCP", parsePacket, "ffff8881a2b3c000 3      2    0800   11    1 768    4294967295 99", Socket{Kind: "packet", Inode: 99, Device: 11}, true},
		{"IPv6, on any", parsePacket, "(____ptrval____) 3      3    86dd   0     1 0      0      7", Socket{Kind: "packet", Inode: 7, LinkLayer: true}, true},
		{"LLDP", parsePacket, "0000000000000000 3      3    88cc   2     1 0      0      8", Socket{Kind: "packet", Inode: 8, Device: 2, LinkLayer: true}, false},
		{"not bound", parsePacket, "0000000000000000 3      3    0003   0     0 0      0      9", Socket{Kind: "packet", Inode: 9, LinkLayer: true}, false},
		{"raw UDP", parseRaw, "17: 00000000:0011 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 123456 2 0000000000000000 0", Socket{Kind: "raw", Inode: 123456}, true},
		{"raw UDP, IPv6", parseRaw, "17: 00000000000000000000000000000000:0011 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5 2 0000000000000000 0", Socket{Kind: "raw", Inode: 5}, true},
		{"ping", parseRaw, "1: 00000000:0001 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 6 2 0000000000000000 0", Socket{Kind: "raw", Inode: 6}, false},
	} {
		if got, ok, err := tt.parse(tt.line); ok != tt.ok || err != nil || !cmp.Equal(tt.want, got) {
			t.Errorf("%s: %+v, %t, %v", tt.name, got, ok, err)
		}
	}
	for _, line := range []string{"", "0000000000000000 3      3    0003   2     1 0      0", "0000000000000000 3      3    zz   2     1 0      0      1"} {
		if _, _, err := parsePacket(line); err == nil {
			t.Errorf("packet: %q was understood", line)
		}
	}
	for _, line := range []string{"", "1: 00000000:0001 00000000:0000", "1: 00000000 00000000:0000 07 0:0 00:00 00 0 0 6 2 0 0"} {
		if _, _, err := parseRaw(line); err == nil {
			t.Errorf("raw: %q was understood", line)
		}
	}
}

// nft reads a language of its own, and iptables options, whatever the shell made of the quotes.
func TestAChainIsShownByAWordThatItsToolReadsAsAName(t *testing.T) {
	for _, tt := range []struct {
		chain ChainKey
		want  string
	}{
		{ChainKey{unix.NFPROTO_INET, false, "filter", "KUBE-SVC_a.1/x"}, "nft -a list chain inet filter KUBE-SVC_a.1/x"},
		{ChainKey{unix.NFPROTO_IPV4, false, "filter", "a;flush"}, "nft -a list table ip filter"},
		{ChainKey{unix.NFPROTO_IPV4, false, "filter", "a\nflush ruleset"}, "nft -a list table ip filter"},
		{ChainKey{unix.NFPROTO_IPV4, false, "filter", ""}, "nft -a list table ip filter"},
		{ChainKey{unix.NFPROTO_BRIDGE, false, "a}", "b"}, "nft -a list ruleset bridge"},
		{ChainKey{unix.NFPROTO_IPV6, true, "mangle", "cali-fw-a"}, "ip6tables-legacy -t mangle -vnL cali-fw-a --line-numbers"},
		{ChainKey{unix.NFPROTO_IPV4, true, "filter", "-F"}, "iptables-legacy -t filter -vnL --line-numbers"},
		{ChainKey{unix.NFPROTO_IPV4, true, "filter", "$(reboot)"}, "iptables-legacy -t filter -vnL --line-numbers"},
	} {
		if got := tt.chain.show().String(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.chain, got, tt.want)
		}
	}
	odd := ChainKey{unix.NFPROTO_IPV4, false, "t", "x; see: reboot"}
	if got, want := odd.rule(PacketRule{Handle: 4}), `rule handle 4 of nftables' chain ip t "$(printf 'x\073\040see:\040reboot')"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
