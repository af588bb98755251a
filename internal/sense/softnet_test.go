// SPDX-License-Identifier: Apache-2.0

package sense

import (
	"maps"
	"testing"

	"github.com/prometheus/procfs"
)

// The kernel's counts have 32 bits, and none of a core that is offline, whose own count goes on afterwards.
func TestDropsOfBacklogsOnlyGrow(t *testing.T) {
	var b Backlogs
	for _, step := range []struct {
		name   string
		counts map[uint32]uint32
		want   map[int]uint64
	}{
		{"at first", map[uint32]uint32{0: 1<<32 - 5, 1: 100}, nil},
		{"some", map[uint32]uint32{0: 1<<32 - 2, 1: 110}, map[int]uint64{0: 3, 1: 10}},
		{"a count begins anew", map[uint32]uint32{0: 4, 1: 110}, map[int]uint64{0: 9, 1: 10}},
		{"a core is gone", map[uint32]uint32{0: 5}, map[int]uint64{0: 10, 1: 10}},
		{"it is back", map[uint32]uint32{0: 5, 1: 112}, map[int]uint64{0: 10, 1: 12}},
		{"another one comes", map[uint32]uint32{0: 5, 1: 112, 2: 7}, map[int]uint64{0: 10, 1: 12}},
	} {
		var stats []procfs.SoftnetStat
		for core, n := range step.counts {
			stats = append(stats, procfs.SoftnetStat{Index: core, Dropped: n})
		}
		if got := b.add(stats); !maps.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}
