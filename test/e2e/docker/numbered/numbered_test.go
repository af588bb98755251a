// SPDX-License-Identifier: Apache-2.0

package numbered

import "testing"

func TestNumbersAreJudged(t *testing.T) {
	for _, tt := range []struct {
		name    string
		numbers []uint64
		want    Counters
	}{
		{"in order", []uint64{0, 1, 2, 3}, Counters{Received: 4}},
		{"a gap", []uint64{0, 3}, Counters{Received: 2, Missing: 2}},
		{"late", []uint64{0, 2, 1, 3}, Counters{Received: 4, Late: 1}},
		{"twice", []uint64{0, 1, 1, 0}, Counters{Received: 2, Duplicated: 2}},
		{"late and twice", []uint64{0, 2, 1, 1}, Counters{Received: 3, Late: 1, Duplicated: 1}},
		{"a number of the window before", []uint64{0, 5, window, 5 + window, 1 + window},
			Counters{Received: 5, Late: 1, Missing: 1 + window}},
		{"too far behind", []uint64{0, 2 * window, 3}, Counters{Received: 2, Stale: 1, Missing: 2*window - 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Counters
			tr := &track{}
			for _, n := range tt.numbers {
				tr.take(n, &c)
			}
			if c != tt.want {
				t.Errorf("got %+v, want %+v", c, tt.want)
			}
		})
	}
}
