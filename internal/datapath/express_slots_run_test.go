// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"
)

// A slot's frames go to one pod's ring, so that it is known when that is empty. Frames of another
// flow that shares the slot, and goes to another pod, take the full path meanwhile.
func TestFlowsOfASlotDoNotGoToTwoPods(t *testing.T) {
	s := newStraight(t, 0)
	hostEnd, podEnd := pod(t, s.host, "pod1")
	key, path := s.key, s.path
	key.MAC[5]++
	path.Host, path.Pod = hostEnd, podEnd
	s.must(s.AddPath(key, path))
	f := plain(1)
	var other []byte
	for port := uint16(2); other == nil; port++ {
		if g := plain(port); s.slotOf(classify(t, g)) == s.slotOf(classify(t, f)) {
			other = changed(g, func(f []byte) { copy(f[innerEth:], key.MAC[:]) })
		}
	}
	s.onItsPath(f)
	was, err := s.Counters()
	s.must(err)
	s.stays("the other pod's", other)
	s.goes("its own pod's", f)
	s.counted("neither drives the other off", was, 1, 0, 0)
	// The other has the slot once the one has left it.
	s.drained(s.port, true)
	s.poll(1)
	s.stays("the one's ring is empty", other)
	s.counted("it has left in order", was, 1, 0, 1)
	s.drained(s.portOf(podEnd), true)
	s.poll(expressPause + 1)
	s.goes("behind the pause", other)
	s.stays("the one's, now", f)
}

// Behind the first of a poll, too, a frame of the same inner flow is asked where it comes from.
func TestASenderBehindAnotherHostIsSeenWithinAPoll(t *testing.T) {
	s := newStraight(t, time.Minute)
	f := plain(1)
	s.onItsPath(f)
	s.stays("from another host, right behind", changed(f, func(f []byte) { f[outerIP+15] = 7 }))
}

// A frame for a pod without a path is no matter of the flow that shares its slot.
func TestAFlowWithoutAPathDoesNotDriveAnotherOffItsOwn(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	var other []byte
	for port := uint16(2); other == nil; port++ {
		if g := plain(port); s.slotOf(classify(t, g)) == s.slotOf(classify(t, f)) {
			other = changed(g, func(f []byte) { f[innerEth+5]++ })
		}
	}
	s.onItsPath(f)
	was, err := s.Counters()
	s.must(err)
	s.stays("no path leads there", other)
	s.counted("it is no business of the slot's other flow", was, 0, 0, 0)
}

// While nothing may go straight, a slot whose pod's ring is not known to be empty sends its frames
// the full path and stays on the lane; allowed again, the next must not overtake them.
func TestWhatWasSentTheFullPathMeanwhileIsNotOvertaken(t *testing.T) {
	s := newStraight(t, 0)
	f := plain(1)
	s.onItsPath(f)
	s.must(s.SetExpress(false))
	s.poll(1)
	s.stays("nothing may go straight", f)
	s.must(s.SetExpress(true))
	s.later(1)
	s.stays("the one before is on the full path", f)
}
