// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const alone = "pipeline: forced\nmetrics: off\naggregate: off\nexpress: off\npriority: {mode: off}\nmicroflows: {mode: off}\n"

// with is alone with some mechanisms set otherwise, each a line of the configuration.
func with(lines ...string) string {
	config := alone
	for _, line := range lines {
		key, _, _ := strings.Cut(line, ":")
		config = regexp.MustCompile("(?m)^"+key+":.*$").ReplaceAllString(config, line)
	}
	return config
}

// What plan prints is what run writes and attaches: each setting with its first value, each program at tcx hooks and
// at XDP, and no more. Which cores a mask has depends on which core polls when traffic comes, so it is not compared.
func TestRunExecutesWhatPlanPrints(t *testing.T) {
	const tc, xdp = "tier: tc\n" + alone, "tier: xdp\n" + alone
	const onOneCore = "the pod stage alone"
	const rule = "priority: {threads: %s, rules: [{name: ssh, proto: tcp, port: 22}]}"
	mask := func(t *testing.T, h *bed.Host) { rig.SetQueue(t, h.Pods[1].NS, bed.PodDev, "rps_cpus", "2") }
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
		{"a pod with a mask of the operator's", bed.Options{Pods: 2}, tc, mask},
		{"a pod with flow steering of the operator's", bed.Options{Pods: 2}, tc, func(t *testing.T, h *bed.Host) {
			rig.SetQueue(t, h.Pods[1].NS, bed.PodDev, "rps_flow_cnt", "64")
		}},
		{onOneCore, bed.Options{Pods: 2}, tc, mask},
		{"aggregate", bed.Options{}, with("pipeline: off", "aggregate: forced"), nil},
		{"aggregate, which the operator has on already", bed.Options{Topology: bed.Nested}, with("pipeline: off", "aggregate: forced"), func(t *testing.T, h *bed.Host) {
			for ns, dev := range map[*netns.Handle]string{h.NS: h.Wire, h.Overlay: bed.Tunnel} {
				must(t, ns.Do(func() error { return ethtool.SetFeature(dev, plan.UDPForwarding, true) }))
			}
		}},
		{"express beside the pipeline", bed.Options{Pods: 2}, with("tier: tc", "express: forced"), mask},
		{"express and aggregate, which a rule in a pod keeps from joining", bed.Options{Pods: 2}, with("pipeline: off", "express: forced", "aggregate: auto"), func(t *testing.T, h *bed.Host) {
			nft(t, h.Pods[1].NS, "add table ip x { chain f { type filter hook input priority 0; meta length 0-20 accept; }; }")
		}},
		{"priority", bed.Options{NAPI: bed.Own}, with("pipeline: off", fmt.Sprintf(rule, "fair")), nil},
		{"priority to a NIC whose threads come with the program", bed.Options{NAPI: bed.Own}, with("pipeline: off", fmt.Sprintf(rule, "fair")), func(t *testing.T, h *bed.Host) {
			must(t, h.NS.Do(func() error { return ethtool.SetFeature(h.Wire, ethtool.GRO, false) }))
		}},
		{"priority without threads, and express", bed.Options{NIC: bed.Softirq}, with("pipeline: off", "express: forced", fmt.Sprintf(rule, "off")), nil},
		{"priority in mode sync", bed.Options{NIC: bed.Softirq}, with("pipeline: off", "priority: {mode: sync, threads: off, rules: [{name: ssh, proto: tcp, port: 22}]}"), nil},
		{"micro-flows", bed.Options{Pods: 2}, with("pipeline: off", "microflows: {mode: forced, elephant: 1Mbit, udp-order: none}"), mask},
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
			if row.name == onOneCore {
				row.config += fmt.Sprintf("cores: %d\n", otherCore(t, b))
			}
			check(t, b)
			want, programs := foreseen(t, h, row.config, t.TempDir())
			if len(want)+len(programs) == 0 {
				t.Fatal("plan has nothing to do")
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
					did = append(did, inShort(e.By, e.Setting, e.First))
				}
				slices.Sort(did)
				return slices.Equal(did, want), cmp.Diff(want, did)
			})
			rig.Until(t, "run has attached the programs", func() (bool, string) {
				there := attachedOn(t, h)
				return slices.Equal(there, programs), cmp.Diff(programs, there)
			})
			if steps, more := foreseen(t, h, row.config, d.State); len(steps)+len(more) > 0 {
				t.Errorf("beside the daemon plan still has steps %q and programs %q", steps, more)
			}
			l.Stop()
			d.Signal(unix.SIGTERM)
			d.Exited()
			d.GoneBoth()
		})
	}
}

