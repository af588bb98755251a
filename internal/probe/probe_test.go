// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/shell"
)

func noTypes(err error) func() (*btf.Spec, error) {
	return func() (*btf.Spec, error) { return nil, err }
}

func TestOnlyWhatTheKernelSaysIsConclusive(t *testing.T) {
	for err, want := range map[error]State{unix.EPERM: Unknown, btf.ErrNotSupported: Unsupported} {
		p := Prober{env{release: "6.12.0", root: fstest.MapFS{}, types: noTypes(err)}}
		if f := p.Feature(BTF); f.ID != BTF || f.State != want {
			t.Errorf("%v: %+v, want %s", err, f, want)
		}
	}
}

func TestWithoutTypesNothingThatNeedsThemIsConclusive(t *testing.T) {
	e := env{release: "6.12.0", root: fstest.MapFS{}, types: noTypes(btf.ErrNotSupported)}
	for _, ask := range []func(env) answer{askSoftnet, askCPUMapGRO, askBPFQdisc} {
		if a := ask(e); a.state != Unknown || a.reason == "" || a.remedy.IsZero() {
			t.Errorf("%+v", a)
		}
	}
}

func TestKernelRelease(t *testing.T) {
	for release, want := range map[string]State{
		"6.11.0-21-generic": Unsupported, "5.15.0": Unsupported, "6.12.0": Supported, "6.12-rc1": Supported,
		"6.18.44": Supported, "7.2.12+deb13-cloud-amd64": Supported, "10.0": Supported, "": Unknown, "weird": Unknown,
	} {
		if a := askKernel(env{release: release, root: fstest.MapFS{}}); a.state != want {
			t.Errorf("%q: %+v, want %s", release, a, want)
		}
	}
}

func TestMorePossibleCPUsThanMapsHold(t *testing.T) {
	for list, want := range map[string]State{"0-511\n": Supported, "0-512\n": Unsupported, "0-767\n": Unsupported, "": Supported} {
		root := fstest.MapFS{"sys/devices/system/cpu/possible": {Data: []byte(list)}}
		if a := askKernel(env{release: minRelease, root: root}); a.state != want || want == Unsupported && !strings.Contains(a.remedy.String(), "possible_cpus=512") {
			t.Errorf("%q: %+v, want %s", list, a, want)
		}
	}
}

