// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"log/slog"
	"slices"
	"testing"
)

// The clock events of a core that was offline are dead, and its lane's thread may run elsewhere, however short that was:
// the set of cores that are online does not tell of one that is back before the next poll.
func TestACoreThatWasAwayBetweenTwoPollsIsNoticed(t *testing.T) {
	for _, tc := range []struct {
		name    string
		online  []int
		returns []uint32
		anew    bool
		want    []string
	}{
		{"nothing happens", []int{0, 1, 2}, []uint32{4, 0, 7, 0}, false, nil},
		{"one has gone", []int{0, 1}, []uint32{4, 0, 7, 0}, true, []string{"lost 2 a"}},
		{"one has come", []int{0, 1, 2, 3}, []uint32{4, 0, 7, 0}, true, nil},
		{"one is back", []int{0, 1, 2}, []uint32{4, 1, 7, 0}, true, []string{"lost 1 a"}},
		{"after a suspension", []int{0, 1, 2}, []uint32{4, 1, 8, 0}, true, []string{"lost 1 a", "lost 2 a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, calls := loop(recorded{name: "a"})
			d.online, d.returns = []int{0, 1, 2}, []uint32{4, 0, 7, 0}
			if anew := d.sawCores(tc.online, tc.returns); anew != tc.anew {
				t.Errorf("tasks are sampled anew: %t", anew)
			}
			same(t, "told", *calls, tc.want...)
			*calls = nil
			if d.sawCores(tc.online, tc.returns) {
				t.Error("it is seen a second time")
			}
			same(t, "told a second time", *calls)
		})
	}
}

// A core that is configured and offline takes no work, and does once it is online, also where it was offline at the
// start.
func TestAConfiguredCoreThatComesOnlineIsUsed(t *testing.T) {
	d, _ := loop()
	d.log, d.opts.Cores, d.online, d.returns = slog.New(slog.DiscardHandler), []int{0, 1, 3}, []int{0, 1}, make([]uint32, 4)
	for _, online := range [][]int{{0, 1}, {0, 1, 3}, {0, 3}} {
		d.sawCores(online, d.returns)
		if err := d.useCores(); err != nil || !slices.Equal(d.cores, online) {
			t.Errorf("while %v are online: %v, %v", online, d.cores, err)
		}
	}
}
