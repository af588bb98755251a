// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

func TestOverlayOfTheLabIsSafe(t *testing.T) {
	for _, topology := range []bed.Topology{bed.Bridged, bed.Nested} {
		t.Run(string(topology), func(t *testing.T) { lab(t, topology, nil).safe() })
	}
}

func TestRoutedPodIsNot(t *testing.T) {
	lab(t, bed.Routed, nil).unsafe("the host routes between it and the pod")
}

// Each violation makes the path unsafe, and safe again when it is taken back.
func TestEachViolationIsSeen(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.safe()
	for _, tt := range []struct{ name, do, undo, want string }{
		{"isolated ports", "bridge link set dev VX isolated on\nbridge link set dev VE isolated on",
			"bridge link set dev VX isolated off\nbridge link set dev VE isolated off", "are isolated from each other"},
		{"pod's port disabled", "bridge link set dev VE state 0", "bridge link set dev VE state 3", "is disabled, not forwarding"},
		{"tunnel's port disabled", "bridge link set dev VX state 0", "bridge link set dev VX state 3", "is disabled, not forwarding"},
		{"tunnel's port locked", "bridge link set dev VX locked on", "bridge link set dev VX locked off", "is locked"},
		{"vlan_tunnel", "bridge link set dev VX vlan_tunnel on", "bridge link set dev VX vlan_tunnel off", "makes VLANs of network identifiers"},
		{"veth leaves the bridge", "ip link set VE nomaster",
			"ip link set VE master BR\nbridge fdb replace MAC dev VE master static", "is not in the bridge"},
		{"address not learned", "bridge fdb del MAC dev VE master", "bridge fdb add MAC dev VE master static", "has not learned the pod's address"},
		{"address behind the tunnel", "bridge fdb replace MAC dev VX master static", "bridge fdb replace MAC dev VE master static", "behind another port"},
		{"address of the host's own", "bridge fdb del MAC dev VE master\nbridge fdb add MAC dev VE master local",
			"bridge fdb del MAC dev VE master\nbridge fdb add MAC dev VE master static", "for one of the host's own"},
		{"shaped", "tc qdisc add dev VE root tbf rate 1gbit burst 1mb latency 50ms", "tc qdisc del dev VE root", "the qdisc tbf is on"},
		{"clsact on the tunnel", "tc qdisc add dev VX clsact", "tc qdisc del dev VX clsact", "the foreign qdisc clsact"},
		{"ingress on the veth", "tc qdisc add dev VE ingress", "tc qdisc del dev VE ingress", "the foreign qdisc ingress"},
		{"clsact on the bridge", "tc qdisc add dev BR clsact", "tc qdisc del dev BR clsact", "the foreign qdisc clsact"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			s.run(s.overlay, tt.do)
			s.unsafe(tt.want)
			s.run(s.overlay, tt.undo)
			s.safe()
		})
	}
	t.Run("an entry that was learned is as good", func(t *testing.T) {
		s.t = t
		s.run(s.overlay, "bridge fdb replace MAC dev VE master dynamic")
		s.safe()
		s.run(s.overlay, "bridge fdb replace MAC dev VE master static")
		s.safe()
	})
	t.Run("VLANs", func(t *testing.T) {
		s.t = t
		if err := s.try(s.overlay, "ip link set BR type bridge vlan_filtering 1"); err != nil {
			t.Log(err)
			t.Skip("needs a kernel with CONFIG_BRIDGE_VLAN_FILTERING")
		}
		s.unsafe("filters by VLAN")
		s.run(s.overlay, "ip link set BR type bridge vlan_filtering 0")
		s.safe()
	})
	t.Run("another address in the pod", func(t *testing.T) {
		s.t = t
		s.run(s.pod, "ip link set "+bed.PodDev+" address 02:00:00:00:77:77")
		s.unsafe("has not learned the pod's address 02:00:00:00:77:77")
		s.run(s.pod, "ip link set "+bed.PodDev+" address MAC")
		s.safe()
	})
	t.Run("both ends in one namespace", func(t *testing.T) {
		s.t = t
		s.run(s.overlay, "ip link add one type veth peer name two\nip link set one master BR up\nip link set two up")
		d := s.paths[0].Host
		d.Ifindex = s.index(s.overlay, "one")
		if v := s.w.Check([]Path{{s.paths[0].Tunnel, d}})[0]; v.Reason != "both ends of one are in one network namespace" {
			t.Fatalf("reason %q", v.Reason)
		}
		s.run(s.overlay, "ip link del one")
	})
}

