// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

const prioritised = "pipeline: off\nmetrics: off\npriority: {threads: fair, rules: [{name: ssh, proto: tcp, port: 22}]}\n"

// threaded tells whether the bed's NIC is polled by threads.
func threaded(t *testing.T, b *bed.Bed) bool {
	t.Helper()
	tids, err := b.NAPIThreads()
	must(t, err)
	return len(tids) > 0
}

// startPriority starts a daemon with a rule on a bed whose NIC is polled in softirq,
// and waits until its hook sees traffic.
func startPriority(t *testing.T, b *bed.Bed) (*rig.Daemon, *rig.Load) {
	t.Helper()
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised})
	l := rig.StartLoad(t, b, 4)
	rig.Until(t, "the hook sees frames", func() (bool, string) {
		st := d.Status()
		return st.Counters.BulkPackets > 0, strings.Join([]string{st.Mechanism("priority").Reason, d.Log()}, "\n")
	})
	if !threaded(t, b) {
		t.Error("the NIC is not polled by threads")
	}
	return d, l
}

func TestPriorityIsTakenBackByTermOffAndAfterAKill(t *testing.T) {
	turn := speed.Every(t, 2)
	for _, tt := range []struct {
		name string
		end  func(*rig.Daemon)
	}{
		{"term", func(d *rig.Daemon) { d.Signal(unix.SIGTERM) }},
		{"kill", func(d *rig.Daemon) { d.Signal(unix.SIGKILL) }},
		{"off", func(d *rig.Daemon) {
			if r := d.Verb("off"); r.Code != 0 {
				t.Errorf("overlane off: %s", r)
			}
		}},
	} {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			b := lab(t, bed.Options{NIC: bed.Softirq})
			d, l := startPriority(t, b)
			tt.end(d)
			d.Exited()
			d.GoneBoth()
			if threaded(t, b) {
				t.Error("the NIC is still polled by threads")
			}
			// Many drivers reset the NIC when a program goes. Threads that are given back meanwhile have hung igb.
			back := strings.Index(d.Log(), `"setting restored" setting=threaded`)
			off := strings.Index(d.Log(), `"program detached" mechanism=priority`)
			if tt.name != "kill" && (back < 0 || off < back) {
				t.Errorf("threads of the NIC were to be given back (at %d) before its program went (at %d):\n%s", back, off, d.Log())
			}
			l.GoesOn()
			joined(t, l.Stop(), 1) // of the poll in which the NIC is handed back to softirq: KNOWN_ISSUES.md
		})
	}
}

// All of the traffic is latency's and on its way through lanes, or by redirect paths, when
// the daemon is killed.
func TestPriorityIsTakenBackAfterAKillInEachOfItsModes(t *testing.T) {
	rule := fmt.Sprintf("rules: [{name: load, proto: udp, port: %d}]", traffic.Port)
	turn := speed.Every(t, 2)
	for _, tt := range []struct{ name, mode string }{{"sync", "mode: sync, "}, {"two lanes", "threads: off, "}, {"batch", ""}} {
		if !turn() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			b := lab(t, bed.Options{})
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "pipeline: off\nmetrics: off\npriority: {" + tt.mode + rule + "}\n"})
			l := rig.StartLoad(t, b, 4)
			rig.Until(t, "latency traffic is about", func() (bool, string) {
				c := d.Status().Counters
				return c.LatencyPackets > 10000 && (tt.name != "sync" || c.ShortCut > 10000), fmt.Sprintf("%+v", c)
			})
			d.Signal(unix.SIGKILL)
			killed(t, d.Exited())
			d.GoneBoth()
			d.NothingLeft()
			l.GoesOn()
			left(t, d, l.Stop())
		})
	}
}

