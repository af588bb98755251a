// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

// What is missing is said of what there is, with the reason why the device that would be it was left out.
func TestWhatANodeLacksForAnOverlay(t *testing.T) {
	nic, vx, other, ve := Dev{1, 2, "eth0"}, Dev{1, 3, "vx0"}, Dev{1, 4, "vx1"}, Dev{1, 5, "ve1"}
	tunnel := func(d Dev, nics ...Dev) Tunnel { return Tunnel{Dev: d, Underlays: nics} }
	behind := func(d Dev) Pod { return Pod{Host: ve, Tunnels: []Dev{d}} }
	headless := Skip{vx, "no headers", TunnelPart}
	eth := []Underlay{{Dev: nic}}
	for _, tt := range []struct {
		name     string
		snap     Snapshot
		nic, pod string // empty: what nic says
	}{
		{"nothing", Snapshot{}, "there is no VXLAN or Geneve tunnel yet", ""},
		{"a configured NIC", Snapshot{Underlays: eth}, "there is no VXLAN or Geneve tunnel yet", ""},
		{"a tunnel of elsewhere", Snapshot{Skipped: []Skip{{vx, "elsewhere", TunnelPart}}}, "no tunnel is served: vx0: elsewhere", ""},
		{"a tunnel over a TUN device", Snapshot{Tunnels: []Tunnel{tunnel(vx)}, Pods: []Pod{behind(vx)}, Skipped: []Skip{{ve, "no veth", PodPart}, headless}},
			"no NIC is served: vx0: no headers", ""},
		{"a NIC that cannot be read", Snapshot{Tunnels: []Tunnel{tunnel(vx, nic)}, Skipped: []Skip{{nic, "not readable", UnderlayPart}}},
			"no NIC is served: eth0: not readable", ""},
		{"no pod", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx, nic)}}, "", "there is no pod yet"},
		{"no pod, and a NIC that is left alone", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx, nic)}, Skipped: []Skip{{Dev{1, 9, "eth1"}, notConfigured, UnderlayPart}}},
			"", "there is no pod yet"},
		{"a pod on a macvlan", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx, nic)}, Stacked: []Stacked{{Dev: ve, Kind: "macvlan", On: vx}}},
			"", "no pod has an end on the host's side: ve1: " + Stacked{Kind: "macvlan", On: vx}.Alone()},
		{"pods that are left alone", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx, nic)}, Skipped: []Skip{{ve, "netkit", PodPart}}},
			"", "no pod is served: ve1: netkit"},
		{"a pod behind the other tunnel", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx), tunnel(other, nic)}, Pods: []Pod{behind(vx)}, Skipped: []Skip{headless}},
			"", "no tunnel that leads to a pod is served: vx0: no headers"},
		{"all there", Snapshot{Underlays: eth, Tunnels: []Tunnel{tunnel(vx), tunnel(other, nic)}, Pods: []Pod{behind(vx), behind(other)}, Skipped: []Skip{headless}}, "", ""},
	} {
		pod := tt.pod
		if tt.nic != "" {
			pod = tt.nic
		}
		if got := tt.snap.LacksNIC(); got != tt.nic {
			t.Errorf("%s: of NICs it says %q, want %q", tt.name, got, tt.nic)
		}
		if got := tt.snap.LacksPod(); got != pod {
			t.Errorf("%s: of pods it says %q, want %q", tt.name, got, pod)
		}
	}
}