func TestProgramsOfOthersAreSeen(t *testing.T) {
	var ours uint32
	s := lab(t, bed.Bridged, func(id uint32) bool { return id == ours })
	cls := program(t, ebpf.SchedCLS, -1)
	xdp := program(t, ebpf.XDP, 2)
	br, vx, ve := bed.Bridge, s.paths[0].Tunnel.Name, s.veth
	attach := func(h *netns.Handle, how func() (link.Link, error)) link.Link {
		t.Helper()
		var l link.Link
		if err := h.Do(func() (err error) { l, err = how(); return }); err != nil {
			t.Fatal(err)
		}
		return l
	}
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		for _, dev := range []string{vx, br, ve} {
			i := s.index(s.overlay, dev)
			l := attach(s.overlay, func() (link.Link, error) {
				return link.AttachTCX(link.TCXOptions{Interface: i, Program: cls, Attach: at})
			})
			s.unsafe("on " + dev + " is foreign")
			info, err := cls.Info()
			if err != nil {
				t.Fatal(err)
			}
			id, _ := info.ID()
			ours = uint32(id)
			s.safe() // overlane's own
			ours = 0
			l.Close()
			s.safe()
		}
	}
	for _, x := range []struct {
		h         *netns.Handle
		dev, want string
		flags     link.XDPAttachFlags
	}{
		{s.overlay, br, "is on " + br, link.XDPGenericMode},
		{s.overlay, ve, "is on " + ve, link.XDPGenericMode},
		{s.pod, bed.PodDev, "is on the pod's end of " + ve, link.XDPGenericMode},
		{s.pod, bed.PodDev, "is on the pod's end of " + ve, link.XDPDriverMode},
	} {
		i := s.index(x.h, x.dev)
		l := attach(x.h, func() (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Program: xdp, Interface: i, Flags: x.flags})
		})
		s.unsafe(x.want)
		l.Close()
		s.safe()
	}
}

