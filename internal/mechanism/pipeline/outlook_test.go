// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// Beside a daemon there is no resequencer to make: it has whatever index the daemon has chosen.
func TestAResequencerIsFoundWhateverItsIndex(t *testing.T) {
	snap := node.Snapshot{Pods: []node.Pod{pod(1)}}
	for _, owned := range []map[plan.Setting]plan.Owned{nil, {
		plan.OwnDeviceOf(1, MergeDevice): {First: plan.NoDevice, Wrote: plan.OwnVeth(firstMergeIndex+4711, MergedDevice)},
		mask(device("vx0", 3)):           {First: "0", Wrote: "2"},
	}} {
		p := plan.Pipeline(plan.Input{Owned: owned, Merge: mergeSteps(snap, mergeIndex(owned))})
		if want := 1 - min(len(owned), 1); len(p.Steps) != want {
			t.Errorf("%d settings are changed, and steps are left: %+v", len(owned), p.Steps)
		}
	}
}
