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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// scheds are the nice values and cores of the threads that poll the bed's NIC.
func scheds(t *testing.T, b *bed.Bed) (list []string) {
	t.Helper()
	tids, err := b.NAPIThreads()
	must(t, err)
	for _, tid := range tids {
		id, err := apply.IdentifyThread(tid)
		must(t, err)
		s, err := apply.SchedOf(id)
		must(t, err)
		if s.Policy != "other" {
			list = append(list, fmt.Sprintf("%s %d cores %v", s.Policy, s.Priority, s.Cores))
			continue
		}
		list = append(list, fmt.Sprintf("nice %d slice %v cores %v", s.Nice, s.Slice, s.Cores))
	}
	return list
}

// unbind makes the threads of the bed's NIC such as the kernel makes them.
func unbind(t *testing.T, b *bed.Bed) {
	t.Helper()
	tids, err := b.NAPIThreads()
	must(t, err)
	for _, tid := range tids {
		set := unix.NewCPUSet(8192)
		set.Fill()
		must(t, unix.SchedSetaffinityDynamic(tid, set))
		must(t, unix.Setpriority(unix.PRIO_PROCESS, tid, 0))
	}
}

// planned is what overlane plan says of priority, as text and as data.
func planned(t *testing.T, b *bed.Bed, config, state string) (text string, priority plan.Plan) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	for _, flag := range []string{"--json=false", "--json"} {
		r := rig.Run(t, rig.Spec{NS: b.Receiver().NS}, "plan", flag, "--config", file, "--state-dir", state)
		if r.Code != 0 || strings.Contains(r.Out, "null") {
			t.Fatalf("overlane plan: %s", r)
		}
		if flag != "--json" {
			if text = r.Out; !strings.HasPrefix(text, "by "+file+"\n") {
				t.Errorf("overlane plan does not name its configuration:\n%s", text)
			}
			continue
		}
		var out struct{ Priority *plan.Plan }
		must(t, json.Unmarshal([]byte(r.Out), &out))
		if out.Priority == nil {
			t.Fatalf("overlane plan does not speak of priority: %s", r)
		}
		priority = *out.Priority
	}
	return text, priority
}

func TestPlanSaysWhatPriorityDoes(t *testing.T) {
	b := lab(t, bed.Options{NIC: bed.Softirq})
	wire := b.Receiver().Wire
	text, p := planned(t, b, prioritised, filepath.Join(t.TempDir(), "state"))
	if len(p.Attach) != 1 || p.Attach[0].Name != wire || len(p.Steps) != 1 || p.Steps[0].Attr != "threaded" || len(p.Future) != 1 {
		t.Errorf("the plan is %+v", p)
	}
	for _, words := range []string{"(1 rule), run would do this at once", "ol_priority_xdp", "threaded of " + wire, "0 -> 1", "nice -13, slice 100µs, each bound to one of core"} {
		if !strings.Contains(text, words) {
			t.Errorf("the plan does not say %q:\n%s", words, text)
		}
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised})
	if got := scheds(t, b); len(got) != 1 || got[0] != "nice -13 slice 100µs cores [0]" {
		t.Errorf("the NIC's threads have %s", got)
	}
	// What run has done is not planned again.
	text, p = planned(t, b, prioritised, d.State)
	if !p.Empty() || len(p.Skipped) > 0 || !strings.Contains(text, "the running daemon has done it") {
		t.Errorf("beside the daemon, the plan is %+v\n%s", p, text)
	}
	ends(t, d)
}

// A thread that is scheduled in real time is more eager than ours would be.
func TestPriorityLeavesThreadsInRealTime(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{NAPI: bed.FIFO})
	check(t, b)
	text, p := planned(t, b, prioritised, filepath.Join(t.TempDir(), "state"))
	const words = "another program has set policy=fifo prio=1"
	if len(p.Steps) != 0 || len(p.Attach) != 1 || !strings.Contains(text, words) {
		t.Errorf("the plan does not say %q: %+v\n%s", words, p, text)
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised})
	l := rig.StartLoad(t, b, 4)
	rig.Until(t, "the hook sees frames", func() (bool, string) {
		return d.Status().Counters.BulkPackets > 0, d.Log()
	})
	must(t, b.KeptNAPI())
	l.Stop()
	ends(t, d)
	must(t, b.KeptNAPI())
}

func TestPlanSaysWhyPriorityLeavesANIC(t *testing.T) {
	t.Run("foreign XDP program", func(t *testing.T) {
		rig.NeedCores(t, 2)
		b := rig.Lab(t, bed.Options{})
		attachXDP(t, b.Receiver().NS, b.Receiver().Wire)
		check(t, b)
		const words = "a foreign XDP program"
		text, p := planned(t, b, prioritised, filepath.Join(t.TempDir(), "state"))
		if !p.Empty() || len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Reason, words) || !strings.Contains(text, words) {
			t.Errorf("the plan is %+v\n%s", p, text)
		}
	})
	t.Run("tier xdp", func(t *testing.T) {
		b := lab(t, bed.Options{})
		file := filepath.Join(t.TempDir(), "config.yaml")
		must(t, os.WriteFile(file, []byte(prioritised+"tier: xdp\n"), 0o600))
		refused(t, rig.Run(t, rig.Spec{NS: b.Receiver().NS}, "plan", "--config", file), failure, "tier: tc")
	})
}

