// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
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
		b.StartLanes([]int{b.core}), b.SetLanes(NIC, []int{b.core}), b.SetBranches(NIC, []Branches{{Cores: []int{b.core}}}, func(int) int { return 0 }),
		b.SetSplit(Split{UDP: true, Numbered: true, TCP: true, Batch: 64, At: NIC, Here: true}),
	)
	if err != nil {
		t.Fatal(err)
	}
	frame := func(l4 packet.Layer) []byte {
		return tunnelled(packet.IPv4{}, l4, packet.Raw(make([]byte, 64)))
	}
	datagram, segment := frame(packet.UDP{Src: 1, Dst: 2}), frame(packet.TCP{Src: 1, Dst: 2})
	verdicts := func(frame []byte, n int) (of map[uint32]int) {
		t.Helper()
		of = map[uint32]int{}
		for range n {
			of[b.run(t, frame, 1)]++
		}
		return of
	}
	b.split(t, datagram)
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
	if err := b.stages.OlMergings.Lookup(mergingPlace, &g); err != nil {
		t.Fatal(err)
	}
	// The merge has all: numbers were given to what was sent only.
	g.Next = g.First + uint32(got[xdpPass]+got[xdpRedirect])
	if err := b.stages.OlMergings.Put(mergingPlace, g); err != nil {
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
	b.split(t, segment)
	if got := verdicts(segment, 3*depth); got[xdpDrop] != 0 || got[xdpRedirect] == 0 {
		t.Errorf("of TCP: %v", got)
	}
}

