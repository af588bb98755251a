// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// What was read of a device is good until a mechanism changes the device, whichever that is and whichever looks.
func TestReadingsOfWhatAMechanismHasChanged(t *testing.T) {
	r := newReadings(nil)
	r.took = time.Hour // good for as long as can be
	dev := node.Dev{Name: "vx0", Ifindex: 7}
	mask := apply.Entry{Setting: plan.RPSMask(target(dev), 0), By: plan.ByPipeline, Wrote: "2"}
	var before *reading
	for _, look := range []struct {
		name    string
		changed []apply.Entry
		again   bool
	}{
		{"nothing is ours", nil, true},
		{"still nothing", nil, false},
		{"the pipeline has written a mask", []apply.Entry{mask}, true},
		{"it is still there", []apply.Entry{mask}, false},
		{"it is taken back", nil, true},
	} {
		r.now(look.changed)
		got := r.reading(dev)
		if (got != before) != look.again {
			t.Errorf("%s: read again: %t, want %t", look.name, got != before, look.again)
		}
		before = got
	}
}