// A bridge's driver has no native XDP.
func TestPriorityLeavesANICWithoutNativeXDPAlone(t *testing.T) {
	b := lab(t, bed.Options{NIC: bed.Softirq})
	must(t, b.Receiver().NS.Do(func() error {
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br7"}}
		t.Cleanup(func() { _ = b.Receiver().NS.Do(func() error { return netlink.LinkDel(br) }) })
		return netlink.LinkAdd(br)
	}))
	const words = "no native XDP"
	config := prioritised + "underlays: [br7, " + b.Receiver().Wire + "]\n"
	_, p := planned(t, b, config, filepath.Join(t.TempDir(), "state"))
	if len(p.Attach) != 1 || len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Reason, words) {
		t.Errorf("the plan is %+v", p)
	}
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
	saysManual(t, d, "br7", "does not support XDP in native mode") // as the kernel says it
	if !threaded(t, b) {
		t.Error("the other NIC is not polled by threads")
	}
	ends(t, d)
}

// onWire does something to the wire's receiving end, in its namespace.
func onWire(t *testing.T, b *bed.Bed, fn func(netlink.Link) error) {
	t.Helper()
	rx := b.Receiver()
	must(t, rx.NS.Do(func() error {
		l, err := netlink.LinkByName(rx.Wire)
		if err != nil {
			return err
		}
		return fn(l)
	}))
}

// A core that is taken away from overlane, or given to it, by the configuration:
// threads go where work may go, bulk on its way is not overtaken, and in the end they
// are as they were first seen.
func TestThreadsOfTheNICFollowTheCores(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{Queues: 2})
	unbind(t, b)
	check(t, b)
	on := func(cores string) string { return prioritised + "cores: " + cores + "\n" }
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: on("0")})
	l := rig.StartLoad(t, b, 4)
	want := func(lists ...string) {
		t.Helper()
		got := scheds(t, b)
		for i := range lists {
			lists[i] = "nice -13 slice 100µs cores " + lists[i]
		}
		if !slices.Equal(got, lists) {
			t.Errorf("the NIC's threads have %q, want %q", got, lists)
		}
	}
	want("[0]", "[0]")
	d.Reload(on("0-1"))
	want("[0]", "[1]")
	l.GoesOn()
	d.Reload(on("1"))
	want("[1]", "[1]")
	l.GoesOn()
	d.Reload(on("0-1"))
	want("[1]", "[0]")
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}

// By default they run in real time.
func TestThreadsOfTheNICRunInRealTime(t *testing.T) {
	b := rig.Lab(t, bed.Options{})
	unbind(t, b)
	check(t, b)
	auto := strings.Replace(prioritised, "threads: fair", "threads: auto", 1) + "cores: 0\n"
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: auto})
	l := rig.StartLoad(t, b, 2)
	want := func(sched string) {
		t.Helper()
		rig.Until(t, sched, func() (bool, string) {
			got := scheds(t, b)
			return slices.Equal(got, []string{sched}), fmt.Sprintf("%q%s", got, d.Log())
		})
	}
	want("fifo 1 cores [0]")
	if text, p := planned(t, b, auto, d.State); len(p.Steps) > 0 {
		t.Errorf("there is something left to do:\n%s", text)
	}
	d.Reload(prioritised + "cores: 0\n")
	want("nice -13 slice 100µs cores [0]")
	d.Reload(auto)
	want("fifo 1 cores [0]")
	l.GoesOn()
	ends(t, d)
	left(t, d, l.Stop())
}

// An operator that kills the daemon finds them as they were.
func TestThreadsInRealTimeAreRestoredAfterAKill(t *testing.T) {
	b := rig.Lab(t, bed.Options{})
	unbind(t, b)
	check(t, b)
	before := scheds(t, b)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: strings.Replace(prioritised, "threads: fair", "threads: auto", 1) + "cores: 0\n"})
	if got := scheds(t, b); !slices.Equal(got, []string{"fifo 1 cores [0]"}) {
		t.Fatalf("the NIC's threads have %q", got)
	}
	d.Signal(unix.SIGKILL)
	d.GoneBoth()
	d.NothingLeft()
	if got := scheds(t, b); !slices.Equal(got, before) {
		t.Errorf("the NIC's threads have %q, and had %q", got, before)
	}
}