// A frame in several buffers is as heavy as all of them: by the first alone no flow of jumbo frames is an elephant.
func TestAnElephantWeighsAllBuffersOfItsFrames(t *testing.T) {
	b := newBench(t, NIC)
	err := errors.Join(
		b.StartLanes([]int{b.core}), b.SetLanes(NIC, []int{b.core}), b.SetBranches(NIC, []Branches{{Cores: []int{b.core}}}, func(int) int { return 0 }),
		b.SetSplit(Split{UDP: true, Numbered: true, Batch: 64, At: NIC, Here: true}),
	)
	if err != nil {
		t.Fatal(err)
	}
	frame := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Bytes(9000))
	at := b.split(t, frame)
	bytes := func() (e underlayOlElephant) {
		t.Helper()
		if err := b.xdp.OlElephants.Lookup(at, &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	was := bytes()
	b.run(t, frame, 1)
	if now := bytes(); now.Frames != was.Frames+1 || int(now.Bytes-was.Bytes) != len(frame) {
		t.Errorf("%d frames, %d bytes more; want one of %d", now.Frames-was.Frames, now.Bytes-was.Bytes, len(frame))
	}
}

// mergingPlace is the place among the merging of flows that are split by hand.
const mergingPlace = uint32(3)

// split has a flow be split, and nothing of it be under way. It returns its place among the elephants.
func (b *bench) split(t *testing.T, frame []byte) (at uint32) {
	t.Helper()
	b.run(t, frame, 1)
	elephants, found := cmp.Or(b.xdp.OlElephants, b.branches.OlElephants), false
	for i := range elephants.MaxEntries() {
		var e underlayOlElephant
		if err := elephants.Lookup(i, &e); err != nil {
			t.Fatal(err)
		}
		if e.Taken == 0 || e.Merge != 0 {
			continue
		}
		at, found = i, true
		const isSplit = 1 // OL_SPLIT
		e.State, e.Elephant, e.Merge, e.Key, e.Begins = isSplit, 1, uint8(mergingPlace)+1, 7, 1
		if err := elephants.Put(i, e); err != nil {
			t.Fatal(err)
		}
	}
	if !found {
		t.Fatal("the flow has no place")
	}
	if err := b.stages.OlMergings.Put(mergingPlace, stagesOlMerging{Key: 7, Ifindex: 1}); err != nil {
		t.Fatal(err)
	}
	return at
}

// Flows are split over the lanes of the set of the core that polls them, and go on behind the merge on that of
// the set; a core that has none splits none. Branches count from 0 in each set.
func TestEachCoreHasTheBranchesOfItsSet(t *testing.T) {
	datagram := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Raw(make([]byte, 64)))
	for _, at := range []Stage{NIC, Tunnel} {
		for set, want := range map[int]struct{ lane, behind int }{0: {0, 1}, 1: {1, 0}, -1: {-1, 0}} {
			t.Run(fmt.Sprintf("lanes of stage %s, set %d", at, set), func(t *testing.T) {
				b := newBench(t, at)
				if b.cpus < 2 {
					t.Skip("needs two cores for lanes")
				}
				if at == Tunnel {
					if err := b.needBranches(); err != nil {
						t.Fatal(err)
					}
					b.prog = b.branches.OlUnderlaySplit
				}
				sets := []Branches{{Cores: []int{0}, Behind: 1}, {Cores: []int{1}, Behind: 0}}
				err := errors.Join(
					b.StartLanes([]int{0, 1}), b.SetLanes(at, []int{0, 1}), b.SetLanes(Pod, []int{0, 1}),
					b.SetBranches(at, sets, func(core int) int {
						if core == b.core {
							return set
						}
						return 1 - max(set, 0) // the others have another
					}),
					b.SetSplit(Split{UDP: true, Numbered: true, TCP: true, Batch: 64, At: at}),
				)
				if err != nil {
					t.Fatal(err)
				}
				const frames = 10
				place := b.split(t, datagram)
				if set < 0 {
					b.nextPoll(t) // it is to drain
				}
				was := b.lanePackets(t, at)
				for range frames {
					b.run(t, datagram, 1)
				}
				for lane, n := range b.lanePackets(t, at) {
					due := uint64(0)
					if lane == want.lane {
						due = frames
					}
					if n-was[lane] != due {
						t.Errorf("lane %d got %d of %d packets", lane, n-was[lane], due)
					}
				}
				var e underlayOlElephant
				var g stagesOlMerging
				if err := errors.Join(cmp.Or(b.xdp.OlElephants, b.branches.OlElephants).Lookup(place, &e), b.stages.OlMergings.Lookup(mergingPlace, &g)); err != nil {
					t.Fatal(err)
				}
				const here, joins = 1 << MaxBranches, 2 // OL_BRANCH_HERE, OL_JOINS
				if set < 0 {
					if e.State != joins || e.Used&^here != 0 {
						t.Errorf("without branches the flow is in state %d, on branches %b", e.State, e.Used)
					}
					return
				}
				if e.Used != 1 || g.Sent[0]-g.First != frames {
					t.Errorf("branches %b hold packets, %d were sent to the first", e.Used, g.Sent[0]-g.First)
				}
				if int(g.Behind) != want.behind {
					t.Errorf("behind the merge it goes on on lane %d, want %d", g.Behind, want.behind)
				}
			})
		}
	}
}

// A fragment of another flow between two packets of a split one, in one poll, is none to compare the second with.
func TestAFragmentBetweenPacketsOfASplitFlowChangesNothing(t *testing.T) {
	for name, layers := range map[string][]packet.Layer{
		"first": {packet.UDP{Src: 3, Dst: 4}, packet.Bytes(64)},
		"later": {packet.Bytes(64)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, NIC)
			err := errors.Join(
				b.StartLanes([]int{b.core}), b.SetLanes(NIC, []int{b.core}), b.SetBranches(NIC, []Branches{{Cores: []int{b.core}}}, func(int) int { return 0 }),
				b.SetSplit(Split{UDP: true, Numbered: true, TCP: true, Batch: 64, At: NIC}),
			)
			if err != nil {
				t.Fatal(err)
			}
			datagram := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Raw(make([]byte, 64)))
			ip := packet.IPv4{Proto: 17, ID: 9, More: true}
			if name == "later" {
				ip.Offset, ip.More = 1480, false
			}
			fragment := tunnelled(append([]packet.Layer{ip}, layers...)...)
			b.split(t, datagram)
			was := b.look(t).Counters.Split
			for range 8 {
				b.run(t, datagram, 1)
				b.run(t, fragment, 1)
				b.run(t, datagram, 1)
			}
			if n := b.look(t).Counters.Split - was; n != 16 {
				t.Errorf("%d of 16 packets were of a flow that is split", n)
			}
		})
	}
}

