// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/config"
)

func dev(name string, index int, masks ...string) Device {
	d := Device{Target: Target{NetnsCookie: 42, Ifindex: index, Name: name}}
	for i, m := range masks {
		d.RxQueues = append(d.RxQueues, RxQueue{Index: i, RPSCPUs: m})
	}
	return d
}

// behind is a pod that such a tunnel leads to.
func behind(d Device, tunnel Target) Device {
	d.Behind = []Target{tunnel}
	return d
}

// summary is a plan in the form "device/queue was->want undo first".
func summary(p Plan) (steps, attach, skipped []string) {
	for _, s := range p.Steps {
		queue := strings.Split(s.Attr, "/")[1]
		steps = append(steps, s.Name+"/"+queue+" "+s.Was+"->"+s.Want+" undo "+s.First)
	}
	for _, a := range p.Attach {
		attach = append(attach, a.Program)
	}
	for _, s := range p.Skipped {
		skipped = append(skipped, s.What+": "+s.Reason)
	}
	return steps, attach, skipped
}

func TestPipelineSteersOnlyWhatNoOtherProgramSteers(t *testing.T) {
	vx, pod, pod2 := dev("vx0", 5, "0"), dev("eth0", 7, "00"), dev("eth0", 9, "0")
	rfs := dev("eth0", 7, "0")
	rfs.RxQueues[0].RPSFlowCnt = 4096
	programs := []Attachment{
		{Program: "steer_tunnel", Steers: Tunnel, Hook: "tcx/ingress", Target: Target{42, 2, "u0"}},
		{Program: "steer_pod", Steers: Pod, Hook: "tcx/ingress", Target: vx.Target},
		{Program: "count", Hook: "tcx/ingress", Target: vx.Target},
	}
	own := func(d Device, first, wrote string) map[Setting]Owned {
		return map[Setting]Owned{RPSMask(d.Target, 0): {First: first, Wrote: wrote}}
	}
	with := func(d Device, header string) Device { d.Header = header; return d }
	owned := func(one, two map[Setting]Owned) map[Setting]Owned { maps.Copy(one, two); return one }
	tests := []struct {
		name                   string
		in                     Input
		steps, attach, skipped []string
	}{
		{
			name: "two cores", in: Input{Tunnels: []Device{vx}, Pods: []Device{pod, pod2}, TunnelCores: []int{1}, PodCores: []int{0}, Attach: programs},
			steps:  []string{"vx0/rx-0 0->2 undo 0", "eth0/rx-0 0->1 undo 0", "eth0/rx-0 0->1 undo 0"},
			attach: []string{"steer_tunnel", "steer_pod", "count"},
		}, {
			name: "every queue of a device", in: Input{Tunnels: []Device{dev("vx0", 5, "0", "0")}, TunnelCores: []int{2, 3}},
			steps: []string{"vx0/rx-0 0->c undo 0", "vx0/rx-1 0->c undo 0"},
		}, {
			name:    "no hop at the pod stage",
			in:      Input{Tunnels: []Device{vx}, Pods: []Device{pod}, TunnelCores: []int{1}, Attach: programs},
			steps:   []string{"vx0/rx-0 0->2 undo 0"},
			attach:  []string{"steer_tunnel", "count"},
			skipped: []string{"steer_pod at tcx/ingress of vx0 (ifindex 5 in network namespace 42): not attached: no device of the pod stage is steered"},
		}, {
			name:    "foreign mask on one queue leaves all queues alone",
			in:      Input{Tunnels: []Device{dev("vx0", 5, "0", "3")}, TunnelCores: []int{1}},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask set by another program (rx-1: 3)"},
		}, {
			name:    "foreign mask equal to the wanted one is still foreign",
			in:      Input{Tunnels: []Device{dev("vx0", 5, "2")}, TunnelCores: []int{1}},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask set by another program (rx-0: 2)"},
		}, {
			name:    "a tunnel that was ruled out before, and the pod behind it",
			in:      Input{Tunnels: []Device{vx}, Pods: []Device{behind(pod, vx.Target)}, TunnelCores: []int{1}, PodCores: []int{0}, Skipped: []Skip{{vx.Target.String(), "no headers", vx.Target}}},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): no headers", "eth0 (ifindex 7 in network namespace 42): " + leftBehind},
		}, {
			name:    "foreign flow table",
			in:      Input{Pods: []Device{rfs, pod2}, PodCores: []int{0}},
			steps:   []string{"eth0/rx-0 0->1 undo 0"},
			skipped: []string{"eth0 (ifindex 7 in network namespace 42): left alone: RFS table of 4096 flows set by another program on rx-0"},
		}, {
			name:    "no program where nothing is steered",
			in:      Input{Tunnels: []Device{dev("vx0", 5, "1")}, TunnelCores: []int{1}, Attach: programs[:1]},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask set by another program (rx-0: 1)", "steer_tunnel at tcx/ingress of u0 (ifindex 2 in network namespace 42): not attached: no device of the tunnel stage is steered"},
		}, {
			name:   "own mask, unchanged, still steers",
			in:     Input{Tunnels: []Device{dev("vx0", 5, "00000002")}, TunnelCores: []int{1}, Owned: own(vx, "0", "2"), Attach: programs[:1]},
			attach: []string{"steer_tunnel"},
		}, {
			name:  "own mask moves, undo leads to the first value",
			in:    Input{Tunnels: []Device{dev("vx0", 5, "2")}, TunnelCores: []int{3}, Owned: own(vx, "0", "2")},
			steps: []string{"vx0/rx-0 2->8 undo 0"},
		}, {
			name:  "own mask goes back when the stage is not steered any more",
			in:    Input{Tunnels: []Device{dev("vx0", 5, "2")}, Owned: own(vx, "0", "2")},
			steps: []string{"vx0/rx-0 2->0 undo 0"},
		}, {
			name:    "own mask changed by another program",
			in:      Input{Tunnels: []Device{dev("vx0", 5, "3")}, TunnelCores: []int{1}, Owned: own(vx, "0", "2")},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask of rx-0 changed by another program from 2 to 3"},
		}, {
			name:    "a pod whose only tunnel another program has taken over gets its mask back",
			in:      Input{Tunnels: []Device{dev("vx0", 5, "3")}, Pods: []Device{behind(dev("eth0", 7, "1"), vx.Target), behind(pod2, vx.Target)}, PodCores: []int{0}, Owned: own(pod, "0", "1")},
			steps:   []string{"eth0/rx-0 1->0 undo 0"},
			skipped: []string{"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask set by another program (rx-0: 3)", "eth0 (ifindex 7 in network namespace 42): " + leftBehind, "eth0 (ifindex 9 in network namespace 42): " + leftBehind},
		}, {
			name: "tunnels beyond the most, which get their masks back, and the pods behind them",
			in: Input{
				Tunnels:     []Device{with(dev("vx0", 5, "3"), "0"), with(dev("vx1", 6, "0"), "1"), with(dev("vx2", 7, "2"), "2"), with(dev("vx3", 8, "0"), "1")},
				Pods:        []Device{behind(dev("eth0", 9, "1"), Target{42, 7, "vx2"}), behind(dev("eth0", 11, "0"), Target{42, 6, "vx1"})},
				TunnelCores: []int{1}, PodCores: []int{0}, MostTunnels: 1, Owned: owned(own(dev("vx2", 7), "0", "2"), own(dev("eth0", 9), "0", "1")),
			},
			steps: []string{"vx1/rx-0 0->2 undo 0", "vx2/rx-0 2->0 undo 0", "vx3/rx-0 0->2 undo 0", "eth0/rx-0 1->0 undo 0", "eth0/rx-0 0->1 undo 0"},
			skipped: []string{
				"vx0 (ifindex 5 in network namespace 42): left alone: RPS mask set by another program (rx-0: 3)",
				"vx2 (ifindex 7 in network namespace 42): " + TooMany(1), "eth0 (ifindex 9 in network namespace 42): " + leftBehind,
			},
		}, {
			name:    "what was ruled out before is passed on",
			in:      Input{Skipped: []Skip{{What: "u0", Reason: "left alone: foreign XDP program"}}},
			skipped: []string{"u0: left alone: foreign XDP program"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Pipeline(tt.in)
			steps, attach, skipped := summary(p)
			if !slices.Equal(steps, tt.steps) || !slices.Equal(attach, tt.attach) || !slices.Equal(skipped, tt.skipped) {
				t.Fatalf("got\n steps %q\n attach %q\n skipped %q\nwant\n steps %q\n attach %q\n skipped %q",
					steps, attach, skipped, tt.steps, tt.attach, tt.skipped)
			}
			if err := ValidateSteps(p.Steps); err != nil {
				t.Fatalf("the plan is not valid: %v", err)
			}
			for _, s := range p.Steps {
				if s.Reason == "" {
					t.Errorf("%s: no reason", s.Setting)
				}
			}
		})
	}
}

