// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/node"
)

// yard is a namespace of its own with a NIC, nic, that nothing speaks against.
type yard struct {
	t    testing.TB
	h    *netns.Handle
	w    *Watcher
	in   Ingress
	mac  MAC
	root *os.Root // of sysfs
}

var nicAddr = netip.MustParseAddr("192.0.2.1")

func newYard(t testing.TB, own func(uint32) bool) *yard {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: builds network namespaces")
	}
	for _, tool := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool + " from iproute2")
		}
	}
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	y := &yard{t: t, h: h, mac: MAC{2, 0, 0, 0, 0, 1}}
	y.run(`ip link add nic address 02:00:00:00:00:01 type veth peer name far
		ip addr add 192.0.2.1/24 dev nic
		ip link set far up
		ip link set nic up`)
	y.put("all", "0")
	y.put("nic", "0")
	if y.root, err = h.Sysfs(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { y.root.Close() })
	cookie, err := h.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	s := site{t: t}
	y.in = Ingress{NIC: node.Dev{NetnsCookie: cookie, Ifindex: s.index(h, "nic"), Name: "nic"}, Port: 4789}
	if y.w, err = Watch(h, orNone(own), hooks(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := y.w.Close(); err != nil {
			t.Error(err)
		}
	})
	return y
}

// run runs commands, one a line; "put DEV N" sets rp_filter, "rps MASK" RPS.
func (y *yard) run(script string) {
	y.t.Helper()
	if err := y.try(script); err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) try(script string) error {
	y.t.Helper()
	for line := range strings.Lines(script) {
		switch f := strings.Fields(line); f[0] {
		case "put":
			y.put(f[1], f[2])
		case "rps":
			y.rps(f[1])
		default:
			if err := runLines(y.h, line); err != nil {
				return err
			}
		}
	}
	return nil
}

func (y *yard) put(dev, filter string) {
	y.t.Helper()
	err := y.h.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/"+dev+"/rp_filter", []byte(filter), 0) })
	if err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) rps(mask string) {
	y.t.Helper()
	if err := y.root.WriteFile("class/net/nic/queues/rx-0/rps_cpus", []byte(mask), 0); err != nil {
		y.t.Fatal(err)
	}
}

func (y *yard) safe() {
	y.t.Helper()
	want := IngressVerdict{Ingress: y.in, MAC: y.mac, Locals: []netip.Addr{nicAddr}}
	if d := cmp.Diff(want, y.w.CheckIngress([]Ingress{y.in})[0], compare); d != "" {
		y.t.Fatal(d)
	}
}

func (y *yard) unsafe(want string) {
	y.t.Helper()
	if v := y.w.CheckIngress([]Ingress{y.in})[0]; v.Safe() || !strings.Contains(v.Reason, want) {
		y.t.Fatalf("reason %q, want %q", v.Reason, want)
	}
}

func (y *yard) poll(want bool) {
	y.t.Helper()
	poll(y.t, y.w, want)
}

// poll expects what Poll says. BPF links of the machine may be another test's,
// and soon gone.
func poll(t testing.TB, w *Watcher, want bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		changed, err := w.Poll()
		if changed == want && (err == nil || want) {
			return
		}
		if want || time.Now().After(end) {
			t.Fatalf("changed: %t, %v; want %t", changed, err, want)
		}
	}
}

// That something may be decrypted is said of a namespace in which IPsec has a state, and of no other.
func TestIPsecMayDecryptWhereItHasStates(t *testing.T) {
	y := newYard(t, nil)
	is := func(want bool) {
		t.Helper()
		if may, err := netns.Read(y.h, func() (bool, error) { return MayDecrypt(), nil }); err != nil || may != want {
			t.Errorf("IPsec may decrypt: %t, %v; want %t", may, err, want)
		}
	}
	is(false)
	if err := y.try("ip xfrm state allocspi src 192.0.2.7 dst 192.0.2.1 proto esp mode transport min 5 max 10"); err != nil {
		t.Skip("needs IPsec: ", err)
	}
	is(true)
	y.run("ip xfrm state flush")
	is(false)
}

