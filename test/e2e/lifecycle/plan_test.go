// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const alone = "pipeline: forced\nmetrics: off\naggregate: off\nexpress: off\npriority: {mode: off}\nmicroflows: {mode: off}\n"

// What plan prints of the pipeline is what run writes and attaches: each setting with its first value, each program at
// tcx hooks, and no more. Which cores a mask has depends on which core polls when traffic comes, so it is not compared.
func TestRunExecutesWhatPlanPrints(t *testing.T) {
	const tc, xdp = "tier: tc\n" + alone, "tier: xdp\n" + alone
	turn := speed.Every(t, 3)
	for _, row := range []struct {
		name    string
		o       bed.Options
		config  string
		prepare func(*testing.T, *bed.Host)
	}{
		{"bridged", bed.Options{Topology: bed.Bridged, Pods: 2}, tc, nil},
		{"routed", bed.Options{Topology: bed.Routed, Pods: 2}, tc, nil},
		{"nested", bed.Options{Topology: bed.Nested, Pods: 2}, tc, nil},
		{"tier xdp", bed.Options{Pods: 2}, xdp, nil},
		{"a pod with a mask of the operator's", bed.Options{Pods: 2}, tc, func(t *testing.T, h *bed.Host) {
			rig.SetQueue(t, h.Pods[1].NS, bed.PodDev, "rps_cpus", "2")
		}},
		{"a pod with flow steering of the operator's", bed.Options{Pods: 2}, tc, func(t *testing.T, h *bed.Host) {
			rig.SetQueue(t, h.Pods[1].NS, bed.PodDev, "rps_flow_cnt", "64")
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, row.o)
			h := b.Receiver()
			if row.prepare != nil {
				row.prepare(t, h)
			}
			check(t, b)

			file := filepath.Join(t.TempDir(), "config.yaml")
			must(t, os.WriteFile(file, []byte(row.config), 0o600))
			r := rig.Run(t, rig.Spec{NS: h.NS}, "plan", "--json", "--config", file, "--state-dir", t.TempDir())
			if r.Code != 0 {
				t.Fatalf("overlane plan: %s", r)
			}
			var planned plan.Plan
			must(t, json.Unmarshal([]byte(r.Out), &planned))
			var want, programs []string
			for _, s := range planned.Steps {
				if s.By == plan.ByPipeline {
					want = append(want, fmt.Sprintf("%s: from %q", s.Setting, s.First))
				}
			}
			for _, a := range planned.Attach {
				if strings.HasPrefix(a.Hook, "tcx") {
					programs = append(programs, fmt.Sprintf("%s %s: %.15s", a.Name, a.Hook, a.Program))
				}
			}
			if slices.Sort(want); len(want) < 2 || len(programs) < 2 {
				t.Fatalf("plan has nothing to do: %s", r)
			}

			d := rig.Start(t, rig.Spec{NS: h.NS, Config: row.config})
			l := rig.StartLoad(t, b, 4)
			cookie, err := h.NS.Cookie()
			must(t, err)
			rig.Until(t, "run has carried out the plan", func() (bool, string) {
				dir, err := apply.Open(d.State, cookie)
				must(t, err)
				defer dir.Close()
				entries, err := dir.Entries()
				must(t, err)
				var did []string
				for _, e := range entries {
					if e.By == plan.ByPipeline {
						did = append(did, fmt.Sprintf("%s: from %q", e.Setting, e.First))
					}
				}
				slices.Sort(did)
				return slices.Equal(did, want), cmp.Diff(want, did)
			})
			slices.Sort(programs)
			rig.Until(t, "run has attached the programs", func() (bool, string) {
				there := attachedOn(t, h)
				return slices.Equal(there, programs), cmp.Diff(programs, there)
			})
			l.Stop()
			d.Signal(unix.SIGTERM)
			d.Exited()
			d.GoneBoth()
		})
	}
}

// attachedOn lists overlane's tcx programs on all devices of a host that packets for pods pass.
func attachedOn(t *testing.T, h *bed.Host) (all []string) {
	t.Helper()
	type device struct {
		ns   *netns.Handle
		name string
	}
	devices := []device{{h.NS, h.Wire}, {h.Overlay, bed.Tunnel}}
	for _, p := range h.Pods {
		devices = append(devices, device{h.Overlay, p.HostEnd}, device{p.NS, bed.PodDev})
	}
	for _, d := range devices {
		for hook, at := range map[string]ebpf.AttachType{"tcx ingress": ebpf.AttachTCXIngress, "tcx egress": ebpf.AttachTCXEgress} {
			for _, program := range on(t, d.ns, d.name, at) {
				all = append(all, fmt.Sprintf("%s %s: %s", d.name, hook, program))
			}
		}
	}
	slices.Sort(all)
	return all
}

// A mechanism that a status has is one that plan speaks of, where it is asked for.
func TestPlanSpeaksOfEachMechanism(t *testing.T) {
	b := lab(t, bed.Options{})
	const all = "metrics: off\nexpress: auto\nbridge-netfilter: skip-unused\nmicroflows: {udp-order: none}\n"
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: all})
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(all), 0o600))
	r := rig.Run(t, rig.Spec{NS: b.Receiver().NS}, "plan", "--json", "--config", file, "--state-dir", d.State)
	if r.Code != 0 {
		t.Fatalf("overlane plan: %s", r)
	}
	var parts map[string]json.RawMessage
	must(t, json.Unmarshal([]byte(r.Out), &parts))
	parts["pipeline"] = parts["placement"] // its part is the top
	for _, m := range d.Status().Mechanisms {
		if len(parts[strings.ReplaceAll(m.Name, "-", "_")]) == 0 {
			t.Errorf("plan does not speak of %s: %s", m.Name, r)
		}
	}
}
