// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// kubeProxyIptables is what kube-proxy has in its mode iptables, for one service with two endpoints and
// one without any: choices at random and session affinity, all in nat.
const kubeProxyIptables = `iptables-legacy-restore <<EOF
*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.11/32 -p udp -m comment --comment "x has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-SEP-B - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-DNS - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-DNS
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j RETURN
-A KUBE-SVC-DNS -m recent --name KUBE-SEP-A --rcheck --seconds 10800 --reap --rsource -j KUBE-SEP-A
-A KUBE-SVC-DNS -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-A
-A KUBE-SVC-DNS -j KUBE-SEP-B
-A KUBE-SEP-A -s 10.244.0.2/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p udp -m recent --name KUBE-SEP-A --set --rsource -m udp -j DNAT --to-destination 10.244.0.2:53
-A KUBE-SEP-B -p udp -m udp -j DNAT --to-destination 10.244.0.3:53
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
EOF
`

// kubeProxyNftables is the same in its mode nftables.
const kubeProxyNftables = `nft -f - <<EOF
table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.10, 10.96.0.11 }; }
	set affinity-a { type ipv4_addr; flags dynamic,timeout; timeout 3h; }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.11 . udp . 53 : goto reject-chain }; }
	map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.10 . udp . 53 : goto service-dns }; }
	map service-nodeports { type inet_proto . inet_service : verdict; }
	chain reject-chain { reject; }
	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain masquerading { mark and 0x4000 == 0 return; mark set mark xor 0x4000; masquerade fully-random; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nodeport-endpoints-check { meta l4proto . th dport vmap @no-endpoint-nodeports; }
	chain endpoint-a { ip saddr 10.244.0.2 jump mark-for-masquerade; update @affinity-a { ip saddr }; meta l4proto udp dnat to 10.244.0.2:53; }
	chain endpoint-b { meta l4proto udp dnat to 10.244.0.3:53; }
	chain service-dns { ip saddr @affinity-a goto endpoint-a; numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; }
	chain filter-prerouting-pre-dnat { type filter hook prerouting priority -110; ct state new jump firewall-check; }
	chain filter-input { type filter hook input priority -110; ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }
	chain filter-forward { type filter hook forward priority -110; ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
	chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
}
EOF
`

// kubeProxyIPVS is what its mode ipvs adds to iptables; sets of addresses are matched in truth, which
// takes a module here (see TestMatchesOfSets).
const kubeProxyIPVS = `iptables-legacy-restore <<EOF
*filter
:KUBE-NODE-PORT - [0:0]
:KUBE-IPVS-FILTER - [0:0]
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-LOAD-BALANCER
-A KUBE-LOAD-BALANCER -j MARK --or-mark 0x4000
COMMIT
EOF
`

// docker is what Docker has with Swarm: user's chain, isolation, published ports and ingress.
const docker = `iptables-TOOL-restore <<EOF
*filter
:DOCKER - [0:0]
:DOCKER-INGRESS - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-INGRESS
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p udp -m udp --dport 53 -j ACCEPT
-A DOCKER-INGRESS -p tcp -m tcp --dport 8080 -j ACCEPT
-A DOCKER-INGRESS -p tcp -m state --state RELATED,ESTABLISHED -m tcp --sport 8080 -j ACCEPT
-A DOCKER-INGRESS -j RETURN
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
*nat
:DOCKER - [0:0]
:DOCKER-INGRESS - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER-INGRESS
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -o docker_gwbridge -m addrtype --src-type LOCAL -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER ! -i docker0 -p udp -m udp --dport 53 -j DNAT --to-destination 172.17.0.2:53
-A DOCKER-INGRESS -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.18.0.2:8080
-A DOCKER-INGRESS -j RETURN
COMMIT
*mangle
-A PREROUTING -p udp -m udp --dport 4789 -m mark --mark 0x0 -j ACCEPT
COMMIT
EOF
`

