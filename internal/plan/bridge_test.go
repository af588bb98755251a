// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBridgeCalls(t *testing.T) {
	s := CallsNetfilter(7, "net/bridge/bridge-nf-call-iptables")
	none := Plan{Steps: []Step{}, Attach: []Attachment{}, Skipped: []Skip{}}
	left := func(why string) Plan {
		p := none
		p.Skipped = []Skip{{What: s.String(), Reason: why, Target: s.Target}}
		return p
	}
	off := none
	off.Steps = []Step{{Setting: s, By: ByBridging, Was: "1", First: "1", Want: "0", Reason: "nothing is at the hooks that bridges call with each packet"}}
	ours := map[Setting]Owned{s: {First: "1"}}
	for _, tt := range []struct {
		name  string
		call  BridgeCall
		owned map[Setting]Owned
		want  Plan
	}{
		{"unused", BridgeCall{Setting: s, Value: "1"}, nil, off},
		{"used", BridgeCall{Setting: s, Value: "1", Used: "rules"}, nil, left("rules")},
		{"no br_netfilter", BridgeCall{Setting: s}, nil, none},
		{"it is off already", BridgeCall{Setting: s, Value: "0"}, nil, none},
		{"it is off by us", BridgeCall{Setting: s, Value: "0"}, ours, none},
		{"another program has switched it on again", BridgeCall{Setting: s, Value: "1"}, ours, left("left alone: another program has switched it on again")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := BridgeCalls([]BridgeCall{tt.call}, tt.owned)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
			if err := ValidateSteps(got.Steps); err != nil {
				t.Error(err)
			}
		})
	}
}
