// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// step is one of a core's way to a state, as the tracepoint tells it, from the
// core that takes it.
func (b *bench) step(t *testing.T, core, target, at, by int) {
	t.Helper()
	const onCPU = 1 // BPF_F_TEST_RUN_ON_CPU
	_, err := b.trace.OlCoreLeaves.Run(&ebpf.RunOptions{
		Context: [4]uint64{uint64(core), uint64(target), uint64(at)}, CPU: uint32(by), Flags: onCPU,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// refused is a step of a core's way offline that failed.
func (b *bench) refused(t *testing.T, core, at int) {
	t.Helper()
	_, err := b.trace.OlCoreStays.Run(&ebpf.RunOptions{Context: [4]uint64{uint64(core), uint64(at), uint64(at), uint64(^uint32(15))}})
	if err != nil {
		t.Fatal(err)
	}
}

// laneTaken is the lane that a new flow's packet is sent to, or LaneLocal.
func (b *bench) laneTaken(t *testing.T, frame []byte) int {
	t.Helper()
	b.forget(t, b.slotOf(classify(t, frame)))
	was := b.look(t).Lanes[b.stage]
	b.run(t, frame, 1)
	for lane, n := range b.look(t).Lanes[b.stage] {
		if n != was[lane] {
			return lane
		}
	}
	return LaneLocal
}

func TestFlowsLeaveACoreThatIsBeingTakenOffline(t *testing.T) {
	const offline, online, between = 0, 240, 100
	onEachHook(t, func(t *testing.T, b *bench) {
		if b.CPUs() < 2 {
			t.Skip("needs two cores")
		}
		if err := b.SetLanes(b.stage, []int{0, 1}); err != nil {
			t.Fatal(err)
		}
		flows := map[int][]byte{} // by the first of their candidates
		for port := uint16(1); len(flows) < 2; port++ {
			frame := flowOf(port)
			flows[laneOf(b.slotOf(classify(t, frame)), b.stage, 2)] = frame
		}
		returned := func(core int) uint32 {
			t.Helper()
			returns, err := b.Returns()
			if err != nil {
				t.Fatal(err)
			}
			return returns[core]
		}
		begin := returned(1)
		expect := func(when string, want map[int]int) {
			t.Helper()
			for _, first := range slices.Sorted(maps.Keys(want)) {
				if got := b.laneTaken(t, flows[first]); got != want[first] {
					t.Errorf("%s: the flow of lane %d is on lane %d, want %d", when, first, got, want[first])
				}
			}
		}
		expect("at first", map[int]int{0: 0, 1: 1})
		b.step(t, 1, offline, between, 0)
		expect("core 1 leaves", map[int]int{0: 0, 1: 0})
		b.step(t, 1, online, between, 0)
		expect("core 0 brings core 1 up", map[int]int{0: 0, 1: 0})
		if n := returned(1) - begin; n != 0 {
			t.Errorf("core 1 has returned %d times before it runs", n)
		}
		b.step(t, 0, offline, between, 0)
		expect("core 0 leaves, too", map[int]int{0: LaneLocal, 1: LaneLocal})
		b.step(t, 1, online, between, 1)
		expect("core 1 runs again", map[int]int{0: 1, 1: 1})
		b.step(t, 0, online, between, 0)
		expect("core 0 stays", map[int]int{0: 0, 1: 1})
		b.step(t, 1, offline, between, 0)
		expect("core 1 leaves again", map[int]int{0: 0, 1: 0})
		b.refused(t, 1, between)
		expect("core 1 may not leave", map[int]int{0: 0, 1: 1})
		if n := returned(1) - begin; n != 2 {
			t.Errorf("core 1 has returned %d times, want 2", n)
		}
	})
}
