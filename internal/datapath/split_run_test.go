// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"testing"

	"github.com/overlane/overlane/test/parser/packet"
)

// Of a flow that is split no more datagrams are under way than the merge has room for, whatever
// comes; and there is room again once it has come on.
func TestNoMoreIsUnderWayThanTheMergeHasRoomFor(t *testing.T) {
	const xdpDrop, xdpRedirect = 1, 4
	const depth, few = int(stagesOlLimitOL_MERGE_DEPTH), 16
	b := newBench(t, NIC)
	err := errors.Join(
		b.StartLanes([]int{b.core}), b.SetLanes(NIC, []int{b.core}),
		b.SetSplit(Split{UDP: true, Numbered: true, TCP: true, Batch: 64, At: NIC, Here: true}),
	)
	if err != nil {
		t.Fatal(err)
	}
	frame := func(l4 packet.Layer) []byte {
		return packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42},
			packet.Ethernet{}, packet.IPv4{}, l4, packet.Raw(make([]byte, 64)))
	}
	datagram, segment := frame(packet.UDP{Src: 1, Dst: 2}), frame(packet.TCP{Src: 1, Dst: 2})
	// split has a flow be split, and nothing of it be under way.
	const place = 3
	split := func(frame []byte) {
		t.Helper()
		b.run(t, frame, 1)
		found := false
		for i := range b.xdp.OlElephants.MaxEntries() {
			var e underlayOlElephant
			if err := b.xdp.OlElephants.Lookup(i, &e); err != nil {
				t.Fatal(err)
			}
			if e.Taken == 0 || e.Merge != 0 {
				continue
			}
			found = true
			const isSplit = 1 // OL_SPLIT
			e.State, e.Merge, e.Key, e.Begins = isSplit, place+1, 7, 1
			if err := b.xdp.OlElephants.Put(i, e); err != nil {
				t.Fatal(err)
			}
		}
		if !found {
			t.Fatal("the flow has no place")
		}
		if err := b.stages.OlMergings.Put(uint32(place), stagesOlMerging{Key: 7, Ifindex: 1}); err != nil {
			t.Fatal(err)
		}
	}
	verdicts := func(frame []byte, n int) (of map[uint32]int) {
		t.Helper()
		of = map[uint32]int{}
		for range n {
			of[b.run(t, frame, 1)]++
		}
		return of
	}
	split(datagram)
	was := b.look(t).Counters
	got := verdicts(datagram, 6*depth)
	is := b.look(t).Counters
	dropped := is.NoRoom - was.NoRoom
	if got[xdpRedirect] != depth || got[xdpPass] != depth {
		t.Errorf("%d datagrams are under way by the lane, and %d here", got[xdpRedirect], got[xdpPass])
	}
	if int(dropped) != got[xdpDrop] || got[xdpDrop] == 0 {
		t.Errorf("%d were dropped, and %d counted", got[xdpDrop], dropped)
	}
	if n := is.Split - was.Split; int(n) != 6*depth {
		t.Errorf("%d of %d were of a flow that was split", n, 6*depth)
	}
	var g stagesOlMerging
	if err := b.stages.OlMergings.Lookup(uint32(place), &g); err != nil {
		t.Fatal(err)
	}
	// The merge has all: numbers were given to what was sent only.
	g.Next = g.First + uint32(got[xdpPass]+got[xdpRedirect])
	if err := b.stages.OlMergings.Put(uint32(place), g); err != nil {
		t.Fatal(err)
	}
	// What is dropped is decided for a few at a time.
	verdicts(datagram, few)
	if got := verdicts(datagram, depth); got[xdpDrop] != 0 {
		t.Errorf("there is no room where nothing is under way: %v", got)
	}
	// Nothing has come out for long.
	verdicts(datagram, 2*depth)
	if got := verdicts(datagram, few); got[xdpDrop] != few {
		t.Errorf("there is room for more: %v", got)
	}
	var cpu stagesOlCpu
	if err := b.stages.OlCpus.Lookup(uint32(b.core), &cpu); err != nil {
		t.Fatal(err)
	}
	cpu.Now += uint64(2 * lostAfter)
	if err := b.stages.OlCpus.Put(uint32(b.core), cpu); err != nil {
		t.Fatal(err)
	}
	verdicts(datagram, few)
	if got := verdicts(datagram, 3*depth); got[xdpDrop] != 0 {
		t.Errorf("what is lost is waited for: %v", got)
	}
	// TCP has a window.
	split(segment)
	if got := verdicts(segment, 3*depth); got[xdpDrop] != 0 || got[xdpRedirect] == 0 {
		t.Errorf("of TCP: %v", got)
	}
}
