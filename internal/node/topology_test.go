// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/overlane/overlane/internal/encap"
)

func TestBridgedPodIsFoundWithBothEnds(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts()
	pod := held(t)
	a.ip(t, vxlan+`link add br0 type bridge
		link set vx0 master br0 up
		link set br0 up
		link add ve1 mtu 1400 type veth peer name eth0 address 02:00:00:00:00:07 mtu 1450 numrxqueues 4 netns $1
		link set ve1 master br0 up`, pod)
	pod.ip(t, "link set eth0 up")
	inNS(t, pod, "ethtool", "-L", "eth0", "rx", "2")
	snap := scan(t, w.scanner(a))

	ignore := cmp.Options{
		cmpopts.IgnoreFields(Dev{}, "Ifindex"),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Underlays.Addrs" }, cmp.Ignore()),
		cmpopts.IgnoreFields(Underlay{}, "Unfinished"),
	}
	dev := func(n *ns, name string) Dev { return Dev{NetnsCookie: n.cookie, Name: name} }
	br := dev(a, "br0")
	want := Snapshot{
		Underlays: []Underlay{{Dev: dev(a, "pA"), MTU: 1500, RxQueues: 1, Driver: "veth", Receivers: []Receiver{{Dev: dev(a, "pA"), Driver: "veth", Peer: dev(b, "pB")}}}},
		Tunnels: []Tunnel{{
			Dev: dev(a, "vx0"), Kind: encap.VXLAN, VNI: 42, Port: 4789, MTU: 1500, Local: netip.MustParseAddr("10.1.0.1"), Outer: 4,
			Underlays: []Dev{dev(a, "pA")}, Bridge: &br,
		}},
		Pods: []Pod{{
			Host: dev(a, "ve1"), Peer: dev(pod, "eth0"), PeerRxQueues: 2, PeerMTU: 1450,
			HostQdisc: "noqueue", Tunnels: []Dev{dev(a, "vx0")},
		}},
	}
	if d := cmp.Diff(want, snap, ignore); d != "" {
		t.Fatal(d)
	}
	if !contains(snap.Underlays[0].Addrs, "10.1.0.1") {
		t.Fatalf("underlay addresses: %v", snap.Underlays[0].Addrs)
	}
}

func contains(list []netip.Addr, a string) bool {
	for _, e := range list {
		if e.String() == a {
			return true
		}
	}
	return false
}

func TestVethOfAnotherBridgeIsNoPod(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	pod := held(t)
	a.ip(t, vxlan+`link add br0 type bridge
		link set vx0 master br0 up
		link add br1 type bridge
		link set br1 up
		addr add 172.17.0.1/16 dev br1
		link add ve1 type veth peer name eth0 netns $1
		link set ve1 master br1 up`, pod)
	if snap := scan(t, w.scanner(a)); len(snap.Pods) != 0 {
		t.Fatalf("claimed %v, which no tunnel leads to", podNames(snap))
	}
}

func TestRoutedPods(t *testing.T) {
	const tunnel = vxlan + "link set vx0 up\nroute add 10.244.1.0/24 via 10.1.0.2 dev vx0 onlink\n"
	tests := []struct {
		name, host, pod string
		forward         bool
		want            []string
	}{
		{
			name: "flannel: veths in a bridge that has the route", forward: true,
			host: `link add cni0 type bridge
				link set cni0 up
				addr add 10.244.0.1/24 dev cni0
				link set ve1 master cni0`,
			want: []string{"ve1"},
		},
		{
			name: "calico: a host route per veth", forward: true,
			host: "route add 10.244.0.2/32 dev ve1",
			want: []string{"ve1"},
		},
		{
			name: "a subnet per veth, the container routes by it", forward: true,
			host: "addr add 10.244.0.1/24 dev ve1",
			pod:  "addr add 10.244.0.2/24 dev eth0\nroute add default via 10.244.0.1",
			want: []string{"ve1"},
		},
		{
			name: "IPv6 host route", forward: true,
			host: "route add fd00::2/128 dev ve1",
			want: []string{"ve1"},
		},
		{
			name: "a link between two hosts", forward: true,
			host: "addr add 10.9.0.1/24 dev ve1",
			pod:  "addr add 10.9.0.2/24 dev eth0",
		},
		{
			name: "no route to the veth", forward: true,
		},
		{
			name: "no route to the bridge", forward: true,
			host: `link add br9 type bridge
				link set br9 up
				link set ve1 master br9`,
		},
		{
			name: "nothing is forwarded",
			host: "route add 10.244.0.2/32 dev ve1",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a, _ := w.hosts()
			a.sysctl(t, "ipv6/conf/default/disable_ipv6", "0")
			a.sysctl(t, "ipv6/conf/all/disable_ipv6", "0")
			pod := held(t)
			a.ip(t, tunnel+"link add ve1 type veth peer name eth0 netns $1\nlink set ve1 up", pod)
			pod.ip(t, "link set eth0 up\n"+tt.pod)
			a.ip(t, tt.host)
			forward := "0"
			if tt.forward {
				forward = "1"
			}
			a.sysctl(t, "ipv4/ip_forward", forward)
			snap := scan(t, w.scanner(a))
			if d := cmp.Diff(tt.want, podNames(snap)); d != "" {
				t.Fatalf("%s\nskipped: %v", d, snap.Skipped)
			}
			if len(tt.want) > 0 && snap.Pods[0].Peer.NetnsCookie != pod.cookie {
				t.Fatal("wrong namespace of the other end")
			}
		})
	}
}