// Each thing at the NIC is seen, and that it is gone; and what makes no event is
// noticed by Poll.
func TestEachThingAtTheNICIsSeen(t *testing.T) {
	y := newYard(t, nil)
	y.safe()
	for _, tt := range []struct {
		name, do, undo, want string // no want: safe all the same
		silent               bool
	}{
		{"down", "ip link set nic down", "ip link set nic up", "nic is down", false},
		{"in a bridge", "ip link add br0 type bridge\nip link set nic master br0", "ip link del br0", "nic is a port of br0", false},
		{"in a bond", "ip link add bond0 type bond\nip link set nic down\nip link set nic master bond0", "ip link del bond0\nip link set nic up", "nic is a port of bond0", false},
		{"VLAN", "ip link add link nic name up0 type vlan id 5", "ip link del up0", "up0 (vlan) is on nic", false},
		{"macvlan", "ip link add link nic name up0 type macvlan", "ip link del up0", "up0 (macvlan) is on nic", false},
		{"ipvlan", "ip link add link nic name up0 type ipvlan", "ip link del up0", "up0 (ipvlan) is on nic", false},
		{"a tunnel bound to it", "ip link add vx0 type vxlan id 5 dev nic dstport 4789 remote 192.0.2.9", "ip link del vx0", "", false},
		{"clsact", "tc qdisc add dev nic clsact", "tc qdisc del dev nic clsact", "the foreign qdisc clsact", false},
		{"ingress", "tc qdisc add dev nic ingress", "tc qdisc del dev nic ingress", "the foreign qdisc ingress", false},
		{"shaped", "tc qdisc add dev nic root tbf rate 1gbit burst 1mb latency 50ms", "tc qdisc del dev nic root", "", false},
		{"a rule", "ip rule add pref 100 from 192.0.2.7 lookup 5", "ip rule del pref 100", "the routing rule 100", false},
		{"a rule like the kernel's", "ip rule add pref 100 lookup main", "ip rule del pref 100", "the routing rule 100", false},
		{"a rule moved", "ip rule add pref 50 lookup local\nip rule del pref 0", "ip rule add pref 0 lookup local\nip rule del pref 50", "the routing rule 50", false},
		{"IPv6's rule", "ip -6 rule add pref 100 lookup 5", "ip -6 rule del pref 100 lookup 5", "", false},
		{"no address", "ip addr flush dev nic", "ip addr add 192.0.2.1/24 dev nic", "nic has no IPv4 address", false},
		{"strict for all", "put all 1", "put all 0", "rp_filter 1", true},
		{"strict for it", "put nic 1", "put nic 0", "rp_filter 1", true},
		{"loose", "put all 2", "put all 0", "there is no IPv4 default route", true},
		{"strict for it, loose for all", "put nic 1\nput all 2", "put all 0\nput nic 0", "there is no IPv4 default route", true},
		{"loose, with a route to some", "put all 2\nip route add 198.51.100.0/24 via 192.0.2.9", "put all 0\nip route del 198.51.100.0/24", "there is no IPv4 default route", true},
		{"loose, with a default route that drops", "put all 2\nip route add blackhole default", "put all 0\nip route del blackhole default", "there is no IPv4 default route", true},
		{"loose, with a default route elsewhere", "put all 2\nip route add default via 192.0.2.9 table 7", "put all 0\nip route del default table 7", "there is no IPv4 default route", true},
		{"loose, with a default route", "put all 2\nip route add default via 192.0.2.9", "put all 0\nip route del default", "", true},
		{"RPS", "rps 1", "rps 0", "RPS moves what nic receives", true},
		{"IPsec", "ip xfrm policy add src 192.0.2.7 dst 192.0.2.1 dir in action allow", "ip xfrm policy flush", "there are IPsec policies here", false},
		{"IPsec's default", "ip xfrm policy setdefault in block", "ip xfrm policy setdefault in accept", "IPsec takes only what a policy allows", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y.t = t
			y.poll(false)
			if err := y.try(tt.do); err != nil {
				_ = y.try(tt.undo)
				t.Skip("needs what the kernel or iproute2 lacks: ", err)
			}
			if tt.silent {
				y.poll(true)
			}
			if tt.want != "" {
				y.unsafe(tt.want)
			} else {
				y.safe()
			}
			y.poll(false)
			y.run(tt.undo)
			if tt.silent {
				y.poll(true)
			}
			y.safe()
		})
	}
	y.t = t
	t.Run("another's address", func(t *testing.T) {
		in := y.in
		in.Local = netip.MustParseAddr("192.0.2.3")
		if v := y.w.CheckIngress([]Ingress{in})[0]; !strings.Contains(v.Reason, "192.0.2.3 is no address of nic") {
			t.Fatalf("reason %q", v.Reason)
		}
	})
	t.Run("all of its addresses", func(t *testing.T) {
		y.run("ip addr add 192.0.2.3/32 dev nic\nip addr add 192.0.2.4/32 dev far\nip addr add 192.0.2.5 peer 192.0.2.6/32 dev nic")
		want := []netip.Addr{nicAddr, netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("192.0.2.5")}
		if d := cmp.Diff(want, y.w.CheckIngress([]Ingress{y.in})[0].Locals, compare); d != "" {
			t.Fatal(d)
		}
	})
	t.Run("renamed", func(t *testing.T) {
		y.run("ip link set nic name other")
		y.w.CheckIngress([]Ingress{y.in})
		y.poll(false)
		y.run("ip link set other name nic")
		y.w.CheckIngress([]Ingress{y.in})
	})
	t.Run("gone", func(t *testing.T) {
		y.poll(false)
		y.run("ip link del nic")
		y.poll(true)
		y.unsafe("nic is no longer there")
		// Another that has got its name is not it.
		y.run("ip link add nic type veth peer name far")
		y.unsafe("nic is no longer there")
	})
	t.Run("another namespace", func(t *testing.T) {
		in := y.in
		in.NIC.NetnsCookie++
		if v := y.w.CheckIngress([]Ingress{in})[0]; !strings.Contains(v.Reason, "is not in the network namespace") {
			t.Fatalf("reason %q", v.Reason)
		}
	})
	t.Run("closed", func(t *testing.T) {
		y.w.Close()
		y.unsafe("no longer watched")
		y.poll(true)
	})
}