// Carrying out a plan and planning again must come to rest.
func TestPipelinePlanOfItsOwnResultIsEmpty(t *testing.T) {
	in := Input{Tunnels: []Device{dev("vx0", 5, "0", "0")}, Pods: []Device{dev("eth0", 7, "0")}, TunnelCores: []int{1, 40}, PodCores: []int{0}}
	in.Owned = make(map[Setting]Owned)
	for _, s := range Pipeline(in).Steps {
		in.Owned[s.Setting] = Owned{First: s.Was, Wrote: s.Want}
	}
	for _, devs := range [][]Device{in.Tunnels, in.Pods} {
		for _, d := range devs {
			for i := range d.RxQueues {
				d.RxQueues[i].RPSCPUs = in.Owned[RPSMask(d.Target, i)].Wrote
			}
		}
	}
	if p := Pipeline(in); !p.Empty() || len(p.Skipped) > 0 {
		t.Fatalf("planned again: %+v", p)
	}
}

func TestMaskSpellingsOfOneSetAreTheSame(t *testing.T) {
	s := RPSMask(Target{1, 2, "x"}, 0)
	tests := []struct {
		cores []int
		mask  string
		also  []string
	}{
		{nil, "0", []string{"00000000,00000000\n", "0\n", "00"}},
		{[]int{0}, "1", []string{"00000001\n", "0,1"}},
		{[]int{1, 3, 4}, "1a", []string{"1A", "0000001a\n"}},
		{[]int{31}, "80000000", []string{"0,80000000"}},
		{[]int{32}, "1,00000000", []string{"00000001,00000000\n", "1,0"}},
		{[]int{0, 95}, "80000000,00000000,00000001", []string{"80000000,0,1"}},
	}
	for _, tt := range tests {
		if got := Mask(tt.cores); got != tt.mask {
			t.Errorf("Mask(%v) = %s, want %s", tt.cores, got, tt.mask)
		}
		for _, other := range append(tt.also, tt.mask) {
			if got := s.Canonical(other); got != tt.mask {
				t.Errorf("Canonical(%q) = %s, want %s", other, got, tt.mask)
			}
		}
	}
	if s.Same("garbage", "0") || s.Same("1", "1,00000000") || s.Same("", "0") {
		t.Error("different masks are the same")
	}
}