// The first rule puts priority in place, and the last that goes takes it off.
func TestRulesComeAndGoAtRunTime(t *testing.T) {
	b := lab(t, bed.Options{NIC: bed.Softirq})
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: "pipeline: off\nmetrics: off\n"})
	verb := func(want int, words string, args ...string) {
		t.Helper()
		r := d.Verb(append([]string{"prio"}, args...)...)
		if r.Code != want || !strings.Contains(r.Out+r.Err, words) || words == "" && r.Out+r.Err != "" {
			t.Errorf("prio %s: %s; want code %d and %q", strings.Join(args, " "), r, want, words)
		}
	}
	verb(0, "no rules", "list")
	verb(usage, "allowed: 1 to 65535", "add", "web", "port", "http")
	verb(usage, "fits every flow", "add", "web")
	verb(0, "", "add", "web", "proto", "tcp", "port", "80")
	verb(failure, `there is a rule "web" already`, "add", "web", "port", "81")
	verb(0, "", "add", "rack", "cidr", "10.32.0.0/16", "class", "bulk")
	verb(0, "proto tcp port 80", "list")
	if !threaded(t, b) {
		t.Error("the NIC is not polled by threads")
	}
	st := d.Status()
	if len(st.Rules) != 2 || st.Rules[0].Name != "web" || st.Rules[1].Name != "rack" || !st.Rules[0].Added {
		t.Errorf("rules are %+v", st.Rules)
	}
	// What was added outlives a configuration that is read again.
	d.Reload(d.Config)
	verb(0, "rack", "list")
	verb(failure, `there is no rule "nosuch"`, "del", "nosuch")
	verb(0, "", "del", "web")
	verb(0, "", "del", "rack")
	if threaded(t, b) {
		t.Error("without rules, the NIC is still polled by threads")
	}
	if st := d.Status(); len(st.Rules) != 0 || st.Mechanism("priority").State != "off" {
		t.Errorf("after the last rule: %+v, %+v", st.Rules, st.Mechanisms)
	}
	// A rule that nothing follows is kept, and its command says so.
	d.Reload(d.Config + "priority: {mode: off}\n")
	verb(0, "priority is off: ", "add", "web", "port", "80")
	ends(t, d)
}

func TestPriorityLeavesAForeignXDPProgramAlone(t *testing.T) {
	rig.NeedCores(t, 2)
	b := rig.Lab(t, bed.Options{})
	attachXDP(t, b.Receiver().NS, b.Receiver().Wire)
	check(t, b)
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: prioritised})
	saysManual(t, d, b.Receiver().Wire, "foreign XDP program")
	if m := d.Status().Mechanism("priority"); m.State != "standby" {
		t.Errorf("priority is %s, %s", m.State, m.Reason)
	}
	ends(t, d)
}

func TestPriorityAndTierXDPAreNotCombined(t *testing.T) {
	b := lab(t, bed.Options{})
	refused(t, runFor(t, b, prioritised+"tier: xdp\n"), failure, "tier: tc")
}

// When the first rule comes, the pipeline leaves the cores on which latency traffic is,
// and goes on beside them.
func TestThePipelineLeavesTheNICsCoreToPriority(t *testing.T) {
	b := lab(t, bed.Options{})
	nic := b.PlaceCores().NIC[0]
	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: forced})
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	onNIC := func(st control.Status) bool {
		return slices.ContainsFunc(st.Lanes, func(l control.Lane) bool { return l.Core == nic })
	}
	if st := d.Status(); !onNIC(st) {
		t.Fatalf("without priority a stage comes back to the NIC's core; lanes are %+v", st.Lanes)
	}
	if r := d.Verb("prio", "add", "ssh", "proto", "tcp", "port", "22"); r.Code != 0 {
		t.Fatal(r)
	}
	steered := d.Status().Counters.SteeredPackets
	rig.Until(t, "both act, and no lane is on the NIC's core", func() (bool, string) {
		st := d.Status()
		return st.Mechanism("pipeline").State == control.Active && st.Mechanism("priority").State == control.Active && len(st.Lanes) > 0 && !onNIC(st) &&
			st.Counters.SteeredPackets > steered+1000, fmt.Sprintf("%+v %+v", st.Mechanisms, st.Lanes)
	})
	l.GoesOn()
	if r := d.Verb("prio", "del", "ssh"); r.Code != 0 {
		t.Fatal(r)
	}
	l.GoesOn()
	orderly(t, l.Stop())
	ends(t, d)
}