// lanePackets is what each lane of a stage got so far.
func (b *bench) lanePackets(t *testing.T, s Stage) (of [2]uint64) {
	t.Helper()
	for lane := range of {
		var err error
		if of[lane], err = b.LanePackets(s, lane); err != nil {
			t.Fatal(err)
		}
	}
	return of
}

func TestBranchesAreLanesOfTheirStage(t *testing.T) {
	b := newBench(t, Tunnel)
	whole := func(int) int { return -1 }
	for name, err := range map[string]error{
		"no lane":       b.SetBranches(Tunnel, []Branches{{Cores: []int{firstLaneCore - 1}}}, whole),
		"too many":      b.SetBranches(Tunnel, []Branches{{Cores: make([]int, MaxBranches+1)}}, whole),
		"too many sets": b.SetBranches(Tunnel, make([]Branches, MaxSets+1), whole),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := b.SetBranches(Tunnel, []Branches{{Cores: []int{firstLaneCore + 1, firstLaneCore}}}, whole); err != nil {
		t.Error(err)
	}
	if p := &b.policy; p.Branch[0] != 1 || p.Branch[1] != 0 || p.Set[0].Nr != 0 || p.SetOf[b.core] != 0 {
		t.Errorf("the first lanes are branches %d and %d, the core has set %d", p.Branch[0], p.Branch[1], p.SetOf[b.core])
	}
}

// In front of its pod a flow is sent to the resequencer for the core that it goes on on: that of the set by which
// it was split.
func TestAFlowGoesOnBehindTheMergeWhereItsSetSays(t *testing.T) {
	const tcRedirect = 7
	inner := []packet.Layer{packet.IPv4{}, packet.TCP{Src: 1, Dst: 2}, packet.Raw(make([]byte, 64))}
	for behind := range 2 {
		b := newBench(t, Tunnel)
		if b.cpus < 2 {
			t.Skip("needs two cores for lanes")
		}
		err := errors.Join(
			b.needBranches(), b.SetLanes(Tunnel, []int{0, 1}), b.SetLanes(Pod, []int{0, 1}),
			b.SetBranches(Tunnel, []Branches{{Cores: []int{0, 1}, Behind: behind}}, func(int) int { return 0 }),
			b.SetSplit(Split{TCP: true, Batch: 64, At: Tunnel}), b.SetMergeDevice(5),
		)
		if err != nil {
			t.Fatal(err)
		}
		b.prog = b.branches.OlUnderlaySplit
		at := b.split(t, tunnelled(inner...))
		elephants := b.branches.OlElephants
		var e branchesOlElephant
		if err := elephants.Lookup(at, &e); err != nil {
			t.Fatal(err)
		}
		const isSplit = 1 // OL_SPLIT
		e.State, e.Elephant, e.Merge, e.Key = 0, 1, 0, 0
		if err := elephants.Put(at, e); err != nil {
			t.Fatal(err)
		}
		b.nextPoll(t)
		b.run(t, tunnelled(inner...), 1) // joins those that are merged
		if err := elephants.Lookup(at, &e); err != nil || e.Merge == 0 {
			t.Fatalf("the flow has no place among the merging (%v)", err)
		}
		place := uint32(e.Merge) - 1
		var g stagesOlMerging
		if err := b.stages.OlMergings.Lookup(place, &g); err != nil {
			t.Fatal(err)
		}
		g.Ifindex = 1 // where the kernel says that it runs
		e.State, e.Begins = isSplit, 1
		if err := errors.Join(b.stages.OlMergings.Put(place, g), elephants.Put(at, e)); err != nil {
			t.Fatal(err)
		}
		b.run(t, tunnelled(inner...), 1)
		was := b.lanePackets(t, Pod)
		b.prog = b.branches.OlPodMerge
		if v := b.run(t, packet.Build(append([]packet.Layer{packet.Ethernet{}}, inner...)...), 1); v != tcRedirect {
			t.Fatalf("verdict %d, want redirect", v)
		}
		for lane, n := range b.lanePackets(t, Pod) {
			if got, want := n-was[lane], lane == behind; got != 0 != want {
				t.Errorf("behind on core %d: lane %d got %d packets", behind, lane, got)
			}
		}
	}
}
