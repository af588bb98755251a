// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/overlane/overlane/internal/datapath"
)

// What was steered is never more than the overlay's, whatever counted either.
func TestNoMoreIsSteeredThanTheOverlayHas(t *testing.T) {
	for _, c := range []datapath.Counters{
		{Overlay: 980, Steered: 980, Pod: 960, PodSteered: 960}, // 500 polled: GRO has joined them
		{XDPOverlay: 980, XDPLane: 980},
		{Pod: 980, PodSteered: 970},
	} {
		if total, steered := overlayTotal(500, c), max(c.Steered, c.PodSteered, c.XDPLane); steered > total {
			t.Errorf("%+v: %d of %d", c, steered, total)
		}
	}
}
