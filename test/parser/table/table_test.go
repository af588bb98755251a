// SPDX-License-Identifier: Apache-2.0

package table_test

import (
	"testing"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/table"
)

func TestTheOracleAgreesWithTheTable(t *testing.T) {
	names := map[string]bool{}
	seen := map[oracle.Reason]bool{}
	for _, c := range table.Cases() {
		if names[c.Name] {
			t.Errorf("%s: twice in the table", c.Name)
		}
		names[c.Name] = true
		seen[c.Want] = true

		var track oracle.Tracker
		if c.Before != nil {
			track.Classify(oracle.View{Data: c.Before, Whole: len(c.Before)}, table.Tunnels)
		}
		if _, got := track.Classify(oracle.View{Data: c.Frame, Whole: len(c.Frame)}, table.Tunnels); got != c.Want {
			t.Errorf("%s: got %s, want %s", c.Name, got, c.Want)
		}
	}
	for _, r := range oracle.Reasons {
		// Only a frame that was cut off is too short, and only XDP sees one in several buffers.
		if !seen[r] && r != oracle.Short && r != oracle.Headless && r != oracle.Unfinished {
			t.Errorf("no case with reason %s", r)
		}
	}
}
