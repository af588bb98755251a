// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// node0 is a node without any fault.
func node0() (node.Snapshot, map[node.DevKey]dev) {
	eth := node.Dev{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}
	vx := node.Dev{NetnsCookie: 1, Ifindex: 3, Name: "vx0"}
	br := node.Dev{NetnsCookie: 1, Ifindex: 4, Name: "br0"}
	peer := node.Dev{NetnsCookie: 9, Ifindex: 2, Name: "eth0"}
	snap := node.Snapshot{
		Underlays: []node.Underlay{{Dev: eth, MTU: 1500, RxQueues: 4, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}},
		Tunnels:   []node.Tunnel{{Dev: vx, Kind: encap.VXLAN, MTU: 1450, Underlays: []node.Dev{eth}, Bridge: &br}},
		Pods:      []node.Pod{{Host: node.Dev{NetnsCookie: 1, Ifindex: 5}, Peer: peer, PeerMTU: 1450, Tunnels: []node.Dev{vx}}},
	}
	on, off := ethtool.Feature{Active: true}, ethtool.Feature{}
	devs := map[node.DevKey]dev{
		eth.Key(): {Dev: eth, rx: queues{"combined", 4, 4}, offloads: map[string]ethtool.Feature{
			"rx-gro": on, "rx-checksum": on, "rx-lro": off, "tx-udp_tnl-segmentation": on,
		}},
		vx.Key():   {Dev: vx, offloads: map[string]ethtool.Feature{"rx-gro": on, "tx-checksum-ip-generic": on}},
		peer.Key(): {Dev: peer, at: "/run/netns/pod"},
	}
	return snap, devs
}