// kubeRouter is what kube-router, as in k3s, has for a pod that a NetworkPolicy is for.
const kubeRouter = `iptables-TOOL-restore <<EOF
*filter
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-POD-FW-A - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
-A FORWARD -m comment --comment "kube-router netpol" -j KUBE-ROUTER-FORWARD
-A KUBE-ROUTER-FORWARD -d 10.42.0.5/32 -m comment --comment "rule to jump traffic destined to POD name:web" -j KUBE-POD-FW-A
-A KUBE-POD-FW-A -m comment --comment "rule for stateful firewall for pod" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-POD-FW-A -m addrtype --src-type LOCAL -d 10.42.0.5/32 -j ACCEPT
-A KUBE-POD-FW-A -d 10.42.0.5/32 -m comment --comment "run through default ingress network policy" -j KUBE-NWPLCY-DEFAULT
-A KUBE-POD-FW-A -m comment --comment "rule to log dropped traffic POD name:web" -m mark ! --mark 0x10000/0x10000 -m limit --limit 10/min --limit-burst 10 -j NFLOG --nflog-group 100
-A KUBE-POD-FW-A -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-POD-FW-A -j MARK --set-xmark 0x0/0x10000
-A KUBE-POD-FW-A -j MARK --set-xmark 0x20000/0x20000
-A KUBE-NWPLCY-DEFAULT -p udp -m udp --dport 53 -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-DEFAULT -m mark --mark 0x10000/0x10000 -j RETURN
COMMIT
EOF
`

// ufw is what ufw 0.36.2 has with logging on and routes allowed, but for chains that are empty.
const ufw = `iptables-TOOL-restore <<EOF
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:ufw-after-input - [0:0]
:ufw-after-logging-forward - [0:0]
:ufw-after-logging-input - [0:0]
:ufw-before-forward - [0:0]
:ufw-before-input - [0:0]
:ufw-before-logging-input - [0:0]
:ufw-logging-allow - [0:0]
:ufw-logging-deny - [0:0]
:ufw-not-local - [0:0]
:ufw-skip-to-policy-input - [0:0]
:ufw-user-forward - [0:0]
:ufw-user-input - [0:0]
:ufw-user-limit - [0:0]
:ufw-user-limit-accept - [0:0]
-A INPUT -j ufw-before-logging-input
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A INPUT -j ufw-after-logging-input
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-logging-forward
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-after-input -m addrtype --dst-type BROADCAST -j ufw-skip-to-policy-input
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-after-logging-input -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j ufw-logging-deny
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p udp -m udp --sport 67 --dport 68 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-before-logging-input -m conntrack --ctstate NEW -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW AUDIT] "
-A ufw-logging-allow -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW ALLOW] "
-A ufw-logging-deny -m conntrack --ctstate INVALID -m limit --limit 3/min --limit-burst 10 -j RETURN
-A ufw-logging-deny -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j ufw-logging-deny
-A ufw-not-local -j DROP
-A ufw-skip-to-policy-input -j DROP
-A ufw-user-forward -i eth0 -o br0 -j ACCEPT
-A ufw-user-input -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -m recent --set --name DEFAULT --rsource
-A ufw-user-input -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW -m recent --update --seconds 30 --hitcount 6 --name DEFAULT --rsource -j ufw-user-limit
-A ufw-user-input -p tcp -m tcp --dport 22 -j ufw-user-limit-accept
-A ufw-user-input -p udp -m udp --dport 53 -j ACCEPT
-A ufw-user-limit -m limit --limit 3/min -j LOG --log-prefix "[UFW LIMIT BLOCK] "
-A ufw-user-limit -j REJECT --reject-with icmp-port-unreachable
-A ufw-user-limit-accept -j ACCEPT
COMMIT
EOF
`

// Ordinary nodes lose nothing.
func TestOrdinaryNodesMayJoinDatagrams(t *testing.T) {
	for name, script := range map[string]string{
		"kube-proxy, iptables":             kubeProxyIptables,
		"kube-proxy, iptables on nftables": strings.ReplaceAll(kubeProxyIptables, "-legacy", "-nft"),
		"kube-proxy, nftables":             kubeProxyNftables,
		"kube-proxy, IPVS":                 kubeProxyIPVS,
		"Docker":                           strings.ReplaceAll(docker, "TOOL", "legacy"),
		"Docker, iptables on nftables":     strings.ReplaceAll(docker, "TOOL", "nft"),
		"kube-router":                      strings.ReplaceAll(kubeRouter, "TOOL", "legacy"),
		"kube-router, on nftables":         strings.ReplaceAll(kubeRouter, "TOOL", "nft"),
		"ufw":                              strings.ReplaceAll(ufw, "TOOL", "legacy"),
		"ufw, on nftables":                 strings.ReplaceAll(ufw, "TOOL", "nft"),
		"kube-proxy beside Docker":         kubeProxyIptables + strings.ReplaceAll(docker, "iptables-TOOL-restore", "iptables-legacy-restore --noflush"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			s.account("ct_state_invalid_dropped_pkts", 0)
			s.run(script)
			if got := s.scan(); got != "" {
				t.Error(got)
			}
			// The same bed with one rule that would tell.
			s.run("nft add table ip x\nnft 'add chain ip x f { type filter hook forward priority 0; }'\nnft add rule ip x f limit rate 10/second accept")
			if got := s.scan(); !strings.Contains(got, "chain ip x f has a rate of packets") {
				t.Errorf("with a limit: %q", got)
			}
			s.run("nft delete table ip x")
			if got := s.scan(); got != "" {
				t.Errorf("without it again: %q", got)
			}
		})
	}
}

