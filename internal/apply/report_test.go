// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Mechanisms are stopped one after another, each with a report of the one journal.
func TestReportsOfOneJournalAreOne(t *testing.T) {
	var all Report
	for _, one := range []Report{{Results: []Result{{Reason: "a"}}, Damaged: 2}, {}, {Results: []Result{{Reason: "b"}}, Damaged: 2}} {
		all.Add(one)
	}
	if d := cmp.Diff(Report{Results: []Result{{Reason: "a"}, {Reason: "b"}}, Damaged: 2}, all); d != "" {
		t.Error(d)
	}
}
