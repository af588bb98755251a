// SPDX-License-Identifier: Apache-2.0

package datapath

import "testing"

// The hash of a flow takes it to each lane as RPS does it, and is the same on each of them to a program that takes it
// modulo a number of sockets.
func TestAFlowsHashesForItsLanesDifferByTheStep(t *testing.T) {
	flows := []uint32{0, 1, 97, uint32(stagesOlLimitOL_SLOTS) - 1, uint32(hashStep) - 1, uint32(hashStep), 1<<32 - 1}
	for n := 1; n <= MaxLanes; n++ {
		for i := range n {
			first, steps := laneHash(i, n)
			for _, flow := range flows {
				// ol_lane_hash
				h := uint64(first) + uint64(flow)%hashStep + uint64(flow%steps)*hashStep
				if lane := h * uint64(n) >> 32; h >= 1<<32 || lane != uint64(i) || h == 0 {
					t.Fatalf("lane %d of %d: %#x leads to %d", i, n, h, lane)
				}
				for _, sockets := range []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 32, 48, 64, 96, 128} {
					if h%sockets != uint64(flow)%hashStep%sockets {
						t.Fatalf("lane %d of %d, %d sockets: %#x is for another than %#x", i, n, sockets, h, flow)
					}
				}
			}
		}
	}
}