func TestNetfilterIsSeen(t *testing.T) {
	s := lab(t, bed.Bridged, nil)
	vx, ve := s.paths[0].Tunnel.Name, s.veth
	if err := s.nftables(newTable(unix.NFPROTO_INET), delTable(unix.NFPROTO_INET)); err != nil {
		t.Log(err)
		t.Skip("needs nftables in the kernel")
	}
	const ingress, egress = 0, 1
	for _, tt := range []struct {
		name   string
		family byte
		add    nftMsg
		want   string // of the reason; empty: safe all the same
	}{
		{"bridge", unix.NFPROTO_BRIDGE, newChain(unix.NFPROTO_BRIDGE, unix.NF_INET_FORWARD, ""), "nftables filters what bridges forward: chain bridge t mine"},
		{"ingress of the tunnel", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, ingress, vx), "nftables has a hook on " + vx + ": chain netdev t mine"},
		{"egress of the veth", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, egress, ve), "nftables has a hook on " + ve + ": chain netdev t mine"},
		{"ingress of another", unix.NFPROTO_NETDEV, newChain(unix.NFPROTO_NETDEV, ingress, "lo"), ""},
		{"inet ingress of the tunnel", unix.NFPROTO_INET, newChain(unix.NFPROTO_INET, nfInetIngress, vx), "nftables has a hook on " + vx + ": chain inet t mine"},
		{"ingress of all that begin so (Linux 6.16)", unix.NFPROTO_NETDEV, newPrefixChain(unix.NFPROTO_NETDEV, ingress, vx[:1]), "nftables has a hook on " + vx + ": chain netdev t mine"},
		{"flow table", unix.NFPROTO_INET, newFlowtable(unix.NFPROTO_INET, vx), "nftables has a hook on " + vx + ": flowtable inet t mine"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.t = t
			s.safe()
			switch err := s.nftables(newTable(tt.family), tt.add); {
			case errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL):
				t.Skip("needs a kernel with nftables' " + families[tt.family] + " " + tt.name)
			case err != nil:
				t.Fatal(err)
			}
			if tt.want != "" {
				s.unsafe(tt.want)
			} else {
				s.safe()
			}
			if err := s.nftables(delTable(tt.family)); err != nil {
				t.Fatal(err)
			}
			s.safe()
		})
	}

	t.Run("what br_netfilter calls", func(t *testing.T) {
		s.t = t
		s.needBridgeNetfilter()
		call := func(v string) {
			s.sysctl("bridge/bridge-nf-call-iptables", v)
			s.sysctl("bridge/bridge-nf-call-ip6tables", v)
		}
		call("0")
		for _, family := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_INET} {
			for _, hook := range []uint32{unix.NF_INET_PRE_ROUTING, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING, unix.NF_INET_LOCAL_IN} {
				if err := s.nftables(newTable(family), newChain(family, hook, "")); err != nil {
					t.Fatal(err)
				}
				s.safe()
				call("1")
				if hook == unix.NF_INET_LOCAL_IN {
					s.safe()
				} else {
					s.unsafe("and there are rules in chain " + families[family] + " t mine")
				}
				call("0")
				s.safe()
				if family == unix.NFPROTO_IPV4 && hook == unix.NF_INET_FORWARD {
					s.run(s.overlay, "ip link set BR type bridge nf_call_iptables 1")
					s.unsafe("and there are rules in chain ip t mine")
					s.run(s.overlay, "ip link set BR type bridge nf_call_iptables 0")
					s.safe()
				}
				if err := s.nftables(delTable(family)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.overlay.Do(registerFilter); err != nil {
			t.Logf("no legacy tables: %v", err)
			return
		}
		s.safe()
		call("1")
		s.unsafe("and there are rules in the tables: filter")
	})
}

// registerFilter makes the kernel register the legacy table filter in the
// calling thread's namespace, as iptables -L does.
func registerFilter() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info := make([]byte, 84) // struct ipt_getinfo
	copy(info, "filter")
	size := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, 64, // IPT_SO_GET_INFO
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	runtime.KeepAlive(info)
	if errno != 0 {
		return errno
	}
	return nil
}

func TestBPFProgramAtNetfilterIsSeen(t *testing.T) {
	s := lab(t, bed.Bridged, nil)
	s.needBridgeNetfilter()
	s.safe()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // NF_ACCEPT
	})
	if err != nil {
		t.Log(err)
		t.Skip("needs BPF programs at netfilter hooks (Linux 6.4)")
	}
	defer p.Close()
	s.sysctl("bridge/bridge-nf-call-iptables", "1")
	for range 2 { // the second time, with what was remembered
		var l link.Link
		err = s.overlay.Do(func() (err error) {
			l, err = link.AttachNetfilter(link.NetfilterOptions{
				Program: p, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetForward, Priority: 1,
			})
			return
		})
		if err != nil {
			t.Fatal(err)
		}
		s.unsafe("BPF programs are on netfilter hooks")
		l.Close()
		s.safe()
	}
}

