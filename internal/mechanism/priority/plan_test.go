// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/xdp"
)

// noPlaces are places of which nothing was found out.
func noPlaces(t *testing.T) *xdp.Places {
	t.Helper()
	known, err := xdp.Remember(nil)
	if err != nil {
		t.Fatal(err)
	}
	return xdp.New(nil, known, slog.New(slog.DiscardHandler))
}

// What is on a NIC decides before anything of it is read: there is no scanner here.
func TestPriorityLeavesNICsThatItsProgramCannotGoTo(t *testing.T) {
	for name, tc := range map[string]struct {
		nic  node.Underlay
		want string
	}{
		"VLANs on it":          {node.Underlay{VLANs: true}, xdp.UnderVLANs},
		"a foreign program":    {node.Underlay{ForeignXDP: true}, xdp.Foreign},
		"RPS moves its frames": {node.Underlay{Moves: "RPS"}, "no XDP program: RPS"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.nic.Dev = node.Dev{NetnsCookie: 42, Ifindex: 2, Name: "eth0"}
			none := func(node.Underlay) bool { return false }
			p := plan.Priority(planInput(nil, node.Snapshot{Underlays: []node.Underlay{tc.nic}}, []int{0}, nil, none, noPlaces(t), xdp.Want{By: xdp.Priority, Asked: true}))
			if !p.Empty() || len(p.Skipped) != 1 || p.Skipped[0].Reason != tc.want || !p.Skipped[0].Whole() {
				t.Errorf("the plan is %+v", p)
			}
		})
	}
}

// A NIC, and one that a bond or a VLAN has taken.
func underlay(index int, driver string, ports ...node.Receiver) node.Underlay {
	u := node.Underlay{Dev: node.Dev{NetnsCookie: 42, Ifindex: index, Name: "eth0"}, Driver: driver, Receivers: ports}
	if len(ports) == 0 {
		u.Receivers = []node.Receiver{{Dev: u.Dev, Driver: driver}}
	}
	return u
}

func port(index int) node.Receiver {
	return node.Receiver{Dev: node.Dev{NetnsCookie: 42, Ifindex: index}, Driver: "igb"}
}

// What counts polls, and has GRO join datagrams, is about the devices that receive.
func TestABondReceivesByItsPorts(t *testing.T) {
	snap := node.Snapshot{Underlays: []node.Underlay{underlay(2, "veth"), underlay(3, "bond", port(4), port(5)), underlay(6, "bond", port(5))}}
	var got []int
	for _, dev := range snap.Receivers() {
		got = append(got, dev.Ifindex)
	}
	if !slices.Equal(got, []int{2, 4, 5}) {
		t.Errorf("%v receive", got)
	}
}

// By itself overlane plans no attach that restarts a link; asked, it says what that costs. No
// thread polls a bond, and a program that is replaced there is never freed: it gets its last one.
func TestThePlanSaysWhatXDPCosts(t *testing.T) {
	for name, tc := range map[string]struct {
		nic   node.Underlay
		asked bool
		skip  string // why it is left alone
		costs string
		two   bool
	}{
		"igb, on trial":   {nic: underlay(2, "igb"), skip: "restarts the link"},
		"bond, on trial":  {nic: underlay(2, "bond", port(4)), skip: "restarts the link"},
		"bond, asked for": {nic: underlay(2, "bond", port(4)), asked: true, costs: "restarts the link", two: true},
	} {
		t.Run(name, func(t *testing.T) {
			want := xdp.Want{By: xdp.Priority, Asked: tc.asked}
			none := func(node.Underlay) bool { return false }
			p := plan.Priority(planInput(nil, node.Snapshot{Underlays: []node.Underlay{tc.nic}}, []int{0}, nil, none, noPlaces(t), want))
			switch {
			case tc.skip != "" && (len(p.Attach) > 0 || len(p.Skipped) != 1 || !strings.Contains(p.Skipped[0].Reason, tc.skip)):
				t.Errorf("the plan is %+v", p)
			case tc.skip == "" && (len(p.Steps) > 0 || len(p.Attach) != 1 || !strings.Contains(p.Attach[0].Reason, tc.costs) || (p.Attach[0].Program == plan.TwoLanesProgram) != tc.two):
				t.Errorf("the plan is %+v", p)
			}
		})
	}
}

// Plan speaks of a trial where run would make one.
func TestATrialIsForeseenWhereThereMayBeOne(t *testing.T) {
	proven := Options{OnDemand: true}
	xdp, unguarded, off, unable := proven, proven, proven, proven
	xdp.Tier, unguarded.NoGuard, off.Off, unable.No = governor.XDP, errors.New("no guard"), true, errors.New("no capability")
	for name, tt := range map[string]struct {
		opts Options
		says string
	}{
		"proven": {proven, "would wait for an underlay"}, "tier xdp": {xdp, ""}, "no guard": {unguarded, ""}, "off": {off, ""},
		"no capability": {unable, "no capability"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Foresee(&mechanism.View{}, tt.opts)
			if err != nil || len(list) != min(len(tt.says), 1) {
				t.Fatalf("%+v, %v", list, err)
			}
			if len(list) == 1 && !strings.Contains(list[0].When, tt.says) {
				t.Error(list[0].When)
			}
		})
	}
}
