// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/rules"
)

// A bulk flow that goes straight to its pod makes way for latency traffic once its frames have left
// the pod's ring: those that its GRO holds would be overtaken by what goes by the lane.
func TestBulkLeavesItsWayForTheLaneInOrder(t *testing.T) {
	s := newStraight(t, 0)
	p, err := s.LoadPriority()
	s.must(err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	p.use(t, rules.Rule{Port: 7, Class: rules.Latency})
	s.must(p.StartLanes([]int{s.core}, false, LaneSched{}), p.SetTuning(PriorityTuning{Window: time.Hour, Room: 1000}))
	s.prog = p.objs.OlPriorityXdp
	bulk, latency := plain(1), plain(7)
	for port := uint16(8); s.slotOf(classify(t, bulk)) == s.slotOf(classify(t, latency)); port++ {
		bulk = plain(port) // the key of this load had the two meet
	}
	poll := func() {
		t.Helper()
		p.nextPoll(t)
		s.poll(time.Millisecond)
	}

	s.stays("a new flow", bulk)
	p.nextPoll(t)
	s.poll(expressPause + 1)
	s.goes("without latency traffic", bulk)

	poll()
	s.stays("latency", latency)
	s.drained(s.port, false)
	was, err := s.Counters()
	s.must(err)
	for range 2 {
		poll()
		s.goes("its frames are in the pod's ring", bulk)
	}
	s.drained(s.port, true)
	poll()
	for range 2 {
		if verdict, out := s.send(bulk); verdict != xdpRedirect || !bytes.Equal(out, bulk) {
			t.Errorf("its frames have left the pod's ring: verdict %d, %x; want it whole, in the lane", verdict, out)
		}
	}
	s.counted("it left in order", was, 2, 0, 1)
}