func TestTunnelInANamespaceOfItsOwn(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(w *world) *ns
	}{
		{"with a name", func(w *world) *ns { return named(w.t, w.dir, "overlay") }},
		{"held by a process only", func(w *world) *ns { return held(w.t) }},
		{"held by a descriptor only", func(w *world) *ns { return opened(w.t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.hosts()
			over, pod := tt.make(w), held(t)
			// As Docker does: created by the host, then moved.
			a.ip(t, vxlan+"link set vx0 netns $1", over)
			over.ip(t, `link add br0 type bridge
				link set vx0 master br0 up
				link set br0 up
				link add ve1 type veth peer name eth0 netns $1
				link set ve1 master br0 up`, pod)
			snap := scan(t, w.scanner(a))
			if d := cmp.Diff([]string{"pA"}, underlayNames(snap)); d != "" {
				t.Fatal(d)
			}
			if len(snap.Tunnels) != 1 || snap.Tunnels[0].NetnsCookie != over.cookie || snap.Tunnels[0].Underlays[0].NetnsCookie != a.cookie {
				t.Fatalf("tunnels: %+v\nskipped: %v", snap.Tunnels, snap.Skipped)
			}
			if len(snap.Pods) != 1 || snap.Pods[0].Peer.NetnsCookie != pod.cookie {
				t.Fatalf("pods: %+v\nskipped: %v", snap.Pods, snap.Skipped)
			}
			if other := scan(t, w.scanner(b)); len(other.Tunnels)+len(other.Pods)+len(other.Underlays) != 0 {
				t.Fatalf("the other host claims it too: %+v", other)
			}
		})
	}
}

// Docker makes both ends of a container's veth in the host's namespace. What is set on the
// container's end there goes with it to where it is not found again.
func TestContainersEndIsLeftAloneUntilItIsInItsContainer(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	over, pod := named(t, w.dir, "overlay"), held(t)
	a.ip(t, vxlan+`link set vx0 netns $1
		link add ve1 type veth peer name vethc
		link set ve1 netns $1`, over)
	over.ip(t, `link add br0 type bridge
		link set vx0 master br0 up
		link set br0 up
		link set ve1 master br0 up`)
	s := w.scanner(a)
	if snap := scan(t, s); len(snap.Pods) != 0 || len(snap.Skipped) != 1 {
		t.Fatalf("pods: %+v\nskipped: %v", snap.Pods, snap.Skipped)
	}
	calm(t, s)
	a.ip(t, "link set vethc netns $1 name eth0", pod)
	pod.ip(t, "link set eth0 up")
	until(t, s, "the container's end is in its namespace", func(snap Snapshot) bool {
		return len(snap.Pods) == 1 && snap.Pods[0].Peer.NetnsCookie == pod.cookie
	})
}

func TestTunnelWhoseLinkNamespaceIsElsewhereIsNotOurs(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts()
	b.ip(t, "link add vx9 type vxlan id 9 dstport 4789 dev pB\nlink set vx9 netns $1", a)
	snap := scan(t, w.scanner(a))
	if len(snap.Tunnels) != 0 || len(snap.Underlays) != 0 {
		t.Fatalf("claimed: %+v", snap)
	}
	if len(snap.Skipped) != 1 || snap.Skipped[0].Dev.Name != "vx9" {
		t.Fatalf("no reason given: %+v", snap.Skipped)
	}
	// It is the other host's, wherever it lives.
	if snap := scan(t, w.scanner(b)); len(snap.Tunnels) != 1 || snap.Tunnels[0].NetnsCookie != a.cookie {
		t.Fatalf("owner does not see it: %+v", snap)
	}
}

func TestTwoHostsDoNotSeeEachOthersDevices(t *testing.T) {
	w := newWorld(t)
	a, b := w.hosts()
	podA, podB := held(t), held(t)
	for i, h := range []*ns{a, b} {
		local, remote := "10.1.0.1", "10.1.0.2"
		if i == 1 {
			local, remote = remote, local
		}
		h.ip(t, `link add vx0 type vxlan id 42 dstport 4789 local `+local+` remote `+remote+`
			link add br0 type bridge
			link set vx0 master br0 up
			link add ve1 type veth peer name eth0 netns $1
			link set ve1 master br0 up`, []*ns{podA, podB}[i])
	}
	sa, sb := scan(t, w.scanner(a)), scan(t, w.scanner(b))
	seen := map[DevKey]bool{}
	for _, s := range []Snapshot{sa, sb} {
		if len(s.Underlays) != 1 || len(s.Tunnels) != 1 || len(s.Pods) != 1 {
			t.Fatalf("incomplete: %+v", s)
		}
		for _, d := range []Dev{s.Underlays[0].Dev, s.Tunnels[0].Dev, s.Pods[0].Host, s.Pods[0].Peer} {
			if seen[d.Key()] {
				t.Fatalf("both hosts claim %s", d)
			}
			seen[d.Key()] = true
		}
	}
}

func TestPortOfAForeignBridgeIsNoPod(t *testing.T) {
	w := newWorld(t)
	a, _ := w.hosts()
	outside := held(t)
	// The host is itself a container: its uplink is a port of our bridge.
	a.ip(t, vxlan+`link add br0 type bridge
		link set vx0 master br0 up
		link add eth1 type veth peer name vethX netns $1
		link set eth1 master br0 up`, outside)
	outside.ip(t, "link add docker0 type bridge\nlink set vethX master docker0 up")
	snap := scan(t, w.scanner(a))
	if len(snap.Pods) != 0 || len(snap.Skipped) != 1 {
		t.Fatalf("pods %v, skipped %v", podNames(snap), snap.Skipped)
	}
}