func TestRemedyIsTheDistributionsOwn(t *testing.T) {
	for text, want := range map[string]string{
		"ID=debian\nVERSION_CODENAME=bookworm\n": "apt install -t bookworm-backports",
		"ID=ubuntu\nVERSION_ID=\"24.04\"\n":      "apt install linux-generic-hwe-24.04",
		"ID=fedora\n":                            "dnf upgrade kernel",
		"":                                       "6.16 or newer",
	} {
		e := env{root: fstest.MapFS{"etc/os-release": {Data: []byte(text)}}}
		if got := newerKernel(e, "6.16"); !strings.Contains(got.String(), want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestSysfsThatIsNotMountedIsInconclusive(t *testing.T) {
	if a := askRPS(env{root: fstest.MapFS{}}); a.state != Unknown {
		t.Fatalf("%+v", a)
	}
	lo := fstest.MapFS{"sys/class/net/lo/ifindex": {}}
	if a := askRPS(env{root: lo}); a.state != Unsupported {
		t.Fatalf("%+v", a)
	}
}

// No feature asks for an older kernel than the least. Documents are looked at in test/install.
func TestNoFeatureAsksForLessThanTheLeastKernel(t *testing.T) {
	for _, f := range New().All() {
		if older, ok := olderThan(f.MinKernel, minRelease); !ok || older {
			t.Errorf("%s asks for %q, the least kernel is %s", f.ID, f.MinKernel, minRelease)
		}
	}
}

func TestOrderGuardNeedsWhatItsProofRestsOn(t *testing.T) {
	for _, tt := range []struct {
		arch, version string
		want          State
	}{
		{"amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)", Supported},
		{"amd64", "#1 SMP PREEMPT_RT Debian 6.12.57-1 (2025-11-05)", Unsupported},
		{"arm64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1 (2025-11-05)", Unsupported},
	} {
		if a := askOrderGuard(env{arch: tt.arch, version: tt.version}); a.state != tt.want {
			t.Errorf("%s, %s: %+v", tt.arch, tt.version, a)
		}
	}
}

func TestEveryAnswerHasAReasonAndEveryLackARemedy(t *testing.T) {
	for _, f := range New().All() {
		if f.Reason == "" || f.MinKernel == "" || f.State == Unsupported && f.Remedy.IsZero() {
			t.Errorf("%+v", f)
		}
	}
}

func TestJSONSaysTheWords(t *testing.T) {
	b, err := json.Marshal(Feature{ID: TCX, State: Unsupported, Reason: "old"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(`{"id":"tcx","state":"unsupported","reason":"old"}`, string(b)); d != "" {
		t.Fatal(d)
	}
}

// all are supported features, but for the changes.
func all(change ...Feature) []Feature {
	var list []Feature
	for _, id := range []ID{Kernel, BTF, KernelRead, TCX, TracepointBT, RPS, SoftnetData, OrderGuard, ThreadedNAPI, UDPGRO, CPUMap, CPUMapGRO, BPFQdisc} {
		f := Feature{ID: id, State: Supported, Reason: "there"}
		for _, c := range change {
			if c.ID == id {
				f = c
			}
		}
		list = append(list, f)
	}
	for _, c := range change {
		if c.ID == NativeXDP {
			list = append(list, c)
		}
	}
	return list
}

func no(id ID) Feature {
	return Feature{ID: id, State: Unsupported, Reason: "none", Remedy: shell.Command("get %s", id)}
}

var xdp = Feature{ID: NativeXDP, Device: "eth0", State: Supported}

func TestTiers(t *testing.T) {
	badNIC := Feature{ID: NativeXDP, Device: "eth1", State: Unsupported, Reason: "none", Remedy: shell.Command("get NIC")}
	tests := []struct {
		name   string
		feats  []Feature
		top    int
		reason string // of the first tier that is not reached, or else of the last
		remedy string
	}{
		{"everything", all(xdp), 3, "", ""},
		{"one NIC of two is enough", all(badNIC, xdp), 3, "", ""},
		{"no BPF qdisc", all(xdp, no(BPFQdisc)), 2, "bpf-qdisc: none", "get bpf-qdisc"},
		{"no native XDP", all(badNIC), 1, "native-xdp of eth1: none", "get NIC"},
		{"no underlay", all(), 1, "native-xdp: no underlay was found", "overlane doctor  # again, once a container of an overlay network runs on this node"},
		{"unknown is not enough", all(Feature{ID: NativeXDP, Device: "eth0", Reason: "no answer"}), 1, "native-xdp of eth0 is unknown: no answer", ""},
		{"no order", all(xdp, no(OrderGuard)), 0, "order-guard: none", "get order-guard"},
		{"locked down", all(xdp, no(KernelRead)), 0, "kernel-read: none", "get kernel-read"},
		{"no tcx", all(xdp, no(TCX)), 0, "tcx: none", "get tcx"},
		{"no RPS and no tcx: one reason", all(xdp, no(TCX), no(RPS)), 0, "tcx: none", "get tcx"},
		{"an old kernel: the one reason", all(xdp, no(Kernel), no(TCX)), -1, "kernel: none", "get kernel"},
		{"nothing was asked", nil, -1, "kernel: was not asked for", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tiers := Tiers(tt.feats)
			if len(tiers) != 4 {
				t.Fatalf("%+v", tiers)
			}
			for _, tier := range tiers {
				// Flows that are cut behind the NIC's stage need no XDP to be merged.
				if behind := tt.top == 1 && tier.Number == 3; tier.Reached != (behind || tier.Number <= tt.top) || behind && !strings.Contains(tier.Reason, "behind the NIC's stage") {
					t.Errorf("tier %d: %+v", tier.Number, tier)
				}
				if !tier.Reached && tier.Reason == "" {
					t.Errorf("tier %d is not reached without a reason", tier.Number)
				}
			}
			at := tiers[min(tt.top+1, 3)]
			if at.Reason != tt.reason || at.Remedy.String() != tt.remedy {
				t.Errorf("got %q, %q, want %q, %q", at.Reason, at.Remedy, tt.reason, tt.remedy)
			}
		})
	}
	t.Run("without GRO behind the split tier 2 is reached and says so", func(t *testing.T) {
		if tier := Tiers(all(xdp, no(CPUMapGRO)))[2]; !tier.Reached || tier.Remedy.String() != "get cpumap-gro" {
			t.Fatalf("%+v", tier)
		}
	})
}

func TestMechanisms(t *testing.T) {
	const noUnderlay = "native-xdp: no underlay was found"
	setOne := shell.Command("overlane doctor  # again, once a container of an overlay network runs on this node")
	yes := func(name string) Mechanism { return Mechanism{Name: name, Possible: true} }
	get := func(what string) shell.Line { return shell.Command("get %s", what) }
	noNIC := Feature{ID: NativeXDP, Device: "eth1", State: Unsupported, Reason: "none", Remedy: get("NIC")}
	lacks := func(name, reason string, remedy shell.Line) Mechanism {
		return Mechanism{Name: name, Reason: reason, Remedy: remedy}
	}
	for _, tt := range []struct {
		name                           string
		feats                          []Feature
		priority, aggregation, express Mechanism
	}{
		{"everything", all(xdp), yes("priority"), yes("aggregate"), yes("express")},
		{"one NIC of two is enough", all(noNIC, xdp), yes("priority"), yes("aggregate"), yes("express")},
		{"no native XDP", all(noNIC), lacks("priority", "native-xdp of eth1: none", get("NIC")), yes("aggregate"), lacks("express", "native-xdp of eth1: none", get("NIC"))},
		{"no underlay", all(), lacks("priority", noUnderlay, setOne), yes("aggregate"), lacks("express", noUnderlay, setOne)},
		{"locked down", all(xdp, no(KernelRead)), lacks("priority", "kernel-read: none", get("kernel-read")), lacks("aggregate", "kernel-read: none", get("kernel-read")), lacks("express", "kernel-read: none", get("kernel-read"))},
		{"no tcx", all(xdp, no(TCX)), yes("priority"), lacks("aggregate", "tcx: none", get("tcx")), yes("express")},
		{"datagrams are not joined", all(xdp, no(UDPGRO)), yes("priority"), lacks("aggregate", "udp-gro: none", get("udp-gro")), yes("express")},
		{"no cpumap", all(xdp, no(CPUMap)), lacks("priority", "cpumap: none", get("cpumap")), yes("aggregate"), lacks("express", "cpumap: none", get("cpumap"))},
		{"no order", all(xdp, no(OrderGuard)), lacks("priority", "order-guard: none", get("order-guard")), yes("aggregate"), lacks("express", "order-guard: none", get("order-guard"))},
		{"no GRO in the lane", all(xdp, no(CPUMapGRO)), Mechanism{"priority", true, "TCP bulk costs more while latency traffic is about, without GRO in its lane: none", get("cpumap-gro")}, yes("aggregate"), yes("express")},
		{"no threads", all(xdp, no(CPUMapGRO), no(ThreadedNAPI)), Mechanism{"priority", true, "bulk may starve under overload, since the NIC is polled in softirq: none", get("threaded-napi")}, yes("aggregate"), yes("express")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff([]Mechanism{tt.priority, tt.aggregation, tt.express}, Mechanisms(tt.feats), cmp.AllowUnexported(shell.Line{})); d != "" {
				t.Error(d)
			}
		})
	}
}