func TestDiagnosis(t *testing.T) {
	eth, vx := node.DevKey{NetnsCookie: 1, Ifindex: 2}, node.DevKey{NetnsCookie: 1, Ifindex: 3}
	flag := func(k node.DevKey, name string, f ethtool.Feature) func(*node.Snapshot, map[node.DevKey]dev) {
		return func(_ *node.Snapshot, d map[node.DevKey]dev) { d[k].offloads[name] = f }
	}
	on, off, fixed := ethtool.Feature{Active: true}, ethtool.Feature{}, ethtool.Feature{Fixed: true}
	tests := []struct {
		name  string
		fault func(*node.Snapshot, map[node.DevKey]dev)
		want  string // level and command; empty: nothing to find
	}{
		{"nothing wrong", func(*node.Snapshot, map[node.DevKey]dev) {}, ""},
		{"tunnel MTU", func(s *node.Snapshot, _ map[node.DevKey]dev) { s.Tunnels[0].MTU = 1500 }, "broken: ip link set dev vx0 mtu 1450  # until the network is made anew: set it in the network's own configuration, too"},
		{"tunnel MTU over IPv6", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Tunnels[0].Local = netip.MustParseAddr("fd00::1")
			s.Pods[0].PeerMTU = 1400
		}, "broken: ip link set dev vx0 mtu 1430  # until the network is made anew: set it in the network's own configuration, too"},
		{"pod MTU behind a bridge", func(s *node.Snapshot, _ map[node.DevKey]dev) { s.Pods[0].PeerMTU = 1500 }, "broken: nsenter --net=/run/netns/pod ip link set dev eth0 mtu 1450  # until the pod is made anew: set it in the network's own configuration, too"},
		{"pod MTU behind a router", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Pods[0].PeerMTU, s.Tunnels[0].Bridge = 1500, nil
		}, ""},
		{"underlay GRO", flag(eth, "rx-gro", off), "slow: ethtool -K eth0 gro on"},
		{"tunnel GRO", flag(vx, "rx-gro", off), "slow: ethtool -K vx0 gro on"},
		{"receive checksums", flag(eth, "rx-checksum", off), "slow: ethtool -K eth0 rx on"},
		{"receive checksums that the NIC has not", flag(eth, "rx-checksum", fixed), ""},
		{"LRO", flag(eth, "rx-lro", on), "slow: ethtool -K eth0 lro off"},
		{"tunnel segmentation", flag(eth, "tx-udp_tnl-segmentation", off), "slow: ethtool -K eth0 tx-udp_tnl-segmentation on"},
		{"checksum offload of the tunnel, off", flag(vx, "tx-checksum-ip-generic", off), ""},
		{"checksum offload of the tunnel, on", flag(vx, "tx-checksum-ip-generic", on), ""},
		{"wrong checksums in pods", func(s *node.Snapshot, d map[node.DevKey]dev) {
			other := s.Pods[0]
			other.Peer.NetnsCookie = 10
			s.Pods = append(s.Pods, other)
			d[other.Peer.Key()] = dev{Dev: other.Peer, badSums: 2}
			p := d[s.Pods[0].Peer.Key()]
			p.badSums = 1
			d[p.Key()] = p
		}, "broken: ethtool -K vx0 tx-checksum-ip-generic off  # on each node that sends to this one; on takes it back"},
		{"wrong checksums of outer packets", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[eth]
			e.badSums = 7
			d[eth] = e
		}, "broken: ethtool -K vx0 tx-checksum-ip-generic off  # on each node that sends to this one; on takes it back"},
		{"threaded NAPI of the tunnel", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[vx]
			e.threaded = true
			d[vx] = e
		}, "broken: echo 0 >/sys/class/net/vx0/threaded  # if nothing comes out of it then: ethtool -K vx0 gro off, or make it anew; echo 1 takes it back"},
		{"threaded NAPI of a tunnel elsewhere", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[vx]
			e.threaded, e.at = true, "/run/netns/ov"
			d[vx] = e
		}, `broken: nsenter --net=/run/netns/ov unshare -m sh -c 'mount -t sysfs sysfs /sys && echo 0 >"/sys/class/net/$0/threaded"' vx0  # if nothing comes out of it then: ethtool -K vx0 gro off, or make it anew; echo 1 takes it back`},
		{"senders that leave checksums", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Underlays[0].Unfinished = "they do; see: ethtool -K peer tx off"
		}, "note: "}, // the command is in the sentence
		{"senders out of sight", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Underlays[0].Receivers = []node.Receiver{{Dev: s.Underlays[0].Dev, Driver: "veth", Peer: node.Dev{Ifindex: 7, Name: "veth7"}}}
		}, "note: ethtool -K veth7 tx off  # where the other end of eth0 is, then restart overlane"},
		{"senders out of sight, without a name", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Underlays[0].Receivers = []node.Receiver{{Dev: s.Underlays[0].Dev, Driver: "veth"}}
		}, "note: ethtool -K PEER tx off  # where the other end of eth0 is, then restart overlane"},
		{"one queue", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[eth]
			e.rx = queues{"combined", 1, 8}
			d[eth] = e
		}, "slow: ethtool -L eth0 combined 8"},
		{"foreign XDP", func(s *node.Snapshot, _ map[node.DevKey]dev) {
			s.Underlays[0].XDPProgID, s.Underlays[0].ForeignXDP = 77, true
		}, "note: bpftool prog show id 77"},
		{"our XDP", func(s *node.Snapshot, _ map[node.DevKey]dev) { s.Underlays[0].XDPProgID = 77 }, ""},
		{"foreign tcx", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[vx]
			e.hooks.Programs = []foreign.Program{{ID: 5, Name: "look", Hook: "tcx ingress"}}
			d[vx] = e
		}, "note: bpftool prog show id 5"},
		{"a dataplane on two pods", func(s *node.Snapshot, d map[node.DevKey]dev) {
			other := s.Pods[0]
			other.Host.Ifindex = 99
			s.Pods = append(s.Pods, other)
			for id, host := range []node.Dev{s.Pods[0].Host, other.Host} {
				d[host.Key()] = dev{Dev: host, hooks: foreign.Hooks{Programs: []foreign.Program{{ID: uint32(id), Name: "cil_from_contain", Hook: "tcx ingress"}}}}
			}
		}, "note: bpftool prog show id 0"},
		{"legacy filters", func(_ *node.Snapshot, d map[node.DevKey]dev) {
			e := d[eth]
			e.hooks.Filters = []string{"u32"}
			d[eth] = e
		}, "note: tc filter show dev eth0 ingress"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			snap, devs := node0()
			tt.fault(&snap, devs)
			var got []string
			for _, f := range diagnose(snap, devs) {
				if f.What == "" {
					t.Error("a finding without words")
				}
				got = append(got, f.Level.String()+": "+f.Fix.String())
			}
			if d := cmp.Diff(tt.want, strings.Join(got, "\n")); d != "" {
				t.Fatal(d)
			}
		})
	}
}

