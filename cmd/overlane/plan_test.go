// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/control"
)

// Lanes of micro-flows are no placement of the pipeline's.
func TestPlanTakesOnlyThePipelinesLanes(t *testing.T) {
	st := control.Status{
		Lanes:      []control.Lane{{Stage: "tunnel", Core: 3}, {Stage: "pod", Core: 2}, {Stage: "pod", Core: 1}},
		Mechanisms: []control.Mechanism{{Name: "pipeline"}, {Name: "microflows", Gain: 1.5}},
	}
	if l := layoutOf(st); l != nil {
		t.Errorf("micro-flows' lanes are taken for the pipeline's: %+v", l)
	}
	st.Mechanisms = []control.Mechanism{{Name: "pipeline", Gain: 1.5}, {Name: "microflows"}}
	if l := layoutOf(st); l == nil || !slices.Equal(l.Tunnel, []int{3}) || !slices.Equal(l.Pod, []int{1, 2}) {
		t.Errorf("the pipeline's lanes are not seen: %+v", l)
	}
	if l := layoutOf(control.Status{}); l != nil {
		t.Errorf("without lanes: %+v", l)
	}
}
