// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What comes in by a device also meets what is on those around it.
func TestDevicesAroundArePassed(t *testing.T) {
	links := map[int]linkInfo{
		2: {Device: Device{Name: "eth0", Master: 3}, nsid: -1}, 3: {Device: Device{Name: "bond0", Kind: "bond", Master: 9}, nsid: -1},
		4: {Device: Device{Name: "bond0.5", Kind: "vlan"}, lower: 3, nsid: -1}, 5: {Device: Device{Name: "vx0", Kind: "vxlan"}, lower: 3, nsid: -1},
		6: {Device: Device{Name: "mv0", Kind: "macvlan"}, lower: 3, nsid: 0}, 7: {Device: Device{Name: "out0", Master: 8}, nsid: -1},
		8: {Device: Device{Name: "br0", Kind: "bridge"}, nsid: -1}, 9: {Device: Device{Name: "br1", Kind: "bridge"}, nsid: -1}, 10: {Device: Device{Name: "tap0", Master: 9}, nsid: -1},
	}
	got := around(Passage{Devs: []Passed{{4, "bond0.5", true, true}, {7, "out0", false, true}}}, links, no).Devs
	want := []Passed{{4, "bond0.5", true, true}, {7, "out0", false, true}, {3, "bond0", true, true}, {9, "br1", true, true}, {2, "eth0", true, false}, {10, "tap0", false, true}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

func no(string) bool { return false }

// Datagrams go on by what a bridge joins, and by what the host routes; not back to where they came from.
func TestWhereDatagramsGoOn(t *testing.T) {
	dev := func(name, kind string, lower, nsid, master int) linkInfo {
		return linkInfo{Device: Device{Name: name, Kind: kind, Up: true, Master: master}, lower: lower, nsid: nsid}
	}
	for _, tt := range []struct {
		name   string
		links  map[int]linkInfo
		routes string // what comes by this device is routed
		ports  []uint16
		ends   string
		over   string
		sends  bool
	}{
		{name: "an ordinary pod", links: map[int]linkInfo{1: dev("lo", "", 0, -1, 0)}, routes: "eth0"},
		{name: "Docker in Docker", links: map[int]linkInfo{3: dev("docker0", "bridge", 0, -1, 0), 4: dev("vi", "veth", 2, 1, 3)}, routes: "eth0", ends: "vi->2@1"},
		{name: "which routes nothing", links: map[int]linkInfo{3: dev("docker0", "bridge", 0, -1, 0), 4: dev("vi", "veth", 2, 1, 3)}},
		{name: "a bridge in the pod", links: map[int]linkInfo{2: dev("eth0", "veth", 9, 0, 3), 3: dev("br", "bridge", 0, -1, 0), 4: dev("vi", "veth", 2, 1, 3)}, ends: "vi->2@1"},
		{name: "Open vSwitch", links: map[int]linkInfo{2: dev("eth0", "veth", 9, 0, 3), 3: dev("ovs-system", "openvswitch", 0, -1, 0), 4: dev("vi", "veth", 2, 1, 3)}, ends: "vi->2@1"},
		{name: "netkit", links: map[int]linkInfo{4: dev("nk", "netkit", 2, 1, 0)}, routes: "eth0", ends: "nk->2@1"},
		{name: "two bridges and a pair between them", links: map[int]linkInfo{
			2: dev("eth0", "veth", 9, 0, 3), 3: dev("br", "bridge", 0, -1, 0), 4: dev("a", "veth", 5, -1, 3), 5: dev("b", "veth", 4, -1, 6),
			6: dev("br2", "bridge", 0, -1, 0), 7: dev("vi", "veth", 2, 1, 6),
		}, ends: "vi->2@1"},
		{name: "a VLAN of a bridge", links: map[int]linkInfo{3: dev("br", "bridge", 0, -1, 0), 4: dev("br.5", "vlan", 3, -1, 0), 5: dev("vi", "veth", 2, 1, 3)}, routes: "eth0", ends: "vi->2@1"},
		{name: "a macvlan on a device elsewhere", links: map[int]linkInfo{3: dev("mv", "macvlan", 7, 2, 0), 4: dev("iv", "ipvlan", 8, 2, 0), 5: dev("v", "vlan", 9, 2, 0)}, over: "mv 7@2, iv 8@2, v 9@2"},
		{name: "a tunnel elsewhere", links: map[int]linkInfo{3: dev("vx", "vxlan", 7, 2, 0), 4: dev("gre1", "gre", 7, 2, 0)}},
		{name: "another tunnel", links: map[int]linkInfo{3: dev("vx", "vxlan", 0, -1, 0)}, routes: "eth0", sends: true},
		{name: "another tunnel, and nothing is routed", links: map[int]linkInfo{3: dev("vx", "vxlan", 0, -1, 0)}},
		{name: "tunnels of other namespaces that send here", ports: []uint16{4789}, routes: "eth0", sends: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			links := map[int]linkInfo{2: dev("eth0", "veth", 9, 0, 0)}
			for i, l := range tt.links {
				links[i] = l
			}
			a := around(Passage{Devs: []Passed{{Ifindex: 2, In: true}}, Ports: tt.ports}, links, func(dev string) bool { return dev == tt.routes })
			var ends, over []string
			for _, e := range a.Ends {
				ends = append(ends, fmt.Sprintf("%s->%d@%d", e.Name, e.Other, e.NSID))
			}
			for _, o := range a.Over {
				over = append(over, fmt.Sprintf("%s %d@%d", o.Name, o.Lower, o.NSID))
			}
			if strings.Join(ends, ", ") != tt.ends || strings.Join(over, ", ") != tt.over || a.Sends != tt.sends {
				t.Errorf("they go on by %v, devices elsewhere have %v, in other packets %t; want %q, %q, %t", ends, over, a.Sends, tt.ends, tt.over, tt.sends)
			}
		})
	}
}

// A program behind a device, as a virtual machine, gets joined datagrams as they are if it has asked for that.
func TestProgramsBehindDevices(t *testing.T) {
	const (
		csum, tso4 = unix.TUN_F_CSUM, unix.TUN_F_TSO4
		uso        = unix.TUN_F_USO4 | unix.TUN_F_USO6
	)
	s := newStation(t)
	open := func(path, name string, flags uint16) int {
		t.Helper()
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skipf("needs %s: %v", path, err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if name != "" {
			req, err := unix.NewIfreq(name)
			if err != nil {
				t.Fatal(err)
			}
			req.SetUint16(flags)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	offer := func(fd, offloads int) {
		t.Helper()
		if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
			t.Fatal(err)
		}
	}
	var fd int
	if err := s.ns.Do(func() error {
		fd = open("/dev/net/tun", "tap0", unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.run("sysctl -qw net.ipv4.ip_forward=1\nip link set tap0 up")
	for _, tt := range []struct {
		offloads int
		want     string
	}{
		{0, ""},
		{csum | tso4, ""},
		{csum | uso, "the program behind tap0, most likely a virtual machine, takes joined datagrams as they are (tx-udp-segmentation); see: ethtool -k tap0"},
		{csum | tso4, ""},
	} {
		offer(fd, tt.offloads)
		if got := s.scan(); got != tt.want {
			t.Errorf("tap0, offloads %#x: %q, want %q", tt.offloads, got, tt.want)
		}
	}
	s.run("sysctl -qw net.ipv4.ip_forward=0")
	offer(fd, csum|uso)
	if got := s.scan(); got != "" {
		t.Errorf("nothing is routed there: %q", got)
	}
	offer(fd, 0)
	s.run("ip link add mvt0 link eth0 type macvtap mode bridge")
	if got, want := s.scan(), "behind mvt0, most likely a virtual machine, may take joined datagrams as they are"; !strings.Contains(got, want) {
		t.Errorf("mvt0: %q, want %q", got, want)
	}
}
