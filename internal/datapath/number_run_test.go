// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"testing"

	"github.com/overlane/overlane/test/parser/packet"
)

// What is whole stays on its core whenever the tunnel may have a mask for branches' second cores, which is so
// before flows are split, and after: the mask would move it, and what stays a moment later would overtake it.
func TestTheWholeStayBeforeFlowsAreSplit(t *testing.T) {
	b := newBench(t, NIC)
	send := arriving(t, b.AttachUnderlayNumber)
	frame := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Raw(make([]byte, 64)))
	const unsplit, second = "before a flow is split", "while flows are split"
	for _, tt := range []struct {
		name    string
		neutral bool // masks may be there
		split   Split
		stays   bool
	}{
		{unsplit, true, Split{}, true},
		{second, true, Split{UDP: true, Numbered: true, Batch: 64, At: NIC, Second: true}, true},
		{"without masks", false, Split{}, false},
	} {
		if err := errors.Join(b.SetLanes(Tunnel, []int{0}), b.SetNeutral(tt.neutral), b.SetSplit(tt.split)); err != nil {
			t.Fatal(err)
		}
		if hash, _ := send(t, frame, len(frame)); (hash == 0) != tt.stays {
			t.Errorf("%s: a packet for the tunnel has hash %#x", tt.name, hash)
		}
	}
}