func TestNetfilterAtTheNICIsSeen(t *testing.T) {
	y := newYard(t, nil)
	if err := commit(y.h, newTable(unix.NFPROTO_INET), delTable(unix.NFPROTO_INET)); err != nil {
		t.Skip("needs nftables in the kernel: ", err)
	}
	const ingress, egress = 0, 1
	for _, tt := range []struct {
		name   string
		family byte
		add    nftMsg
		want   string // of the reason; empty: safe all the same
	}{
		{"ip prerouting", unix.NFPROTO_IPV4, newChain(unix.NFPROTO_IPV4, unix.NF_INET_PRE_ROUTING, ""), "there are rules in chain ip t mine"},
		{"ip input", unix.NFPROTO_IPV4, newChain(unix.NFPROTO_IPV4, unix.NF_INET_LOCAL_IN, ""), "there are rules in chain ip t mine"},
		{"inet input", unix.NFPROTO_INET, newChain(unix.NFPROTO_INET, unix.NF_INET_LOCAL_IN, ""), "there are rules in chain inet t mine"},
		{"inet forward", unix.NFPROTO_INET, newChain(unix.NFPROTO_INET, unix.NF_INET_FORWARD, ""), ""},
		{"ip6 input", unix.NFPROTO_IPV6, newChain(unix.NFPROTO_IPV6, unix.NF_INET_LOCAL_IN, ""), ""},
		{"arp", unix.NFPROTO_ARP, newChain(unix.NFPROTO_ARP, 0, ""), ""},
		{"bridge", unix.NFPROTO_BRIDGE, newChain(unix.NFPROTO_BRIDGE, unix.NF_INET_PRE_ROUTING, ""), ""},
		{"ingress", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, ingress, "nic"), "nftables has a hook on nic: chain netdev t mine"},
		{"egress", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, egress, "nic"), ""},
		{"ingress of another", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, ingress, "far"), ""},
		{"inet ingress", unix.NFPROTO_INET, newChain(unix.NFPROTO_INET, nfInetIngress, "nic"), "nftables has a hook on nic: chain inet t mine"},
		{"flow table", unix.NFPROTO_INET, newFlowtable(unix.NFPROTO_INET, "nic"), "nftables has a hook on nic: flowtable inet t mine"},
		{"flow table of another", unix.NFPROTO_INET, newFlowtable(unix.NFPROTO_INET, "far"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			y.t = t
			y.safe()
			switch err := commit(y.h, newTable(tt.family), tt.add); {
			case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EAFNOSUPPORT):
				t.Skip("needs a kernel with nftables' " + families[tt.family] + " " + tt.name)
			case err != nil:
				t.Fatal(err)
			}
			if tt.want != "" {
				y.unsafe(tt.want)
			} else {
				y.safe()
			}
			if err := commit(y.h, delTable(tt.family)); err != nil {
				t.Fatal(err)
			}
			y.safe()
		})
	}
	t.Run("legacy tables", func(t *testing.T) {
		y.t = t
		y.safe()
		if err := y.h.Do(registerFilter); err != nil {
			t.Skip("needs legacy iptables: ", err)
		}
		y.poll(true)
		y.unsafe("there are rules in the tables: filter")
	})
}

