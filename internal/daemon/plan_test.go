// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// What is on a NIC decides before anything of it is read: there is no scanner here.
func TestPriorityLeavesNICsThatItsProgramCannotGoTo(t *testing.T) {
	for name, tc := range map[string]struct {
		nic  node.Underlay
		want string
	}{
		"a VLAN device sits on it": {node.Underlay{VLANs: true}, noXDPUnderVLANs},
		"somebody else's program":  {node.Underlay{ForeignXDP: true}, foreignXDP},
	} {
		t.Run(name, func(t *testing.T) {
			tc.nic.Dev = node.Dev{NetnsCookie: 42, Ifindex: 2, Name: "eth0"}
			none := func(node.Underlay) bool { return false }
			p := plan.Priority(PriorityInput(nil, node.Snapshot{Underlays: []node.Underlay{tc.nic}}, []int{0}, nil, none))
			if !p.Empty() || len(p.Skipped) != 1 || p.Skipped[0].Reason != tc.want || !p.Skipped[0].Whole() {
				t.Errorf("the plan is %+v", p)
			}
		})
	}
}
