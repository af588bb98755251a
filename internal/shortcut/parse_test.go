// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"slices"
	"testing"

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

func FuzzAnswers(f *testing.F) {
	f.Add(nlsock.Attr(ifinfomsg(3), unix.IFLA_LINKINFO, nlsock.Attr(nil, unix.IFLA_INFO_KIND, []byte("bridge\x00"))))
	f.Fuzz(func(_ *testing.T, b []byte) {
		parseLink(b)
		parsePort(b)
		parseEntry(b)
		parseChain(b)
		parseFlowtable(b)
		for m := range nlsock.Messages(b) {
			matters(m)
		}
	})
}