func TestChangesAreEvents(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.safe()
	calm := func() {
		for {
			select {
			case <-s.w.Events():
			case <-time.After(3 * gap):
				return
			}
		}
	}
	change := func(name string, do func()) {
		t.Helper()
		calm()
		do()
		select {
		case <-s.w.Events():
		case <-time.After(20 * time.Second):
			t.Fatalf("no event: %s", name)
		}
	}
	for _, c := range []string{
		"bridge fdb add 02:00:00:00:66:66 dev VE master static",
		"bridge fdb del 02:00:00:00:66:66 dev VE master",
		"bridge link set dev VE isolated on",
		"bridge link set dev VE state 0",
		"bridge link set dev VE state 3",
		"ip link set BR type bridge nf_call_iptables 1",
		"tc qdisc add dev VE root tbf rate 1gbit burst 1mb latency 50ms",
		"tc qdisc add dev VX clsact",
		"ip link set VE nomaster",
	} {
		change(c, func() { s.run(s.overlay, c) })
	}
	if s.nftables(newTable(unix.NFPROTO_INET)) == nil {
		change("nftables", func() { s.nftables(newChain(unix.NFPROTO_INET, unix.NF_INET_FORWARD, "")) })
	}
	// Neighbours of IP are none of it.
	calm()
	s.run(s.overlay, "ip neigh replace 10.9.9.9 lladdr 02:00:00:00:66:66 dev BR")
	select {
	case <-s.w.Events():
		t.Error("an event for an IP neighbour")
	case <-time.After(3 * gap):
	}
	s.w.Close()
	if _, ok := <-s.w.Events(); ok {
		t.Error("an event after Close")
	}
	s.unsafe("no longer watched")
}

// Micro-flows go on to the pod past what is behind overlane's program at the host's end. A bridge is no matter there.
func TestWhatIsPastAHostEndIsSeen(t *testing.T) {
	s := lab(t, bed.Routed, nil)
	host := s.paths[0].Host
	ws := &Watchers{watchers: map[uint64]*Watcher{host.NetnsCookie: s.w}}
	says := func(want string) {
		t.Helper()
		got := ws.PastHostEnds(node.Snapshot{Pods: []node.Pod{{Host: host}}})
		if why := got[host.Key()]; len(got) != 1 || (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%d said, %q; want %q", len(got), why, want)
		}
	}
	says("")
	xdp := program(t, ebpf.XDP, 2)
	pod := s.index(s.pod, bed.PodDev)
	var l link.Link
	err := s.pod.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: xdp, Interface: pod, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	says("is on the pod's end of " + s.veth)
	l.Close()
	says("")
	for _, tt := range []struct{ do, undo, want string }{
		{"tc qdisc add dev VE clsact", "tc qdisc del dev VE clsact", "the foreign qdisc clsact"},
		{"tc qdisc add dev VE root tbf rate 1gbit burst 1mb latency 50ms", "tc qdisc del dev VE root", "the qdisc tbf is on"},
		{"ip link del VE", "", "no longer there"},
	} {
		s.run(s.overlay, tt.do)
		says(tt.want)
		if tt.undo != "" {
			s.run(s.overlay, tt.undo)
			says("")
		}
	}
}

// A device that changes has no other asked for what it may have at its other end: with hundreds of pods each is a wait for
// the lock on all devices.
func TestOnlyWhatHasChangedIsAskedForAQueueAgain(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.safe()
	const other = 1 << 20 // and no device
	kept := func(index int) bool {
		s.w.mu.Lock()
		defer s.w.mu.Unlock()
		_, err := s.w.queued.at(index, "none")
		return err == nil
	}
	veth := s.paths[0].Host.Ifindex
	s.w.queued.known[other] = false
	if !kept(veth) || !kept(other) {
		t.Fatal("what was asked for is not remembered")
	}
	s.run(s.overlay, "ip link set VE mtu 1300")
	for deadline := time.After(20 * time.Second); kept(veth); {
		select {
		case <-s.w.Events():
		case <-deadline:
			t.Fatal("what has changed is not asked for again")
		}
	}
	if !kept(other) {
		t.Error("what has not changed is asked for again")
	}
}