// A NIC that goes down and comes up has other threads than before.
func TestNewThreadsOfTheNICAreBound(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{NIC: bed.Softirq})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised + "cores: 1\n"})
	before, err := b.NAPIThreads()
	must(t, err)
	onWire(t, b, netlink.LinkSetDown)
	onWire(t, b, netlink.LinkSetUp)
	rig.Until(t, "new threads are bound", func() (bool, string) {
		now, err := b.NAPIThreads()
		must(t, err)
		if len(now) == 0 || slices.Equal(now, before) {
			return false, fmt.Sprint(now)
		}
		got := scheds(t, b)
		return slices.Equal(got, []string{"nice -13 slice 100µs cores [1]"}), strings.Join(got, ", ") + d.Log()
	})
	ends(t, d)
	if threaded(t, b) {
		t.Error("the NIC is still polled by threads")
	}
}

// A NIC that carries no tunnel any more is polled as before while the daemon goes on; one that is gone ends nothing.
func TestPriorityLeavesANICThatIsNoUnderlayAnyMore(t *testing.T) {
	tunnel := func(b *bed.Bed) (*netns.Handle, string) { return b.Receiver().Overlay, bed.Tunnel }
	for _, tt := range []struct {
		name string
		nic  bed.NIC
		goes func(*bed.Bed) (*netns.Handle, string)
	}{
		{"tunnel, NIC in softirq", bed.Softirq, tunnel},
		{"tunnel, NIC with a thread", bed.Thread, tunnel},
		{"NIC", bed.Softirq, func(b *bed.Bed) (*netns.Handle, string) { return b.Receiver().NS, b.Receiver().Wire }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := rig.Lab(t, bed.Options{NIC: tt.nic})
			check(t) // the machine's: this lab does not stay as it is
			unbind(t, b)
			before := scheds(t, b)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: strings.Replace(prioritised, "threads: fair", "threads: auto", 1) + "cores: 0\n"})
			if got := scheds(t, b); !slices.Equal(got, []string{"fifo 1 cores [0]"}) {
				t.Fatalf("the NIC's threads have %q", got)
			}
			ns, name := tt.goes(b)
			nl := rig.In(t, ns)
			defer nl.Close()
			l, err := nl.LinkByName(name)
			must(t, err)
			must(t, nl.LinkDel(l))
			rig.Until(t, "priority is on no NIC", func() (bool, string) {
				m := d.Status().Mechanism("priority")
				return m.State == control.Standby, fmt.Sprintf("%+v\n%s", m, d.Log())
			})
			if name != b.Receiver().Wire {
				if got := scheds(t, b); !slices.Equal(got, before) {
					t.Errorf("the NIC's threads have %q, and had %q\n%s", got, before, d.Log())
				}
				back := strings.Index(d.Log(), `"setting restored"`)
				if off := strings.Index(d.Log(), `"program detached" mechanism=priority`); back < 0 || off < back {
					t.Errorf("settings of the NIC were to be given back (at %d) before its program went (at %d):\n%s", back, off, d.Log())
				}
			}
			if strings.Contains(d.Log(), "could not be followed") {
				t.Error(d.Log())
			}
			ends(t, d)
		})
	}
}

// A veth without GRO, as the underlay of a cluster in containers is one, has nothing
// to poll when our program is gone; it can be switched back all the same.
func TestVethWithoutGROIsSwitchedBack(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if !turn() {
			continue
		}
		t.Run(end.String(), func(t *testing.T) {
			rig.NeedCores(t, 2)
			b := rig.Lab(t, bed.Options{NIC: bed.Softirq})
			must(t, b.Receiver().NS.Do(func() error { return ethtool.SetFeature(b.Receiver().Wire, ethtool.GRO, false) }))
			check(t, b)
			if _, p := planned(t, b, prioritised, filepath.Join(t.TempDir(), "state")); len(p.Steps) != 2 || p.Steps[0].Attr != "rx-gro" {
				t.Errorf("the plan is %+v", p)
			}
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised})
			if got := scheds(t, b); len(got) != 1 || got[0] != "nice -13 slice 100µs cores [0]" {
				t.Errorf("the NIC's threads have %s", got)
			}
			d.Signal(end)
			d.GoneBoth()
			d.NothingLeft()
		})
	}
}

// Where latency traffic is, no bulk comes back: with rules plan and run place the
// pipeline's lanes on cores that poll no NIC.
func TestPlanPlacesThePipelineBesidePriority(t *testing.T) {
	rig.NeedCores(t, 2)
	b := lab(t, bed.Options{})
	rule := "priority: {rules: [{name: ssh, proto: tcp, port: 22}]}\n"
	for _, x := range []struct{ cores, says string }{{"0", "every core polls a NIC"}, {"0,1", "rps_cpus"}} {
		text, _ := planned(t, b, "metrics: off\ncores: "+x.cores+"\n"+rule, t.TempDir())
		if !strings.Contains(text, x.says) {
			t.Errorf("cores %s: %s", x.cores, text)
		}
	}
}