// A datagram with a wrong checksum that comes while doctor looks is told of, one from before is
// not.
func TestWrongChecksumsAreCountedWhileTheyCome(t *testing.T) {
	h := newNS(t, `link set lo up
		addr add 10.1.0.1/24 dev lo
		link add vx0 type vxlan id 1 dstport 4789 local 10.1.0.1
		link set vx0 up`)
	namespaces := oneNamespace{h}
	snap := node.Snapshot{Underlays: []node.Underlay{{Dev: node.Dev{NetnsCookie: 1}}}}
	send := func() {
		t.Helper()
		err := h.Do(func() error {
			to, err := net.ListenPacket("udp4", "127.0.0.1:9")
			if err != nil {
				return err
			}
			defer to.Close()
			from, err := net.Dial("ip4:udp", "127.0.0.1")
			if err != nil {
				return err
			}
			defer from.Close()
			_, err = from.Write([]byte{0, 7, 0, 9, 0, 12, 0xba, 0xad, 1, 2, 3, 4})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Beside a busy core the kernel receives from loopback later, in ksoftirqd.
	await := func(want uint64) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for {
			n := badChecksums(namespaces, snap)[1]
			if n == want {
				return
			}
			if n > want || time.Now().After(deadline) {
				t.Fatalf("%d wrong checksums, sent were %d", n, want)
			}
			time.Sleep(time.Millisecond)
		}
	}
	await(0)
	send()
	await(1)
	send()
	send()
	await(3)
}

// oneNamespace knows one namespace under any cookie.
type oneNamespace struct{ h *netns.Handle }

func (s oneNamespace) Namespace(uint64) (*netns.Handle, error) {
	return netns.OfPath(fmt.Sprintf("/proc/self/fd/%d", s.h.FD()))
}
func (s oneNamespace) Path(uint64) (string, error) { return "", nil }

func (s oneNamespace) Settings(node.Dev) (node.Settings, error) { return node.Settings{}, nil }

func TestDiagnosisOfRealDevicesAndItsCommandsMendThem(t *testing.T) {
	for _, tool := range []string{"ethtool", "nsenter", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	h := newNS(t, `link add pA type veth peer name pB
		addr add 10.1.0.1/24 dev pA
		link set pA up
		link set pB up
		link add vx0 mtu 1500 type vxlan id 1 dstport 4789 local 10.1.0.1
		link add br0 type bridge
		link set vx0 master br0 up`)
	// Through the process there is a path that commands can use.
	holder := exec.Command("sleep", "600")
	if err := h.Do(holder.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Process.Kill(); holder.Wait() })
	sh := func(cmd string) {
		t.Helper()
		err := h.Do(func() error {
			out, err := exec.Command("sh", "-c", cmd).CombinedOutput()
			if err != nil {
				t.Logf("%s: %s", cmd, out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sh("ethtool -K vx0 gro off; ethtool -K pA gro off; ethtool -K pA rx off; tc qdisc add dev vx0 clsact; tc filter add dev vx0 ingress matchall action pass || true")
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: ret(-1)})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	var tcx link.Link
	err = h.Do(func() error {
		l, err := netlink.LinkByName("vx0")
		if err != nil {
			return err
		}
		tcx, err = link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tcx.Close()

	s, err := node.NewScanner(node.Options{Home: h, Dirs: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	own, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	here, err := own.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	find := func() []Finding {
		t.Helper()
		snap, err := s.Scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list, err := Diagnose(t.Context(), s, snap, here, func(uint32) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	mended := 0
	for _, f := range find() {
		if f.Level == Note {
			continue
		}
		if out, err := exec.Command("sh", "-c", f.Fix.String()).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", f.Fix, err, out)
		}
		mended++
	}
	if mended < 4 {
		t.Errorf("found %d faults, want those of MTU, GRO twice, checksums", mended)
	}
	left := find()
	tcxSeen := false
	for _, f := range left {
		if f.Level != Note {
			t.Errorf("the command did not mend: %+v", f)
		}
		tcxSeen = tcxSeen || strings.Contains(f.What, "tcx")
	}
	if !tcxSeen {
		t.Errorf("a foreign tcx program was not seen: %+v", left)
	}
}