// Whether the pod's end may have a queue is not asked for at each scan: a change is an event.
func TestAQueueAtThePodsEndIsSeen(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.safe()
	for _, on := range []bool{false, true} {
		for _, feature := range []string{"tx-tcp-segmentation", "tx-tcp6-segmentation"} {
			if err := s.overlay.Do(func() error { return ethtool.SetFeature(s.veth, feature, on) }); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.After(20 * time.Second); s.verdict().Safe() != on; {
			select {
			case <-s.w.Events():
			case <-deadline:
				t.Fatalf("with segmentation %t the path is safe: %t", on, !on)
			}
		}
		if !on {
			s.unsafe("TCP segmentation is off")
		}
	}
}

func TestDevicesThatAreGone(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.run(s.overlay, "ip link del VE")
	s.unsafe("tunnel or veth are no longer there")
	if v := s.w.Check([]Path{{node.Dev{NetnsCookie: 1, Ifindex: 1}, s.paths[0].Host}})[0]; v.Safe() {
		t.Fatal("safe in another namespace")
	}
}

// The tunnel's own settings reach the verdict.
func TestTunnelThatLearnsOrMarks(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.safe()
	i := s.index(s.overlay, s.paths[0].Tunnel.Name)
	s.run(s.overlay, `ip link add tv type vxlan id 77 dstport 4777 gbp learning ageing 60 remote 192.0.2.9
		ip link set tv master BR up
		bridge link set dev tv state 3`)
	s.paths[0].Tunnel.Ifindex, s.paths[0].Tunnel.Name = s.index(s.overlay, "tv"), "tv"
	want := Verdict{Path: s.paths[0], MAC: s.mac, TunnelMAC: s.macOf(s.paths[0].Tunnel), Refresh: 300 * time.Second, Relearn: 60 * time.Second, Marked: true}
	v := s.verdict()
	want.MTU = v.MTU
	if d := cmp.Diff(want, v, verdicts); d != "" || i == want.Tunnel.Ifindex {
		t.Fatalf("index %d\n%s", i, d)
	}
}

// One number is of one namespace, and the same again once all is as it was.
func TestHooksOfANamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	all := hooks(t)
	digest := func(ns *netns.Handle) (n uint64) {
		t.Helper()
		if err := ns.Visit(func() (err error) { n, err = all.digest(); return err }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var both [2]*netns.Handle
	var bare [2]uint64
	for i := range both {
		ns, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		both[i], bare[i] = ns, digest(ns)
	}
	seen := map[uint64]bool{bare[0]: true}
	news := func(what string) {
		t.Helper()
		n := digest(both[0])
		if seen[n] {
			t.Errorf("%s: nothing new is seen", what)
		}
		seen[n] = true
	}
	var links []link.Link
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress, ebpf.AttachTCXIngress} {
		p := program(t, ebpf.SchedCLS, -1)
		err := both[0].Visit(func() error {
			l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: p, Attach: at}) // the loopback device
			links = append(links, l)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		news(fmt.Sprintf("a program at %s", at))
	}
	if err := links[1].Update(program(t, ebpf.SchedCLS, -1)); err != nil {
		t.Fatal(err)
	}
	news("another program in its place")
	for _, l := range links {
		l.Close()
	}
	if now := [2]uint64{digest(both[0]), digest(both[1])}; now != bare {
		t.Errorf("%x without programs, %x before", now, bare)
	}
}

// What is attached to hooks makes no event, and is noticed between two scans: on each device of a path, by
// one scan of all hooks and by asking each, as it comes and goes, and as another takes its place.
func TestPollNoticesProgramsOnHooks(t *testing.T) {
	for name, hooks := range map[string]*Hooks{"all at once": hooks(t), "one by one": nil} {
		t.Run(name, func(t *testing.T) {
			s := lab(t, bed.Nested, nil)
			s.w.hooks = hooks
			s.safe()
			poll(t, s.w, false)
			one, other := program(t, ebpf.SchedCLS, -1), program(t, ebpf.SchedCLS, -1)
			attach := func(dev string, at ebpf.AttachType, p *ebpf.Program) (l link.Link) {
				t.Helper()
				i := s.index(s.overlay, dev)
				err := s.overlay.Do(func() (err error) {
					l, err = link.AttachTCX(link.TCXOptions{Interface: i, Program: p, Attach: at})
					return
				})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				for _, dev := range []string{s.paths[0].Tunnel.Name, bed.Bridge, s.veth} {
					seen := func() {
						t.Helper()
						poll(t, s.w, true)
						s.unsafe("on " + dev + " is foreign")
						poll(t, s.w, false)
					}
					l := attach(dev, at, one)
					seen()
					if err := l.Update(other); err != nil {
						t.Fatal(err)
					}
					seen()
					l.Close()
					l = attach(dev, at, one)
					seen()
					l.Close()
					poll(t, s.w, true)
					s.safe()
					poll(t, s.w, false)
				}
			}
			// Ours make no difference.
			s.w.own = func(uint32) bool { return true }
			defer attach(s.veth, ebpf.AttachTCXEgress, one).Close()
			poll(t, s.w, false)
			s.safe()
			poll(t, s.w, false)
		})
	}
}

// What else makes no event on a path is noticed between two scans.
func TestPollNoticesWhatMakesNoEvent(t *testing.T) {
	s := lab(t, bed.Nested, nil)
	s.needBridgeNetfilter()
	for _, key := range []string{"bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"} {
		for _, v := range []string{"0", "1"} {
			s.sysctl(key, v)
			s.verdict()
			poll(t, s.w, false)
			s.sysctl(key, map[string]string{"0": "1", "1": "0"}[v])
			poll(t, s.w, true)
		}
	}
	// Legacy tables are asked for where br_netfilter would call them.
	s.sysctl("bridge/bridge-nf-call-iptables", "1")
	s.safe()
	poll(t, s.w, false)
	if err := s.overlay.Do(registerFilter); err != nil {
		t.Skip("needs legacy iptables: ", err)
	}
	poll(t, s.w, true)
}

// BenchmarkPoll is with a NIC in the tunnels' namespace.
func BenchmarkPoll(b *testing.B) {
	for _, pods := range []int{1, 50} {
		b.Run(strconv.Itoa(pods), func(b *testing.B) {
			s := labOf(b, bed.Nested, pods, nil)
			s.run(s.overlay, "ip link add nic type veth peer name far\nip addr add 192.0.2.1/24 dev nic\nip link set nic up")
			nic := node.Dev{NetnsCookie: s.paths[0].Tunnel.NetnsCookie, Ifindex: s.index(s.overlay, "nic"), Name: "nic"}
			s.w.Check(s.paths)
			if v := s.w.CheckIngress([]Ingress{{NIC: nic}})[0]; !v.Safe() {
				b.Fatal(v.Reason)
			}
			for b.Loop() {
				if changed, err := s.w.Poll(); changed || err != nil {
					b.Fatal(changed, err)
				}
			}
		})
	}
}

func BenchmarkCheckIngress(b *testing.B) {
	s := labOf(b, bed.Nested, 1, nil)
	s.run(s.overlay, "ip link add nic type veth peer name far\nip addr add 192.0.2.1/24 dev nic\nip link set nic up")
	list := []Ingress{{NIC: node.Dev{NetnsCookie: s.paths[0].Tunnel.NetnsCookie, Ifindex: s.index(s.overlay, "nic"), Name: "nic"}}}
	for b.Loop() {
		if v := s.w.CheckIngress(list)[0]; !v.Safe() {
			b.Fatal(v.Reason)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, pods := range []int{1, 50} {
		b.Run(strconv.Itoa(pods), func(b *testing.B) {
			s := labOf(b, bed.Nested, pods, nil)
			for b.Loop() {
				for _, v := range s.w.Check(s.paths) {
					if !v.Safe() {
						b.Fatal(v.Reason)
					}
				}
			}
		})
	}
}
