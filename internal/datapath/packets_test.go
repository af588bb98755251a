// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/table"

	"github.com/overlane/overlane/internal/encap"
)

// bench runs frames through one loaded program on one core and tells what it did
// to them.
type bench struct {
	*Datapath
	prog  *ebpf.Program
	stage Stage // to whose lanes the program sends
	core  int
	key   [2]uint64
}

// Lanes of cores that do not exist have no load, so that a flow is on the first
// of its two candidates, and a test can tell which that is.
const (
	firstLaneCore = 256
	tableLanes    = 7
)

// pinned keeps the test on one core: slots and fragments are remembered per core.
func pinned(t testing.TB) (core int) {
	t.Helper()
	runtime.LockOSThread()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		t.Fatal(err)
	}
	for !was.IsSet(core) {
		core++
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &was); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return core
}

// newBench loads the datapath with the table's tunnels and the lanes of one
// stage.
func newBench(t testing.TB, stage Stage) *bench {
	t.Helper()
	b := &bench{Datapath: load(t), stage: stage, core: pinned(t)}
	b.prog = b.stages.OlUnderlayIn
	if stage == NIC {
		if err := b.needXDP(); err != nil {
			t.Fatal(err)
		}
		b.prog = b.xdp.OlUnderlayXdp
	}
	var devs []TunnelDevice
	for i, tunnel := range table.Tunnels {
		devs = append(devs, TunnelDevice{
			Kind:     encap.Kind(tunnel.Kind),
			VNI:      uint32(tunnel.VNI),
			AnyVNI:   tunnel.VNI == oracle.AnyVNI,
			Port:     tunnel.Port,
			Ifindex:  1000 + i,
			NetnsIno: 1,
		})
	}
	var lanes []int
	for i := range tableLanes {
		lanes = append(lanes, firstLaneCore+i)
	}
	err := errors.Join(
		b.Watch(false), // polls of the machine's own traffic would end the bench's
		b.stages.OlKey0.Get(&b.key[0]),
		b.stages.OlKey1.Get(&b.key[1]),
		b.SetTunnels(devs, nil),
		b.SetLanes(stage, lanes),
		b.Steer(b.core, stage),
	)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// takes tells whether the kernel takes a frame for a test run: an Ethernet header
// has to be there, and for tcx a whole IP header if it promises one.
func (b *bench) takes(frame []byte) bool {
	least := 14
	if b.stage != NIC && len(frame) >= least {
		switch binary.BigEndian.Uint16(frame[12:]) {
		case 0x0800:
			least += 20
		case 0x86dd:
			least += 40
		}
	}
	return len(frame) >= least
}

// run sends one frame through the program and returns its verdict. segs above 1
// make it a super-packet of as many frames.
func (b *bench) run(t testing.TB, frame []byte, segs uint32) uint32 {
	t.Helper()
	opts := ebpf.RunOptions{Data: frame}
	if segs > 1 {
		const gsoSegs = 164 // of struct __sk_buff
		ctx := make([]byte, 192)
		binary.NativeEndian.PutUint32(ctx[gsoSegs:], segs)
		opts.Context = ctx
	}
	verdict, err := b.prog.Run(&opts)
	if err != nil {
		t.Fatalf("run %s on %x: %v", b.prog, frame, err)
	}
	return verdict
}

// seen is what a program can be seen to have done, as sums over all cores.
type seen struct {
	Counters Counters
	Lanes    [Stages]map[int]uint64
}

func (b *bench) look(t testing.TB) seen {
	t.Helper()
	counters, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	s := seen{Counters: counters}
	for stage := range s.Lanes {
		s.Lanes[stage] = map[int]uint64{}
		for lane := range tableLanes {
			n, err := b.LanePackets(Stage(stage), lane)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				s.Lanes[stage][lane] = n
			}
		}
	}
	return s
}

// slotOf is the slot that the flow of a frame has by the oracle.
func (b *bench) slotOf(f oracle.Flow) uint32 {
	return uint32(f.Hash(b.key[0], b.key[1]) % uint64(stagesOlLimitOL_SLOTS))
}

// laneOf is the first of the two candidates of bpf/pipeline.h.
func laneOf(slot uint32, s Stage, nr int) int {
	h := (slot+1)*0x9e3779b1 + uint32(s)*0x85ebca6b
	h = (h ^ h>>16) * 0x7feb352d
	h = (h ^ h>>15) * 0x846ca68b
	return int((h ^ h>>16) % uint32(nr))
}

// owner is the core that a slot was handled on last, or -1.
func (b *bench) owner(t testing.TB, slot uint32) int {
	t.Helper()
	var o [Stages + 1]uint16
	if err := b.stages.OlOwners.Lookup(slot, &o); err != nil {
		t.Fatal(err)
	}
	return int(o[b.stage]) - 1
}

// nextPoll lets the bench's core be in another poll than before.
func (b *bench) nextPoll(t testing.TB) {
	t.Helper()
	var cpu stagesOlCpu
	if err := b.stages.OlCpus.Lookup(uint32(b.core), &cpu); err != nil {
		t.Fatal(err)
	}
	cpu.Seq++
	if err := b.stages.OlCpus.Put(uint32(b.core), cpu); err != nil {
		t.Fatal(err)
	}
}

// forget makes a slot look like one that no core has handled and that has no
// lane, in a poll that has just begun.
func (b *bench) forget(t testing.TB, slot uint32) {
	t.Helper()
	b.nextPoll(t)
	if err := b.stages.OlOwners.Put(slot, [Stages + 1]uint16{}); err != nil {
		t.Fatal(err)
	}
	if err := b.stages.OlSlots.Put(b.slotKey(slot), stagesOlSlot{Lane: LaneLocal}); err != nil {
		t.Fatal(err)
	}
	b.turn(t, slot, LaneLocal)
}

// turn makes it the slot's first, or its second where it has a lane.
func (b *bench) turn(t testing.TB, slot uint32, lane uint8) {
	t.Helper()
	now, err := Now()
	if err != nil {
		t.Fatal(err)
	}
	turn := stagesOlTurn{Met: uint16(now>>24) - 1000} // long ago: not with the clock's own turn of 18 minutes
	if lane != LaneLocal {
		turn.Turn = 1<<8 | uint64(lane+1)
	}
	if err := b.stages.OlTurns.Put(uint32(b.stage)*uint32(stagesOlLimitOL_SLOTS)+slot, turn); err != nil {
		t.Fatal(err)
	}
}

// slotKey is where the map of slots keeps what the bench's core knows of one.
func (b *bench) slotKey(slot uint32) uint32 {
	return uint32(b.core*Stages+int(b.stage))*uint32(stagesOlLimitOL_SLOTS) + slot
}

// seeded is a source of random numbers; TEST_SEED repeats a run.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
