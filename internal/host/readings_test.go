// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// What was read of a device is good until a mechanism changes the device, whichever that is and whichever scans.
func TestReadingsOfWhatAMechanismHasChanged(t *testing.T) {
	r := newReadings(nil)
	r.took = time.Hour // good for as long as can be
	dev := node.Dev{Name: "vx0", Ifindex: 7}
	mask := apply.Entry{Setting: plan.RPSMask(plan.Target(dev), 0), By: plan.ByPipeline, Wrote: "2"}
	var before *reading
	for _, scan := range []struct {
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
		r.now(scan.changed)
		got := r.reading(dev)
		if (got != before) != scan.again {
			t.Errorf("%s: read again: %t, want %t", scan.name, got != before, scan.again)
		}
		before = got
	}
}
