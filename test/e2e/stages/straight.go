// SPDX-License-Identifier: Apache-2.0

package stages

// budget is what a NAPI handles in one poll at most.
const budget = 64

// Straight counts the batches of a kind that went straight through: from the NIC, or
// from a lane's ring, to the tunnel and to the pod before the core took another batch.
// takes tells the polls that take one, and of those that count.
//
// What counts is the order of polls: of the tunnel first, then of the backlog, each of no
// less than the batch. A core that interleaves has the backlog first, with the batch
// before: as many packets, and not these.
func Straight(polls []Poll, takes, of func(Poll) bool) (straight, all int) {
	type batch struct {
		size, tunnel, pod int
		counts, begun     bool
		crooked           bool
	}
	on := make(map[int]*batch) // by core
	for _, p := range polls {
		b := on[p.CPU]
		switch {
		case takes(p):
			// One that the record ends in, or begins in, is not judged.
			if b != nil && b.counts {
				all++
				if !b.crooked && b.begun && b.tunnel >= b.size && b.pod >= b.size {
					straight++
				}
			}
			on[p.CPU] = &batch{size: p.Work, counts: of(p)}
		case b == nil:
		case p.Role == Tunnel:
			b.begun = true
			b.tunnel += p.Work
			// It may have had others' packets first, and not have come to these.
			b.crooked = b.crooked || b.pod > 0 || p.Work >= budget && p.Work != b.size
		case p.Role == Backlog:
			b.crooked = b.crooked || !b.begun
			b.pod += p.Pod
		}
	}
	return straight, all
}

// Taken tells the polls that take frames into the stack: where there are lanes, the
// NIC's only hand them on to those.
func (p Poll) Taken(lanes bool) bool {
	if lanes {
		return p.Role == LatencyLane || p.Role == BulkLane
	}
	return p.Role == Wire
}