// netfilter sends a request to nfnetlink on a socket that stays open until the test ends.
func (s *station) netfilter(typ, flags uint16, resource uint16, attrs []byte) {
	s.t.Helper()
	err := s.ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { unix.Close(fd) })
		req := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+sizeofGenmsg+len(attrs)))
		req = binary.NativeEndian.AppendUint16(req, typ)
		req = binary.NativeEndian.AppendUint16(req, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		req = append(req, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(resource>>8), byte(resource))
		if err := unix.Sendto(fd, append(req, attrs...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		answer := make([]byte, 256)
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return err
		}
		if e := int32(nlsock.U32(answer[unix.SizeofNlMsghdr:n])); e != 0 {
			return unix.Errno(-e)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// account makes one of nfacct, with a quota of packets unless that is 0.
func (s *station) account(name string, quota uint64) {
	const flags, quotaPackets = 5, 1
	attrs := nlsock.Attr(nil, nfacctName, zstr(name))
	if quota > 0 {
		attrs = nlsock.Attr(attrs, flags, []byte{0, 0, 0, quotaPackets})
		attrs = nlsock.Attr(attrs, nfacctQuota, binary.BigEndian.AppendUint64(nil, quota))
	}
	s.netfilter(unix.NFNL_SUBSYS_ACCT<<8, unix.NLM_F_CREATE, 0, attrs)
}

// An account of nfacct only counts, unless it has a quota.
func TestAccountsWithAQuotaTellJoinedDatagrams(t *testing.T) {
	for _, tool := range []string{"iptables-legacy", "iptables-nft", "ip6tables-legacy"} {
		t.Run(tool, func(t *testing.T) {
			s := newStation(t)
			s.account("counts", 0)
			s.account("stops", 100)
			s.run(tool + " -A INPUT -m nfacct --nfacct-name counts -j DROP")
			if got := s.scan(); got != "" {
				t.Error(got)
			}
			s.run(tool + " -A INPUT -m nfacct --nfacct-name stops -j DROP")
			if got, want := s.scan(), "has a quota (-m nfacct --nfacct-name stops)"; !strings.Contains(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// Copies of packets are a reason while a program gets them.
func TestCopiesThatAProgramGets(t *testing.T) {
	for name, script := range map[string]string{
		"nftables":             nftHead + "nft add rule inet t in limit rate 1/second log group 3",
		"iptables":             "iptables-legacy -A INPUT -j NFLOG --nflog-group 3",
		"iptables on nftables": "iptables-nft -A INPUT -m limit --limit 1/s -j NFLOG --nflog-group 3",
		"what is dropped":      nftHead + "nft add chain inet t c\nnft add rule inet t c log group 3 drop\nnft add rule inet t in udp dport 53 jump c",
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			const configure, command, bind = 1, 1, 1 // NFULNL_MSG_CONFIG, NFULA_CFG_CMD, NFULNL_CFG_CMD_BIND
			listen := func(group uint16) {
				s.netfilter(unix.NFNL_SUBSYS_ULOG<<8|configure, 0, group, nlsock.Attr(nil, command, []byte{bind}))
			}
			s.run(script)
			listen(4)
			if got := s.scan(); got != "" {
				t.Errorf("nothing listens: %q", got)
			}
			listen(3)
			if got, want := s.scan(), "copies packets to a program (log group 3)"; !strings.Contains(got, want) {
				t.Errorf("a program listens: %q, want %q", got, want)
			}
		})
	}
}

// Legacy tables tell of no change; one of another shape is read at once.
func TestALegacyRuleThatComesIsSeen(t *testing.T) {
	s := newStation(t)
	s.run("iptables-legacy -A INPUT -p udp --dport 53 -j ACCEPT")
	if got := s.scan(); got != "" {
		t.Fatal(got)
	}
	s.run("iptables-legacy -A INPUT -m length --length 0:300 -j ACCEPT")
	if got := s.scan(); !strings.Contains(got, "rule 2 of iptables -t filter, chain INPUT,") {
		t.Errorf("after it came: %q", got)
	}
	s.run("iptables-legacy -D INPUT 2")
	if got := s.scan(); got != "" {
		t.Errorf("after it went: %q", got)
	}
}

func TestMatchesOfSets(t *testing.T) {
	v4 := func(packets, bytes byte) []byte { // struct xt_set_info_match_v4
		b := make([]byte, 48)
		b[16], b[32] = packets, bytes
		return b
	}
	for _, tt := range []struct {
		rev    uint8
		info   []byte
		counts bool
	}{
		{1, make([]byte, 8), false}, {4, v4(0, 0), false}, {4, v4(1, 0), true}, {4, v4(0, 3), true}, {4, nil, true}, {5, v4(0, 0), true},
		{3, make([]byte, 48), false},
	} {
		if got := len(seesMatch("set", tt.rev, tt.info, packets{})) > 0; got != tt.counts {
			t.Errorf("revision %d, % x: %v", tt.rev, tt.info, got)
		}
	}
}

func TestIPVSByPacket(t *testing.T) {
	file := func(lines ...string) []string {
		return append([]string{"IP Virtual Server version 1.2.1 (size=4096)", "Prot LocalAddress:Port Scheduler Flags", "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn"}, lines...)
	}
	if got := onePacket(file("UDP  0A600A0A:0035 rr", "-> 0AF40002:0035      Masq    1      0          0")); got != "" {
		t.Error(got)
	}
	if got := onePacket(file("UDP  0A600A0A:0035 rr ops")); !strings.Contains(got, "0A600A0A:0035 (ops)") {
		t.Error(got)
	}
}

// Filters of tc, as the kernel dumps them.
func TestTrafficFilters(t *testing.T) {
	msg := func(proto uint16, kind string, options []byte) []byte {
		b := make([]byte, sizeofTcMsg)
		binary.BigEndian.PutUint16(b[18:], proto)
		b = nlsock.Attr(b, unix.TCA_KIND, zstr(kind))
		return nlsock.Attr(b, unix.TCA_OPTIONS, options)
	}
	acts := func(kinds ...string) (b []byte) {
		for i, k := range kinds {
			var options []byte
			if name, random := strings.CutSuffix(k, "?"); random {
				k, options = name, nlsock.Attr(nil, tcaGactProb, make([]byte, 8))
			}
			b = nlsock.Attr(b, uint16(i+1), nlsock.Attr(nlsock.Attr(nil, tcaActKind, zstr(k)), tcaActOptions, options))
		}
		return b
	}
	for _, tt := range []struct {
		name string
		msg  []byte
		want string
	}{
		{"flower, drop", msg(unix.ETH_P_IP, "flower", nlsock.Attr(nil, 3, acts("gact"))), ""},
		{"flower, by chance", msg(unix.ETH_P_IP, "flower", nlsock.Attr(nil, 3, acts("gact?"))), "chooses among packets"},
		{"matchall, policed", msg(unix.ETH_P_ALL, "matchall", nlsock.Attr(nil, 2, acts("gact", "police"))), "a tc policer"},
		{"u32, policed as of old", msg(unix.ETH_P_ALL, "u32", nlsock.Attr(nil, 6, []byte{0, 0, 0, 0})), "a tc policer"},
		{"sampled", msg(unix.ETH_P_ALL, "matchall", nlsock.Attr(nil, 2, acts("sample"))), "(sample)"},
		{"edited", msg(unix.ETH_P_ALL, "matchall", nlsock.Attr(nil, 2, acts("skbedit", "vlan"))), ""},
		{"a program", msg(unix.ETH_P_ALL, "bpf", nlsock.Attr(nil, 1, nil)), "a tc filter (bpf)"},
		{"ARP, policed", msg(unix.ETH_P_ARP, "matchall", nlsock.Attr(nil, 2, acts("police"))), ""},
	} {
		got := ""
		if f, ok := parseTraffic(tt.msg); ok {
			got = f.seen()
		}
		if got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func ins(code uint16, k uint32, jumps ...uint8) unix.SockFilter {
	f := unix.SockFilter{Code: code, K: k}
	if len(jumps) == 2 {
		f.Jt, f.Jf = jumps[0], jumps[1]
	}
	return f
}

const (
	ldh, ldb, ld     = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jeq, jset        = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	jge              = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	ret              = unix.BPF_RET | unix.BPF_K
	ldxMSH, ldhIndex = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, unix.BPF_LD | unix.BPF_H | unix.BPF_IND
	and              = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	ldlen            = unix.BPF_LD | unix.BPF_W | unix.BPF_LEN
)

// networkdDHCP is the filter of systemd-networkd's DHCP client, on a socket without link layer.
var networkdDHCP = []unix.SockFilter{
	ins(ldlen, 0), ins(jge, 28+240, 1, 0), ins(ret, 0),
	ins(ldb, 9), ins(jeq, unix.IPPROTO_UDP, 1, 0), ins(ret, 0),
	ins(ldb, 6), ins(and, 0x20), ins(jeq, 0, 1, 0), ins(ret, 0),
	ins(ldh, 6), ins(and, 0x1fff), ins(jeq, 0, 1, 0), ins(ret, 0),
	ins(ldh, 22), ins(jeq, 68, 1, 0), ins(ret, 0),
	ins(ldb, 28), ins(jeq, 2, 1, 0), ins(ret, 0),
	ins(ret, 0xffffffff),
}

// dhclient is that of ISC's, which sees the link layer and reads where UDP begins.
var dhclient = []unix.SockFilter{
	ins(ldh, 12), ins(jeq, unix.ETH_P_IP, 0, 6), ins(ldb, 23), ins(jeq, unix.IPPROTO_UDP, 0, 4), ins(ldh, 20), ins(jset, 0x1fff, 2, 0),
	ins(ldxMSH, 14), ins(ldhIndex, 16), ins(jeq, 68, 0, 1), ins(ret, 0xffff), ins(ret, 0),
}

// lldpd is that of lldpd, of several protocols of neighbours.
var lldpd = []unix.SockFilter{
	ins(ldb, 0), ins(jset, 1, 0, 9), ins(ldh, 12), ins(jeq, 0x88cc, 0, 3), ins(ld, 2), ins(jeq, 0xc200000e, 4, 0), ins(jeq, 0xc2000000, 3, 0),
	ins(ld, 0), ins(jeq, 0x01000ccc, 1, 0), ins(jeq, 0x01e0522b, 0, 1), ins(ret, 0x40000), ins(ret, 0),
}

func TestFiltersOfPacketSockets(t *testing.T) {
	for _, tt := range []struct {
		name      string
		filter    []unix.SockFilter
		linkLayer bool
		takes     bool
	}{
		{"all", []unix.SockFilter{ins(ret, 0xffff)}, true, true},
		{"none", []unix.SockFilter{ins(ret, 0)}, true, false},
		{"systemd-networkd, DHCP", networkdDHCP, false, false},
		{"dhclient", dhclient, true, false},
		{"lldpd", lldpd, true, false},
		{"tcpdump arp", []unix.SockFilter{ins(ldh, 12), ins(jeq, unix.ETH_P_ARP, 0, 1), ins(ret, 0x40000), ins(ret, 0)}, true, false},
		{"tcpdump ip proto tcp", []unix.SockFilter{ins(ldh, 12), ins(jeq, unix.ETH_P_IP, 0, 3), ins(ldb, 23), ins(jeq, unix.IPPROTO_TCP, 0, 1), ins(ret, 0x40000), ins(ret, 0)}, true, false},
		{"tcpdump udp", []unix.SockFilter{ins(ldh, 12), ins(jeq, unix.ETH_P_IP, 0, 3), ins(ldb, 23), ins(jeq, unix.IPPROTO_UDP, 0, 1), ins(ret, 0x40000), ins(ret, 0)}, true, true},
		{"tcpdump udp port 53", slices.Replace(slices.Clone(dhclient), 8, 9, ins(jeq, 53, 0, 1)), true, true},
		{"large ones", []unix.SockFilter{ins(ldlen, 0), ins(jge, 1500, 0, 1), ins(ret, 0xffff), ins(ret, 0)}, true, true},
		{"fragments", []unix.SockFilter{ins(ldh, 12), ins(jeq, unix.ETH_P_IP, 0, 3), ins(ldh, 20), ins(jset, 0x3fff, 0, 1), ins(ret, 0xffff), ins(ret, 0)}, true, false},
	} {
		if got := mayTake(tt.filter, tt.linkLayer, new(int)); got != tt.takes {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// All filters of a namespace are followed for so many steps, and no more: a pod may have many that take long.
func TestFiltersAreFollowedToABound(t *testing.T) {
	var long []unix.SockFilter // 2^8 ways through it, for each kind of datagram, and none that accepts
	for range 8 {
		long = append(long, ins(ldlen, 0), ins(jge, 1500, 0, 1), ins(ldlen, 0))
	}
	list := slices.Repeat([]Socket{{Kind: "packet", Filter: append(long, ins(ret, 0)), LinkLayer: true}}, 1000)
	if got := seenBy(list[:10], nil); got.What != "" {
		t.Errorf("10: %q", got.What)
	}
	if got := seenBy(list, nil); !strings.Contains(got.What, "gets packets that its filter may let pass") {
		t.Errorf("1000: %q", got.What)
	}
}

// Sockets, as the kernel tells of them.
func TestSocketsThatGetJoinedDatagrams(t *testing.T) {
	const all, lldp = unix.ETH_P_ALL, 0x88cc
	for _, tt := range []struct {
		name        string
		domain, typ int
		proto       int
		filter      []unix.SockFilter
		bind        string
		want        string
	}{
		{"raw UDP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP, nil, "", "a raw socket (inode"},
		{"raw UDP, IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_UDP, nil, "", "a raw socket (inode"},
		{"a packet socket", unix.AF_PACKET, unix.SOCK_RAW, all, nil, "", "gets all packets"},
		{"on the device", unix.AF_PACKET, unix.SOCK_RAW, all, nil, "eth0", "gets all packets"},
		{"IPv4 only", unix.AF_PACKET, unix.SOCK_DGRAM, unix.ETH_P_IP, nil, "", "gets all packets"},
		{"with a filter", unix.AF_PACKET, unix.SOCK_RAW, all, []unix.SockFilter{ins(ldlen, 0), ins(jge, 1500, 0, 1), ins(ret, 0xffff), ins(ret, 0)}, "", "packets that its filter may let pass"},

		{"ping", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, nil, "", ""},
		{"raw, sends only", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, nil, "", ""},
		{"systemd-networkd, LLDP", unix.AF_PACKET, unix.SOCK_DGRAM, lldp, nil, "eth0", ""},
		{"systemd-networkd, DHCP", unix.AF_PACKET, unix.SOCK_DGRAM, unix.ETH_P_IP, networkdDHCP, "eth0", ""},
		{"dhclient", unix.AF_PACKET, unix.SOCK_RAW, all, dhclient, "eth0", ""},
		{"lldpd", unix.AF_PACKET, unix.SOCK_RAW, all, lldpd, "eth0", ""},
		{"ARP", unix.AF_PACKET, unix.SOCK_DGRAM, unix.ETH_P_ARP, nil, "", ""},
		{"on loopback", unix.AF_PACKET, unix.SOCK_RAW, all, nil, "lo", ""},
		{"a UDP socket", unix.AF_INET, unix.SOCK_DGRAM, 0, nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStation(t)
			err := s.ns.Do(func() error {
				proto := tt.proto
				if tt.domain == unix.AF_PACKET {
					proto = int(htons(uint16(proto)))
				}
				fd, err := unix.Socket(tt.domain, tt.typ|unix.SOCK_CLOEXEC, proto)
				if err != nil {
					return err
				}
				t.Cleanup(func() { unix.Close(fd) })
				if tt.filter != nil {
					if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(tt.filter)), Filter: &tt.filter[0]}); err != nil {
						return err
					}
				}
				if tt.bind == "" {
					return nil
				}
				index, err := indexOf(tt.bind)
				if err != nil {
					return err
				}
				return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(uint16(tt.proto)), Ifindex: index})
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.scan(); got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// Raw sockets for ICMP see no datagram. A pod may have as many as it likes, and the daemon does not read on and on.
func TestSocketsAreLookedThroughToABound(t *testing.T) {
	s := newStation(t)
	open := func(n int) {
		t.Helper()
		err := s.ns.Do(func() error {
			for range n {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
				if err != nil {
					return err
				}
				t.Cleanup(func() { unix.Close(fd) })
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	open(300)
	if got := s.scan(); got != "" {
		t.Errorf("300 sockets: %q", got)
	}
	open(700)
	if got, want := s.scan(), "there are more raw or packet sockets than are looked through; see: ss -w0aep"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// BenchmarkPlaces is a scan of a pod's namespace in which nothing has changed, and at a node with ten
// thousand services.
func BenchmarkPlaces(b *testing.B) {
	var services strings.Builder
	services.WriteString(kubeProxyNftables + "nft -f - <<EOF\n")
	for i := range 10000 {
		fmt.Fprintf(&services, "add chain ip kube-proxy s%d\nadd rule ip kube-proxy s%[1]d numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }\nadd element ip kube-proxy service-ips { 10.97.%d.%d . udp . 53 : goto s%[1]d }\n", i, i/256, i%256)
	}
	services.WriteString("EOF\n")
	for name, script := range map[string]string{"pod": "", "pod with legacy iptables": "iptables-legacy -A INPUT -p udp --dport 53 -j ACCEPT", "10000 services": services.String()} {
		b.Run(name, func(b *testing.B) {
			s := newStation(b)
			s.run(script)
			if got := s.scan(); got != "" {
				b.Fatal(got)
			}
			for b.Loop() {
				err := s.ns.Visit(func() error { _, _, err := s.places.Scan(1, s.Passage); return err })
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+", read anew", func(b *testing.B) {
			s := newStation(b)
			s.run(script)
			for b.Loop() {
				err := s.ns.Visit(func() error { _, _, err := NewPlaces(orNone(nil)).Scan(1, s.Passage); return err })
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A device that goes after the devices were listed has nothing on it, and is no reason.
func TestADeviceThatGoesMeanwhileIsNoReason(t *testing.T) {
	s := newStation(t)
	err := s.ns.Do(func() error {
		c, err := nlsock.Dial(unix.NETLINK_ROUTE, make([]byte, 1<<16))
		if err != nil {
			return err
		}
		defer c.Close()
		w := &Watcher{rtnl: c, own: orNone(nil)}
		links, err := w.links()
		if err != nil {
			return err
		}
		if err := exec.Command("ip", "link", "del", "out0").Run(); err != nil {
			return err
		}
		o, err := s.places.devices(w, links, s.Devs)
		if o.What != "" {
			t.Errorf("a reason: %q", o.What)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Programs that are not overlane's may read a packet's length; where GRO does not join, they see none.
func TestProgramsThatMayTellJoinedDatagrams(t *testing.T) {
	for _, tt := range []struct{ name, dev, want string }{
		{"tcx ingress", "eth0", "which is not overlane's, is on eth0"},
		{"tcx egress", "out0", "which is not overlane's, is on out0"},
		{"tcx ingress", "out0", ""},
		{"xdpgeneric", "eth0", "is on eth0 in generic mode, behind GRO"},
		{"xdp", "eth0", ""},
	} {
		t.Run(tt.name+" of "+tt.dev, func(t *testing.T) {
			s := newStation(t)
			var id uint32
			err := s.ns.Do(func() error {
				index, err := indexOf(tt.dev)
				if err != nil {
					return err
				}
				var l link.Link
				if at, xdp := map[string]link.XDPAttachFlags{"xdpgeneric": link.XDPGenericMode, "xdp": link.XDPDriverMode}[tt.name]; xdp {
					l, err = link.AttachXDP(link.XDPOptions{Program: program(t, ebpf.XDP, 2), Interface: index, Flags: at})
				} else {
					at := map[string]ebpf.AttachType{"tcx ingress": ebpf.AttachTCXIngress, "tcx egress": ebpf.AttachTCXEgress}[tt.name]
					l, err = link.AttachTCX(link.TCXOptions{Program: program(t, ebpf.SchedCLS, -1), Interface: index, Attach: at})
				}
				if err != nil {
					return err
				}
				t.Cleanup(func() { l.Close() })
				info, err := l.Info()
				id = uint32(info.Program)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if got := s.scan(); got != tt.want && (tt.want == "" || !strings.Contains(got, tt.want)) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			s.places = NewPlaces(func(prog uint32) bool { return prog == id })
			if got := s.scan(); got != "" {
				t.Errorf("of overlane: %q", got)
			}
		})
	}
}
