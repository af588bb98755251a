// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"testing"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

func TestPodsMasksNameAllCoresOnWhichFlowsMayBe(t *testing.T) {
	many := make([]int, datapath.MaxMask+1)
	for i := range many {
		many[i] = i
	}
	for _, tt := range []struct {
		what        string
		layout      governor.Layout
		cores, want []int
	}{
		{"lanes among others", governor.Layout{Pod: []int{2}}, []int{0, 1, 2, 3}, []int{0, 1, 2, 3}},
		{"no pod stage", governor.Layout{Tunnel: []int{1}}, []int{0, 1}, nil},
		{"behind resequencers", governor.Layout{Pod: []int{1}, Split: true}, []int{0, 1}, nil},
		{"more than there are hashes for", governor.Layout{Pod: []int{1}}, many, nil},
	} {
		if got := podMask(tt.layout, tt.cores); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}