func TestMaskHasExactlyTheCores(t *testing.T) {
	s := RPSMask(Target{1, 2, "x"}, 0)
	for range 200 {
		var cores []int
		for range rand.IntN(20) {
			cores = append(cores, rand.IntN(300))
		}
		m := Mask(cores)
		if s.Canonical(m) != m {
			t.Fatalf("Mask(%v) = %s is not canonical: %s", cores, m, s.Canonical(m))
		}
		back, err := config.ParseCPUList(coreList(cores))
		if err != nil || Mask(back) != m {
			t.Fatalf("cores %v became %v by way of %q, %v", cores, back, coreList(cores), err)
		}
	}
}

func TestValuesAreComparedByMeaning(t *testing.T) {
	mem := Setting{Target{1, 0, ""}, Sysctl, "net/ipv4/tcp_rmem"}
	if !mem.Same("4096\t131072\t6291456\n", "4096 131072 6291456") {
		t.Error("blanks make a difference in a sysctl")
	}
	th := Thread(Target{}, ThreadID{9, 100, "napi/eth0-1"})
	if !th.Same("policy=other prio=0 nice=0 cores=0,1,2", "policy=other prio=0 nice=0 cores=0-2") {
		t.Error("spelling of a core list makes a difference")
	}
	if th.Same("policy=other prio=0 nice=0 cores=0-2", "policy=batch prio=0 nice=0 cores=0-2") {
		t.Error("the policy makes no difference")
	}
}