// otherCore has the core poll that plan takes for the NIC's, which has received most since boot, and returns another one.
func otherCore(t *testing.T, b *bed.Bed) int {
	t.Helper()
	proc, err := procfs.NewDefaultFS()
	must(t, err)
	softirqs, err := proc.Softirqs()
	must(t, err)
	core := slices.Index(softirqs.NetRx, slices.Max(softirqs.NetRx))
	tids, err := b.NAPIThreads()
	must(t, err)
	var polls unix.CPUSet
	polls.Set(core)
	for _, tid := range tids {
		must(t, unix.SchedSetaffinity(tid, &polls))
	}
	if core == 0 {
		return 1
	}
	return 0
}

// foreseen is what plan prints of all mechanisms: settings and programs, sorted. What announces some has some.
func foreseen(t *testing.T, h *bed.Host, config, state string) (settings, programs []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	r := rig.Run(t, rig.Spec{NS: h.NS}, "plan", "--json", "--config", file, "--state-dir", state)
	if r.Code != 0 {
		t.Fatalf("overlane plan: %s", r)
	}
	var top mechanism.Outlook
	must(t, json.Unmarshal([]byte(r.Out), &top))
	parts := struct{ Aggregate, Express, Priority, Microflows mechanism.Outlook }{}
	must(t, json.Unmarshal([]byte(r.Out), &parts))
	for _, p := range []mechanism.Outlook{top, parts.Aggregate, parts.Express, parts.Priority, parts.Microflows} {
		if strings.HasSuffix(p.When, ":") && p.Empty() && len(p.Skipped) == 0 {
			t.Errorf("nothing comes after %q", p.When)
		}
		for _, s := range p.Steps {
			settings = append(settings, inShort(s.By, s.Setting, s.First))
		}
		for _, f := range p.Future {
			for range f.Count {
				settings = append(settings, inShort(plan.ByPriority, plan.Thread(f.Target, plan.ThreadID{}), ""))
			}
		}
		for _, a := range p.Attach {
			programs = append(programs, fmt.Sprintf("%s %s: %.15s", a.Name, a.Hook, a.Program))
		}
	}
	slices.Sort(settings)
	slices.Sort(programs)
	return settings, programs
}

// inShort is a setting that a mechanism changes, with its first value. Of threads that come with a program nothing is
// known before.
func inShort(by plan.Owner, s plan.Setting, first string) string {
	if s.Kind == plan.ThreadSched {
		return fmt.Sprintf("%s: a thread of %s", by, s.Name)
	}
	return fmt.Sprintf("%s: %s from %q", by, s, first)
}

// attachedOn lists the programs at tcx hooks and at XDP on all devices of a host that packets for pods pass, sorted.
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
				all = append(all, fmt.Sprintf("%s %s: %.15s", d.name, hook, program))
			}
		}
		must(t, d.ns.Do(func() error {
			l, err := netlink.LinkByName(d.name)
			if err == nil && l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
				all = append(all, fmt.Sprintf("%s xdp (native): %.15s", d.name, foreign.ProgramName(l.Attrs().Xdp.ProgId)))
			}
			return err
		}))
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
