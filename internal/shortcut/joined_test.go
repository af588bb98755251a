// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/netns"
)

// station is a namespace that joined datagrams come through, by its device eth0 and out by out0.
type station struct {
	t  testing.TB
	ns *netns.Handle
	Passage
	places *Places
	around Around // by the last scan
}

func newStation(t testing.TB) *station {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	for _, tool := range []string{"ip", "tc", "nft", "iptables-legacy", "iptables-nft", "ebtables-nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	s := &station{t: t, ns: ns, places: NewPlaces(orNone(nil)), Passage: Passage{Ports: []uint16{4789}}}
	s.run("ip link set lo up\nip link add eth0 type veth peer name out0\nip link set eth0 up\nip link set out0 up")
	err = ns.Do(func() error {
		for _, d := range []Passed{{Name: "eth0", In: true}, {Name: "out0", Out: true}} {
			var err error
			if d.Ifindex, err = indexOf(d.Name); err != nil {
				return err
			}
			s.Devs = append(s.Devs, d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// indexOf asks for a device in the namespace of the calling thread.
func indexOf(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

// run has a shell run a script in the namespace.
func (s *station) run(script string) {
	s.t.Helper()
	err := s.ns.Do(func() error {
		sh := exec.Command("sh", "-e")
		sh.Stdin = strings.NewReader(script)
		out, err := sh.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *station) scan() (reason string) {
	s.t.Helper()
	err := s.ns.Do(func() error {
		if err := s.places.Begin(); err != nil {
			return err
		}
		o, around, err := s.places.Scan(1, s.Passage)
		if err != nil {
			return err
		}
		s.around = around
		reason = o.String()
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return reason
}

// vniBytecode is how Docker has a match bpf find a VXLAN's number.
const vniBytecode = "7,32 0 0 4294963252,7 0 0 0,64 0 0 4,116 0 0 8,21 1 0 4096,6 0 0 0,6 0 0 4294967295"

const nftHead = `nft add table inet t
nft 'add chain inet t in { type filter hook input priority 0; }'
`

// Rules as the tools load them: what would tell joined datagrams from single ones is named, and nothing
// else.
func TestRulesThatTellJoinedDatagrams(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"nothing", "", ""},
		{"nft: length", nftHead + "nft add rule inet t in meta length 0-300 accept", "rule handle 2 of nftables' chain inet t in has the packet's length (meta length)"},
		{"nft: udp length", nftHead + "nft add rule inet t in udp length 0-300 accept", "@th,32,16"},
		{"nft: ip length", nftHead + "nft add rule inet t in ip length 0-300 accept", "@nh,16,16"},
		{"nft: ip6 length", nftHead + "nft add rule inet t in ip6 length 0-300 accept", "@nh,32,16"},
		{"nft: payload", nftHead + "nft add rule inet t in udp dport 53 @th,64,16 1 drop", "@th,64,16"},
		{"nft: limit", nftHead + "nft add rule inet t in limit rate 1000/second accept", "a rate of packets"},
		{"nft: limit of bytes", nftHead + "nft add rule inet t in limit rate 1000 kbytes/second accept", "a rate of bytes"},
		{"nft: named limit", nftHead + "nft add limit inet t l rate 1000/second\nnft add rule inet t in limit name l accept", "a rate (limit l)"},
		{"nft: quota", nftHead + "nft add rule inet t in quota over 1 mbytes drop", "a quota"},
		{"nft: numgen", nftHead + "nft add rule inet t in numgen random mod 2 0 drop", "numgen"},
		{"nft: meter", nftHead + "nft 'add set inet t s { type ipv4_addr; flags dynamic; }'\nnft 'add rule inet t in add @s { ip saddr limit rate 10/second } accept'", "a rate of packets"},
		{"nft: set with limits", nftHead + "nft 'add set inet t s { type ipv4_addr; limit rate 10/second; elements = { 10.0.0.1 } }'\nnft 'add rule inet t in ip saddr @s accept'", "a rate of packets"},
		{"nft: ct packets", nftHead + "nft add rule inet t in ct original packets \\> 10 drop", "ct packets"},
		{"nft: a rate that decides more than a log", nftHead + "nft add chain inet t c\nnft add rule inet t in jump c\nnft add rule inet t c limit rate 3/minute return\nnft add rule inet t c drop", "chain inet t c has a rate of packets"},
		{"nft: a jump at a rate", nftHead + "nft add chain inet t c\nnft add rule inet t c drop\nnft add rule inet t in limit rate 3/minute jump c", "chain inet t in has a rate of packets"},
		{"nft: a goto at a rate", nftHead + "nft add chain inet t c\nnft add rule inet t c log\nnft add rule inet t in limit rate 3/minute goto c\nnft add rule inet t in drop", "chain inet t in has a rate of packets"},
		{"nft: a mark at a rate", nftHead + "nft add rule inet t in limit rate 3/minute meta mark set 1", "a rate of packets"},
		{"nft: a tunnel's header, any port", nftHead + "nft add rule inet t in meta l4proto udp @th,96,24 0x1000 drop", "@th,96,24"},
		{"nft: a header at the port of no tunnel", nftHead + "nft add rule inet t in udp dport 53 @th,96,24 0x1000 drop", "@th,96,24"},
		{"nft: behind a tunnel's header", nftHead + "nft add rule inet t in udp dport 4789 @th,96,48 0x1000 drop", "@th,96,48"},
		{"nft: in a chain that is jumped to", nftHead + "nft add chain inet t c\nnft add rule inet t c meta length 0-300 accept\nnft add rule inet t in jump c", "chain inet t c has the packet's length"},
		{"nft: by a verdict map", nftHead + "nft add chain inet t c\nnft add rule inet t c meta length 0-300 accept\nnft add rule inet t in 'udp dport vmap { 53 : jump c }'", "chain inet t c has"},
		{"nft: nat, length", "nft add table ip t\nnft 'add chain ip t p { type nat hook prerouting priority -100; }'\nnft add rule ip t p meta length 0-300 accept", "the packet's length"},
		{"nft: on the device", "nft add table netdev t\nnft 'add chain netdev t i { type filter hook ingress device eth0 priority 0; }'\nnft add rule netdev t i meta length 0-300 accept", "chain netdev t i"},
		{"nft: on a bridge", "nft add table bridge t\nnft 'add chain bridge t f { type filter hook forward priority 0; }'\nnft add rule bridge t f limit rate 10/second accept", "chain bridge t f"},

		{"nft: on another device", "nft add table netdev t\nnft 'add chain netdev t i { type filter hook ingress device out0 priority 0; }'\nnft add rule netdev t i meta length 0-300 accept", ""},
		{"nft: of TCP", nftHead + "nft add rule inet t in meta l4proto tcp limit rate 10/second accept\nnft add rule inet t in tcp flags syn limit rate 10/second accept\nnft add rule inet t in icmp type echo-request limit rate 5/second accept", ""},
		{"nft: of what is sent", "nft add table ip t\nnft 'add chain ip t o { type filter hook output priority 0; }'\nnft add rule ip t o limit rate 10/second accept", ""},
		{"nft: not jumped to", nftHead + "nft add chain inet t c\nnft add rule inet t c meta length 0-300 accept", ""},
		{"nft: logs at a rate", nftHead + "nft add rule inet t in limit rate 3/minute log prefix x", ""},
		{"nft: a rate that decides only what is logged", nftHead + "nft add chain inet t c\nnft add chain inet t d\nnft add rule inet t in jump c\nnft add rule inet t c ct state invalid limit rate 3/minute return\nnft add rule inet t c limit rate 3/minute jump d\nnft add rule inet t c counter goto d\nnft add rule inet t d limit rate 1/minute log\nnft add rule inet t in limit rate 3/minute return", ""},
		{"nft: a copy that no program gets", nftHead + "nft add rule inet t in limit rate 1/second log group 3", ""},
		{"nft: a tunnel's number, as Docker", `nft -f - <<EOF
table ip docker-overlay {
	set encrypted-vnis { typeof @th,96,24; elements = { 0x1000 }; }
	chain enc-in { type filter hook input priority raw; meta ipsec missing udp dport 4789 @th,96,24 @encrypted-vnis counter drop; }
}
EOF`, ""},
		{"nft: addresses, ports, states, marks", nftHead + `nft add rule inet t in ip saddr 10.0.0.0/8 udp dport '{ 53, 4789 }' counter accept
nft add rule inet t in ip6 saddr fd00::/16 ip6 daddr fd00::1 accept
nft add rule inet t in ct state established,related accept
nft add rule inet t in meta mark 1 meta iifname eth0 ip dscp 0x08 ip ttl 64 accept
nft add rule inet t in fib saddr . iif oif missing drop
nft add rule inet t in ct count over 100 drop
nft add rule inet t in meta mark set ct mark reject`, ""},

		{"iptables: length", "iptables-legacy -N c\niptables-legacy -A c -m comment --comment x -j RETURN\niptables-legacy -A c -m length --length 0:300 -j ACCEPT\niptables-legacy -A INPUT -j c", "rule 2 of iptables -t filter, chain c, has the packet's length (-m length)"},
		{"iptables: limit", "iptables-legacy -A FORWARD -m limit --limit 1000/s -j ACCEPT", "rule 1 of iptables -t filter, chain FORWARD, has a rate of packets (-m limit)"},
		{"iptables: hashlimit", "iptables-legacy -A INPUT -p udp -m hashlimit --hashlimit-upto 10/s --hashlimit-name f -j ACCEPT", "-m hashlimit"},
		{"iptables: statistic", "iptables-legacy -A INPUT -m statistic --mode random --probability 0.5 -j DROP", "-m statistic"},
		{"iptables: quota", "iptables-legacy -A INPUT -m quota --quota 100 -j ACCEPT", "-m quota"},
		{"iptables: u32, length", "iptables-legacy -t raw -A PREROUTING -m u32 --u32 '0&0xFFFF=0x100:0xFFFF' -j DROP", "-m u32"},
		{"iptables: u32, any port", "iptables-legacy -A INPUT -p udp -m u32 --u32 '0>>22&0x3C@12&0xFFFFFF00=0x100000' -j DROP", "-m u32"},
		{"iptables: u32, the port of no tunnel", "iptables-legacy -A INPUT -p udp --dport 53 -m u32 --u32 '0>>22&0x3C@12&0xFFFFFF00=0x100000' -j DROP", "-m u32"},
		{"iptables: u32, several ports", "iptables-legacy -A INPUT -p udp --dport 4789:4790 -m u32 --u32 '0>>22&0x3C@12&0xFFFFFF00=0x100000' -j DROP", "-m u32"},
		{"iptables: u32, behind the tunnel's header", "iptables-legacy -A INPUT -p udp --dport 4789 -m u32 --u32 '0>>22&0x3C@14&0xFFFFFF00=0x100000' -j DROP", "-m u32"},
		{"iptables: u32, where a packet says", "iptables-legacy -A INPUT -p udp --dport 4789 -m u32 --u32 '8&0xF@12=1' -j DROP", "-m u32"},
		{"iptables: bpf, length", "iptables-legacy -A INPUT -m bpf --bytecode '4,128 0 0 0,37 1 0 300,6 0 0 0,6 0 0 1' -j DROP", "-m bpf"},
		{"iptables: bpf, any port", "iptables-legacy -A INPUT -p udp -m bpf --bytecode '" + vniBytecode + "' -j DROP", "-m bpf"},
		{"iptables: a rate that decides more than a log", "iptables-legacy -N c\niptables-legacy -A INPUT -j c\niptables-legacy -A c -m limit --limit 3/min -j RETURN\niptables-legacy -A c -j DROP", "rule 1 of iptables -t filter, chain c, has a rate of packets"},
		{"iptables: a goto at a rate", "iptables-legacy -N c\niptables-legacy -A c -j LOG\niptables-legacy -A INPUT -m limit --limit 3/min -g c\niptables-legacy -A INPUT -j DROP", "chain INPUT, has a rate of packets"},
		{"ip6tables: a goto at a rate", "ip6tables-legacy -N c\nip6tables-legacy -A c -j LOG\nip6tables-legacy -A INPUT -m limit --limit 3/min -g c\nip6tables-legacy -A INPUT -j DROP", "chain INPUT, has a rate of packets"},
		{"iptables: TEE", "iptables-legacy -t mangle -A PREROUTING -j TEE --gateway 10.0.0.1", "-j TEE"},
		{"iptables: nat, length", "iptables-legacy -t nat -A PREROUTING -m length --length 0:300 -j REDIRECT", "-t nat, chain PREROUTING, has the packet's length"},
		{"ip6tables: length", "ip6tables-legacy -A INPUT -m length --length 0:300 -j ACCEPT", "rule 1 of ip6tables -t filter"},
		{"iptables on nftables: length", "iptables-nft -A INPUT -m length --length 0:300 -j ACCEPT", "the packet's length (-m length)"},
		{"iptables on nftables: limit", "iptables-nft -A INPUT -m limit --limit 10/s -j ACCEPT", "a rate of packets"},
		{"ebtables on nftables: limit", "ebtables-nft -A FORWARD --limit 10/s -j ACCEPT", "chain bridge filter FORWARD"},

		{"iptables: of TCP", "iptables-legacy -A INPUT -p tcp -m limit --limit 10/s -j ACCEPT\niptables-legacy -A INPUT ! -p udp -m length --length 0:300 -j ACCEPT\niptables-nft -A INPUT -p tcp -m length --length 0:300 -j ACCEPT", ""},
		{"iptables: of what is sent", "iptables-legacy -A OUTPUT -m limit --limit 10/s -j ACCEPT", ""},
		{"iptables: logs at a rate, as ufw does", "iptables-legacy -A INPUT -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix x\niptables-nft -A INPUT -m limit --limit 3/min -j LOG", ""},
		{"iptables: a rate that decides only what is logged", "for t in iptables-legacy ip6tables-legacy iptables-nft; do $t -N c; $t -A INPUT -j c; $t -A c -m conntrack --ctstate INVALID -m limit --limit 3/min -j RETURN; $t -A c -m limit --limit 3/min -j LOG; $t -A INPUT -m limit --limit 3/min -j c; $t -A INPUT -m limit --limit 3/min -g c; $t -A INPUT -m limit --limit 3/min -j RETURN; done", ""},
		{"iptables: a copy that no program gets", "for t in iptables-legacy iptables-nft; do $t -A INPUT -m limit --limit 10/min -j NFLOG --nflog-group 100; done", ""},
		{"iptables: u32, headers", "iptables-legacy -A INPUT -m u32 --u32 '0>>28&0xF=4 && 6&0xFF=17 && 0>>22&0x3C@0&0xFFFF=53' -j DROP", ""},
		{"iptables: a tunnel's number, as Docker", "for t in iptables-legacy iptables-nft; do $t -A INPUT -p udp --dport 4789 -m u32 --u32 '0>>22&0x3C@12&0xFFFFFF00=0x100000' -j DROP; $t -A INPUT -p udp --dport 4789 -m bpf --bytecode '" + vniBytecode + "' -j DROP; done", ""},
		{"iptables: what most rules have", `iptables-legacy -A INPUT -i eth0 -s 10.0.0.0/8 -p udp -m udp --dport 53 -m conntrack --ctstate NEW -m mark --mark 1 -m addrtype --dst-type LOCAL -m multiport --sports 1,2 -j ACCEPT
iptables-legacy -t mangle -A PREROUTING -j CONNMARK --restore-mark
iptables-legacy -A INPUT -j REJECT`, ""},

		{"tc: htb", "tc qdisc add dev out0 root htb", ""},
		{"tc: u32", "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match ip dport 53 0xffff match ip src 10.0.0.1 flowid 1:1", ""},
		{"tc: u32 by length", "tc qdisc add dev eth0 clsact\ntc filter add dev eth0 ingress protocol ip u32 match u16 0x0100 0xff00 at 2 flowid 1:1", "tc filter (u32) that reads bytes"},
		{"tc: u32, what another device gets", "tc qdisc add dev out0 clsact\ntc filter add dev out0 ingress protocol ip u32 match u16 0x0100 0xff00 at 2 flowid 1:1", ""},
		{"tc: mirrored", "tc qdisc add dev out0 clsact\ntc filter add dev out0 egress protocol ip u32 match u32 0 0 action mirred egress mirror dev lo", "tc action that may tell joined packets (mirred)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStation(t)
			s.run(tt.script)
			if got := s.scan(); got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}