func TestSettingsThatReachElsewhereAreRejected(t *testing.T) {
	d := Target{1, 2, "eth0"}
	for _, s := range []Setting{
		{d, SysfsAttr, "../eth1/mtu"},
		{d, SysfsAttr, "/etc/passwd"},
		{d, SysfsAttr, "."},
		{d, SysfsAttr, ""},
		{Target{1, 0, "eth0"}, SysfsAttr, "mtu"},
		{Target{1, 2, "../../x"}, SysfsAttr, "mtu"},
		{Target{1, 2, ".."}, SysfsAttr, "mtu"},
		{Target{0, 2, "eth0"}, SysfsAttr, "mtu"},
		{d, Sysctl, "kernel/core_pattern"},
		{d, Sysctl, "net/../kernel/core_pattern"},
		{d, EthtoolFeature, ""},
		{d, ThreadSched, "1"},
		{d, ThreadSched, "0:1:x"},
		{d, "file", "x"},
		{d, Superblock, SysfsType},
		{Target{1, 0, ""}, Superblock, "proc"},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

func TestValidateStepsNamesTheStep(t *testing.T) {
	ok := Step{Setting: RPSMask(Target{1, 2, "eth0"}, 0), By: ByPipeline, Want: "1"}
	err := ValidateSteps([]Step{ok, ok})
	if err == nil || !strings.Contains(err.Error(), "step 2") {
		t.Fatalf("a setting that occurs twice: %v", err)
	}
	if ValidateSteps([]Step{{Setting: SysfsOf(1), By: ByPipeline, Want: Writable}}) == nil {
		t.Fatal("a superblock was accepted as a step")
	}
	for what, broken := range map[string]func(*Step){
		"a value":  func(s *Step) { s.Want = "" },
		"an owner": func(s *Step) { s.By = "" },
	} {
		s := ok
		if broken(&s); ValidateSteps([]Step{s}) == nil {
			t.Errorf("a step without %s was accepted", what)
		}
	}
}

func TestSchedulingReadsWhatItWrites(t *testing.T) {
	for _, s := range []Sched{{"other", 0, -5, []int{0, 1}, 0}, {"other", 0, 0, []int{1}, EagerSlice}, {"fifo", 50, 0, []int{3}, 0}, {"batch", 0, 19, []int{0, 2, 3, 4, 9}, 0}} {
		got, err := ParseSched(s.String())
		if err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("%q gives %+v, %v", s, got, err)
		}
	}
	for _, bad := range []string{
		"", "policy=other", "policy=other prio=1 nice=0 cores=0", "policy=fifo prio=0 nice=0 cores=0",
		"policy=deadline prio=0 nice=0 cores=0", "policy=other prio=0 nice=20 cores=0", "policy=other prio=0 nice=0 cores=",
		"policy=other prio=0 nice=0 cores=3-1", "policy=fifo prio=1 nice=0 cores=3 slice=1ms", "policy=other prio=0 nice=0 cores=3 slice=1", "nice=0 prio=0 policy=other cores=0",
	} {
		if _, err := ParseSched(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestTextShowsEveryStepWithItsUndo(t *testing.T) {
	p := Pipeline(Input{
		Tunnels: []Device{dev("vx0", 5, "0")}, Pods: []Device{dev("eth0", 7, "f")}, TunnelCores: []int{1}, PodCores: []int{0},
		Attach: []Attachment{{Program: "steer", Hook: "tcx/ingress", Target: Target{42, 2, "u0"}, Steers: Tunnel, Reason: "sets the hash that RPS follows"}},
	})
	want := `steps, in this order (undone in the reverse order):
   1  queues/rx-0/rps_cpus of vx0 (ifindex 5 in network namespace 42)
      set   0 -> 2
      why   tunnel stage goes on on core 1
      undo  set 0, unless the operator or another program has changed it by then
programs:
      steer at tcx/ingress of u0 (ifindex 2 in network namespace 42)
      why   sets the hash that RPS follows
      undo  detached by the kernel when the process ends
left as it is:
      eth0 (ifindex 7 in network namespace 42)
      why   left alone: RPS mask set by another program (rx-0: f)
`
	if text := p.Text(); text != want {
		t.Error(text)
	}
	if text := (Plan{}).Text(); text != "nothing to change\n" {
		t.Error(text)
	}
}

func TestJSONKeepsThePlan(t *testing.T) {
	p := Pipeline(Input{Tunnels: []Device{dev("vx0", 5, "0")}, TunnelCores: []int{1}})
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"steps":[{"netns":42,"ifindex":5,"device":"vx0","kind":"sysfs","attr":"queues/rx-0/rps_cpus",` +
		`"by":"pipeline","was":"0","undo":"0","want":"2","reason":"tunnel stage goes on on core 1"}],"attach":[],"skipped":[]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

// The mask of a pod names also the cores on which packets stay, that of a tunnel its lanes alone.
func TestPodsMasksHaveTheCoresOnWhichPacketsStay(t *testing.T) {
	in := Input{
		Tunnels:     []Device{{Target: Target{42, 5, "vx0"}, RxQueues: []RxQueue{{RPSCPUs: "0"}}}},
		Pods:        []Device{{Target: Target{43, 7, "eth0"}, RxQueues: []RxQueue{{RPSCPUs: "0"}}}},
		TunnelCores: []int{1}, PodCores: []int{0}, PodMask: []int{0, 1, 2, 3},
	}
	var got []string
	for _, s := range Pipeline(in).Steps {
		got = append(got, s.Want+" "+s.Reason)
	}
	want := []string{"2 tunnel stage goes on on core 1", "f pod stage goes on on core 0, or stays where it is"}
	if !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
	in.PodCores = nil
	if p := Pipeline(in); len(p.Steps) != 1 {
		t.Errorf("a pod stage that goes on nowhere has masks: %+v", p.Steps)
	}
}
