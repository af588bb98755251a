// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/probe"
	"github.com/overlane/overlane/internal/xdp"
)

// folder is one with what a daemon found out.
type folder map[string]string

func (f folder) ReadFile(name string) ([]byte, error)  { return []byte(f[name]), nil }
func (f folder) WriteFile(name string, b []byte) error { f[name] = string(b); return nil }

// What the driver could do is no use where something stands against a program on the NIC.
func TestDoctorKnowsWhatStandsAgainstXDP(t *testing.T) {
	features := []probe.Feature{{ID: probe.NativeXDP, Device: "eth0", State: probe.Supported}}
	for _, id := range []probe.ID{probe.Kernel, probe.BTF, probe.KernelRead, probe.TCX, probe.RPS, probe.TracepointBT, probe.SoftnetData, probe.OrderGuard, probe.CPUMap, probe.CPUMapGRO, probe.ThreadedNAPI, probe.UDPGRO, probe.BPFQdisc} {
		features = append(features, probe.Feature{ID: id, State: probe.Supported})
	}
	memory := folder{xdp.MemoryFile: `{"version":1,"kernel":"` + kernelRelease(t) + `","nics":[{"driver":"igb","at":"0000:00:03.0","mtu":9000,"refused":"too small"}]}`}
	nic := func(change func(*node.Underlay)) node.Underlay {
		u := node.Underlay{Dev: node.Dev{Name: "eth0", Ifindex: 2}, Driver: "igb", At: "0000:00:03.0", MTU: 1500}
		change(&u)
		return u
	}
	for words, u := range map[string]node.Underlay{
		xdp.UnderVLANs:          nic(func(u *node.Underlay) { u.VLANs = true }),
		"too small":             nic(func(u *node.Underlay) { u.MTU = 9000 }),
		"a foreign XDP program": nic(func(u *node.Underlay) { u.ForeignXDP = true }),
		"":                      nic(func(*node.Underlay) {}),
	} {
		known, err := xdp.Remember(memory)
		if err != nil {
			t.Fatal(err)
		}
		l := nodeState{features: features, snap: node.Snapshot{Underlays: []node.Underlay{u}}, places: xdp.New(nil, known, nil)}
		l.features = l.stands()
		for _, m := range l.mechanisms() {
			if m.Name == "aggregate" {
				continue
			}
			if m.Possible != (words == "") || !strings.Contains(m.Reason, words) {
				t.Errorf("%s with %q: %+v", m.Name, words, m)
			}
		}
		// Flows are cut behind the NIC's stage, which needs no XDP.
		if merge := probe.Tiers(l.features)[3]; !merge.Reached {
			t.Errorf("with %q: %+v", words, merge)
		}
	}
}

// At boot no NIC is known, since no container of an overlay runs yet: that keeps no daemon from starting, and flows may
// be cut by XDP once there is one. What the kernel lacks, or a NIC that is known, does.
func TestATierNeedsNoUnderlayYet(t *testing.T) {
	kernel := func(lacks ...probe.ID) (list []probe.Feature) {
		for _, id := range []probe.ID{probe.Kernel, probe.BTF, probe.KernelRead, probe.TCX, probe.RPS, probe.TracepointBT, probe.SoftnetData, probe.OrderGuard, probe.CPUMap} {
			f := probe.Feature{ID: id, State: probe.Supported}
			if slices.Contains(lacks, id) {
				f = probe.Feature{ID: id, Reason: "it is not there"}
			}
			list = append(list, f)
		}
		return list
	}
	cfg := config.Default()
	cfg.Tier = config.TierXDP
	for _, tc := range []struct {
		name     string
		features []probe.Feature
		nics     []node.Underlay
		want     string
	}{
		{"no underlay yet", kernel(), nil, ""},
		{"no underlay yet, and no cpumap", kernel(probe.CPUMap), nil, "it is not there"},
		{"no underlay yet, and no tcx", kernel(probe.TCX), nil, "it is not there"},
		{"a NIC without XDP", append(kernel(), probe.Feature{ID: probe.NativeXDP, Device: "eth0", Reason: "no program"}), make([]node.Underlay, 1), "no program"},
	} {
		l := nodeState{features: tc.features, tiers: probe.Tiers(tc.features), snap: node.Snapshot{Underlays: tc.nics}}
		opts, err := optionsOn(cfg, l)
		if xdp := opts.Tiers[2]; xdp.Reached != (tc.want == "") || !strings.Contains(xdp.Reason, tc.want) {
			t.Errorf("%s: status says %+v, want %q", tc.name, xdp, tc.want)
		}
		for _, got := range []error{err, opts.Pipeline.Microflows.NoXDP} {
			if (got == nil) != (tc.want == "") || got != nil && !strings.Contains(got.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.name, got, tc.want)
			}
		}
	}
}

func kernelRelease(t *testing.T) string {
	t.Helper()
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(release))
}
