// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/cli/clitest"
	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/printable"
)

var now = time.Unix(1_800_000_000, 0)

var busyVNI = uint32(4097)

var busyStatus = control.Status{
	State: control.Running, PID: 42, Since: now.Add(-3*time.Hour - 5*time.Minute), Version: "v0.1", Kernel: "6.12.1",
	Netns: 4711, Cores: config.CPUList{0, 1, 2, 3},
	Tiers: []control.TierStatus{
		{Name: "tc", Reached: true},
		{Name: "xdp", Reason: "native-xdp of eth0: its driver has none", Remedy: "ethtool -i  eth0"},
	},
	Mechanisms: []control.Mechanism{{Name: "pipeline", State: control.Active, Reason: "core 0 is saturated by overlay packets", Since: now.Add(-72 * time.Second)}},
	Devices: []control.Device{
		{Name: "eth0", Netns: 4711, Role: control.Underlay, State: control.Active},
		{Name: "vxlan0", Netns: 4712, Role: control.Tunnel, State: control.Manual, Reason: "left alone: RPS mask set by another program", Network: "i79xvqm2hn", VNI: &busyVNI},
		{Name: "veth1", Netns: 4712, Role: control.Pod, State: control.Active, Network: "i79xvqm2hn", VNI: &busyVNI,
			Place: &node.Place{Netns: 4713, Container: "3f2a9c1b7d44", Engine: "docker", Mount: "0a1b2c3d4e5f"}},
		{Name: "veth2", Netns: 4712, Role: control.Balancer, State: control.Active, Network: "i79xvqm2hn", VNI: &busyVNI,
			Place: &node.Place{Netns: 4714, Network: "i79xvqm2h", Balancer: true, Mount: "lb_i79xvqm2h"}},
	},
	Lanes:      []control.Lane{{Stage: "tunnel", Core: 1, Packets: 12_345_678, Queue: 17, Drops: 3}, {Stage: "pod", Core: 10, Packets: 999}},
	StageCosts: []control.StageCost{{Stage: "nic", NsPerPacket: control.Measured(901.4)}, {Stage: "tunnel"}},
	Counters: control.Counters{
		OverlayPackets: 12_400_000, SteeredPackets: 12_345_678, LaneChanges: 5, LaneChangesHeld: 2,
		Unparsed: map[string]uint64{"short": 1, "outer fragment": 20, "inner not IP": 0},
	},
}

func TestStatusAsText(t *testing.T) {
	var b bytes.Buffer
	showStatus(newScreen(&b), busyStatus, now)
	const want = `overlane v0.1 running for 3h05m
pid 42, kernel 6.12.1, cores 0-3

MECHANISM  STATE   SINCE  WHY
pipeline   active  1m12s  core 0 is saturated by overlay packets

LANE    CORE  PACKETS  QUEUE  DROPS
tunnel     1  12.35 M     17      3
pod       10      999      0      0

PACKETS         COUNT
overlay       12.40 M  inside of a tunnel that is served
steered       12.35 M  99.6 % of the overlay's
lane changes        5  2 held until the old lane was empty
stock path         20  outer fragment
stock path          1  short

STAGE      NS/PACKET
nic              901
tunnel  not measured

TIER  REACHED  WHY
tc    yes
xdp   no       native-xdp of eth0: its driver has none
               ethtool -i  eth0

NAME          ROLE      NETWORK      VNI  STATE   WHY
eth0          underlay                    active
vxlan0        tunnel    i79xvqm2hn  4097  manual  left alone: RPS mask set by another program
3f2a9c1b7d44  pod       i79xvqm2hn  4097  active
lb_i79xvqm2h  balancer  i79xvqm2hn  4097  active
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// A pod chooses the names of its devices. None reaches a terminal as a command.
func TestNamesOfDevicesDoNotCommandTheTerminal(t *testing.T) {
	const name = "\x1b]0;\u009b\x9bx\a"
	target := plan.Target{NetnsCookie: 1, Ifindex: 2, Name: name}
	step := plan.Step{Setting: plan.RPSMask(target, 0), Was: "0", Want: "2", Reason: "of " + name}
	p := plan.Plan{
		Steps:   []plan.Step{step},
		Attach:  []plan.Attachment{{Program: "p", Hook: "tcx", Target: target, Reason: name}},
		Skipped: []plan.Skip{{What: name, Reason: name}},
	}
	st := busyStatus
	st.Devices = []control.Device{{Name: name, Role: control.Pod, State: control.Manual, Reason: name}}
	st.Mechanisms = []control.Mechanism{{Name: "pipeline", State: control.Standby, Reason: name}}
	off := control.OffReport{Report: apply.Report{Results: []apply.Result{{Setting: step.Setting, Outcome: apply.LeftAlone, Reason: name}}}}
	for what, show := range map[string]func(*bytes.Buffer){
		"plan":   func(b *bytes.Buffer) { b.WriteString(p.Text()) },
		"status": func(b *bytes.Buffer) { showStatus(newScreen(b), st, now) },
		"off":    func(b *bytes.Buffer) { showOff(newScreen(b), off, nil) },
		"error":  func(b *bytes.Buffer) { b.WriteString(cli.Message(errors.New(name))) },
		"JSON":   func(b *bytes.Buffer) { _ = cli.JSON(b, st) },
		"log":    func(b *bytes.Buffer) { slog.New(slog.NewTextHandler(b, nil)).Info(name, "device", name, name, 1) },
	} {
		var b bytes.Buffer
		show(&b)
		if text := b.String(); text != printable.Lines(text) || !strings.Contains(text, `]0;`) {
			t.Errorf("%s: %q", what, text)
		}
	}
}

func TestNarrowTerminalBreaksReasonsButNotCommands(t *testing.T) {
	var b bytes.Buffer
	s := &screen{w: &b, width: 40}
	s.table([]string{"A", "WHY"}, [][]cell{
		{{"x", bold}, {"a reason that is longer than the terminal is wide", plain}},
		{{}, {"a --command that  --must be copied as it is, --all of it", command}},
	})
	const want = `A  WHY
x  a reason that is longer than the
   terminal is wide
   a --command that  --must be copied as it is, --all of it
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

func TestColorsKeepTheColumns(t *testing.T) {
	var b bytes.Buffer
	(&screen{w: &b, color: true}).table(nil, [][]cell{{{"äb", green}, {"x", plain}}, {{"abcd", red}, {"y", plain}}})
	if d := cmp.Diff("\x1b[32mäb\x1b[0m    x\n\x1b[31mabcd\x1b[0m  y\n", b.String()); d != "" {
		t.Error(d)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 9999: "9999", 10_000: "10.0 k", 1_000_000: "1.00 M", 5_000_000_000: "5.00 G"} {
		if got := count(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", time.Hour - 1: "59m59s", 25 * time.Hour: "1d01h",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestPages(t *testing.T) { clitest.Pages(t, newRootCmd()) }