func TestProgramsAtTheNICAreSeen(t *testing.T) {
	var ours uint32
	y := newYard(t, func(id uint32) bool { return id == ours })
	idOf := func(p *ebpf.Program) uint32 {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		return uint32(id)
	}
	attach := func(how func() (link.Link, error)) link.Link {
		t.Helper()
		var l link.Link
		if err := y.h.Do(func() (err error) { l, err = how(); return }); err != nil {
			t.Fatal(err)
		}
		return l
	}
	cls, xdp := program(t, ebpf.SchedCLS, -1), program(t, ebpf.XDP, 2)
	tcx := func(at ebpf.AttachType) link.Link {
		t.Helper()
		return attach(func() (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: y.in.NIC.Ifindex, Program: cls, Attach: at})
		})
	}
	y.safe()
	l := tcx(ebpf.AttachTCXIngress)
	y.poll(true)
	y.unsafe("on nic is foreign")
	y.poll(false)
	ours = idOf(cls)
	y.safe()
	ours = 0
	y.unsafe("on nic is foreign")
	l.Close()
	y.poll(true)
	y.safe()
	l = tcx(ebpf.AttachTCXEgress)
	y.poll(false)
	y.safe()
	l.Close()

	for _, mode := range []link.XDPAttachFlags{link.XDPGenericMode, link.XDPDriverMode} {
		l = attach(func() (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Interface: y.in.NIC.Ifindex, Program: xdp, Flags: mode})
		})
		y.unsafe("on nic is foreign")
		ours = idOf(xdp)
		y.safe()
		ours = 0
		l.Close()
		y.safe()
	}
	sk, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // SK_PASS
	})
	if err != nil {
		t.Skip("needs sk_lookup (Linux 5.9): ", err)
	}
	defer sk.Close()
	other, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ns, err := link.AttachNetNs(other.FD(), sk)
	if err != nil {
		t.Fatal(err)
	}
	y.poll(true)
	y.poll(true) // until the watcher scans
	y.unsafe("BPF programs choose sockets")
	y.poll(false)
	ns.Close() // which takes a scan
	y.safe()
}

func TestChangesAtTheNICAreEvents(t *testing.T) {
	y := newYard(t, nil)
	calm := func() {
		for {
			select {
			case <-y.w.Events():
			case <-time.After(3 * gap):
				return
			}
		}
	}
	quiet := func(c string) {
		t.Helper()
		calm()
		y.run(c)
		select {
		case <-y.w.Events():
			t.Errorf("an event: %s", c)
		case <-time.After(3 * gap):
		}
	}
	quiet("ip rule add pref 101 lookup 5") // no check has asked for NICs
	y.run("ip rule del pref 101")
	y.safe()
	for _, c := range []string{
		"ip addr add 192.0.2.3/32 dev nic",
		"ip addr del 192.0.2.3/32 dev nic",
		"ip rule add pref 100 lookup 5",
		"ip rule del pref 100",
		"ip route add default via 192.0.2.9",
		"ip route del default",
		"tc qdisc add dev nic clsact",
		"ip link set nic down",
		"ip xfrm policy add src 192.0.2.7 dst 192.0.2.1 dir in action allow",
		"ip xfrm policy flush",
	} {
		calm()
		if err := y.try(c); err != nil {
			if strings.Contains(c, "xfrm") {
				t.Logf("no IPsec: %v", err)
				continue
			}
			t.Fatal(err)
		}
		select {
		case <-y.w.Events():
		case <-time.After(20 * time.Second):
			t.Fatalf("no event: %s", c)
		}
	}
	y.run("ip link set nic up")
	for _, c := range []string{
		"ip route add 198.51.100.0/24 via 192.0.2.9",
		"ip route add default via 192.0.2.9 table 7",
		"ip -6 rule add pref 100 lookup 5",
	} {
		quiet(c)
	}
}

// A scan that came to no end is a change until one does.
func TestPollAfterAScanThatFailed(t *testing.T) {
	y := newYard(t, nil)
	live := y.w.rtnl
	dead := &nlsock.Conn{} // standard input, which is no socket
	for _, check := range []func() string{
		func() string { return y.w.CheckIngress([]Ingress{y.in})[0].Reason },
		func() string { return y.w.Check([]Path{{}})[0].Reason },
	} {
		y.w.rtnl = dead
		unknown := check()
		y.w.rtnl = live
		if !strings.Contains(unknown, "cannot be read: list devices") {
			t.Fatalf("unknown: %q", unknown)
		}
		if changed, err := y.w.Poll(); !changed || err == nil {
			t.Fatalf("changed: %t, %v", changed, err)
		}
		check()
		y.poll(false)
	}
	if _, err := y.w.queues(y.in.NIC.Ifindex+1, "nic"); err == nil {
		t.Error("took the queues of another device that has got the name")
	}
}

func TestPollBeforeAScan(t *testing.T) {
	y := newYard(t, nil)
	y.poll(true)
	y.safe()
	y.poll(false)
}
