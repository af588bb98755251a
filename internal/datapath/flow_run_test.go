// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/packet"
	"github.com/overlane/overlane/test/parser/table"

	"github.com/overlane/overlane/internal/encap"
)

// tunnelled is a frame that carries inner layers through the first tunnel of the
// table.
func tunnelled(inner ...packet.Layer) []byte {
	return packet.Build(append([]packet.Layer{
		packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Ethernet{},
	}, inner...)...)
}

// flowOf is a frame of a flow of its own.
func flowOf(port uint16) []byte {
	return tunnelled(packet.IPv4{}, packet.UDP{Src: port, Dst: 9})
}

func classify(t *testing.T, frame []byte) oracle.Flow {
	t.Helper()
	f, r := oracle.Classify(oracle.View{Data: frame, Whole: len(frame)}, table.Tunnels)
	if r != oracle.OK {
		t.Fatalf("%x: %s", frame, r)
	}
	return f
}

// A slot that no program has handled is on no lane; lane 0 must not pass for its own.
func TestANewFlowTakesTheFirstOfItsCandidates(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		for port := range uint16(200) {
			frame := flowOf(port)
			slot := b.slotOf(classify(t, frame))
			if b.owner(t, slot) >= 0 {
				continue
			}
			was := b.look(t)
			b.run(t, frame, 1)
			if diff := cmp.Diff(b.next(was, slot, oracle.OK, 1), b.look(t)); diff != "" {
				t.Fatalf("slot %d (-want +got):\n%s", slot, diff)
			}
		}
	})
}

// A slot keeps the number of its lane while the pipeline is off, and may find fewer
// lanes when it is on again.
func TestALaneThatIsNoMoreIsNotUsed(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		frame, slot := flowOf(0), uint32(0)
		for port := uint16(1); laneOf(slot, b.stage, tableLanes) == 0; port++ {
			frame = flowOf(port)
			slot = b.slotOf(classify(t, frame))
		}
		b.forget(t, slot)
		b.run(t, frame, 1)
		if err := b.SetLanes(b.stage, []int{firstLaneCore}); err != nil {
			t.Fatal(err)
		}
		was := b.look(t).Lanes[b.stage]
		b.nextPoll(t)
		b.run(t, frame, 1)
		now := b.look(t).Lanes[b.stage]
		delete(was, 0)
		delete(now, 0)
		if diff := cmp.Diff(was, now); diff != "" {
			t.Errorf("lanes beyond the first, of which there are none (-before +after):\n%s", diff)
		}
	})
}

// Two devices may share port and VNI, one for each outer IP version.
func TestTunnelsAreToldApartByTheOuterVersion(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		udp, vxlan := packet.UDP{Src: 7, Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}
		inner := []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 9}}
		frames := map[int][]byte{
			4: packet.Build(append([]packet.Layer{packet.Ethernet{}, packet.IPv4{}, udp, vxlan}, inner...)...),
			6: packet.Build(append([]packet.Layer{packet.Ethernet{}, packet.IPv6{}, udp, vxlan}, inner...)...),
		}
		for _, takes := range []int{0, 4, 6} {
			dev := TunnelDevice{Kind: encap.VXLAN, VNI: 42, Port: packet.VXLANPort, Ifindex: 1, NetnsIno: 1, Outer: takes}
			if err := b.SetTunnels([]TunnelDevice{dev}, nil); err != nil {
				t.Fatal(err)
			}
			for version, frame := range frames {
				was := b.look(t).Counters
				b.run(t, frame, 1)
				now := b.look(t).Counters
				got := now.Overlay+now.XDPOverlay > was.Overlay+was.XDPOverlay
				if want := takes == 0 || takes == version; got != want {
					t.Errorf("tunnel for version %d, packet of version %d: taken for its own: %t", takes, version, got)
				}
			}
		}
	})
}

// One flow is one slot, however its packets are wrapped.
func TestAFlowKeepsItsSlotAcrossPacketKinds(t *testing.T) {
	outer4 := []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}}
	outer6 := []packet.Layer{packet.Ethernet{}, packet.IPv6{}, packet.UDP{Src: 7, Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}}
	options := []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.GenevePort}, packet.Geneve{VNI: 42, Options: 24}}
	eth, tag, payload := packet.Ethernet{}, packet.VLAN{ID: 3}, packet.Bytes(40)
	udp := packet.UDP{Src: 1000, Dst: 2000}
	more := packet.Fragment{Next: 17, ID: 77, More: true}
	last := packet.Fragment{Next: 17, ID: 77, Offset: 1400}

	flows := map[string][][]packet.Layer{
		"IPv4": {
			{eth, packet.IPv4{}, udp, payload},
			{eth, packet.IPv4{}, udp},
			{eth, tag, packet.IPv4{}, udp, payload},
			{eth, packet.IPv4{Options: 12, ID: 9, Dont: true}, udp, payload},
			{eth, packet.IPv4{ID: 77, More: true}, udp, payload},
			{eth, packet.IPv4{ID: 77, Offset: 1480, More: true, Proto: 17}, payload},
			{eth, tag, packet.IPv4{ID: 77, Offset: 2960, Proto: 17}, payload},
		},
		"IPv6": {
			{eth, packet.IPv6{}, udp, payload},
			{eth, tag, packet.IPv6{}, udp, payload},
			{eth, packet.IPv6{}, packet.Fragment{ID: 5}, udp, payload},
			{eth, packet.IPv6{}, more, udp, payload},
			{eth, packet.IPv6{}, last, payload},
		},
	}
	onEachHook(t, func(t *testing.T, b *bench) {
		for name, kinds := range flows {
			slot := uint32(0)
			for i, inner := range kinds {
				for j, outer := range [][]packet.Layer{outer4, outer6, options} {
					frame := packet.Build(slices.Concat(outer, inner)...)
					if i+j == 0 {
						slot = b.slotOf(classify(t, frame))
					}
					b.forget(t, slot)
					b.run(t, frame, 1)
					if b.owner(t, slot) != b.core {
						t.Errorf("%s, packet %d in outer %d: not the slot of the flow", name, i, j)
					}
				}
			}
		}
	})
}

// What tells flows apart: each of these is on a slot of its own.
func TestFlowsThatDifferHaveSlotsOfTheirOwn(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		frames := [][]byte{
			flowOf(1),
			flowOf(2),
			tunnelled(packet.IPv4{}, packet.UDP{Src: 9, Dst: 1}),
			tunnelled(packet.IPv4{}, packet.TCP{Src: 1, Dst: 9}),
			tunnelled(packet.IPv6{}, packet.UDP{Src: 1, Dst: 9}),
			packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: 8472}, packet.VXLAN{VNI: 43},
				packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 9}),
		}
		taken := map[uint32]int{}
		for i, frame := range frames {
			slot := b.slotOf(classify(t, frame))
			if _, ok := taken[slot]; !ok { // the key of this load may let two meet
				taken[slot] = i
			}
		}
		for i, frame := range frames {
			b.run(t, frame, 1)
			for slot, j := range taken {
				if touched := b.owner(t, slot) >= 0; touched != (j <= i) {
					t.Errorf("after flow %d: slot of flow %d touched: %v", i, j, touched)
				}
			}
		}
	})
}

// A run of one flow in one poll is looked up once: what the first packet got is
// what the others get, and count as.
func TestWithinAPollAFlowKeepsWhatItsFirstPacketGot(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		for _, frame := range [][]byte{flowOf(1), tunnelled(packet.IPv6{}, packet.UDP{Src: 1, Dst: 9})} {
			slot := b.slotOf(classify(t, frame))
			b.forget(t, slot)
			b.run(t, frame, 1)
			if err := b.stages.OlOwners.Put(slot, [Stages + 1]uint16{}); err != nil {
				t.Fatal(err)
			}
			was := b.look(t)
			b.run(t, frame, 1)
			if diff := cmp.Diff(b.next(was, slot, oracle.OK, 1), b.look(t)); diff != "" {
				t.Errorf("second packet (-want +got):\n%s", diff)
			}
			if b.owner(t, slot) >= 0 {
				t.Error("the slot was looked up again within the poll")
			}
			b.nextPoll(t)
			b.run(t, frame, 1)
			if b.owner(t, slot) != b.core {
				t.Error("the slot was not looked up in the next poll")
			}
		}
	})
}

func TestASuperPacketCountsAsTheFramesItIsMadeOf(t *testing.T) {
	b := newBench(t, Tunnel)
	// The lengths of its headers are those of all its frames, or of one.
	frame := packet.Build(
		packet.Ethernet{}, packet.IPv4{LenDelta: 1000}, packet.UDP{Dst: packet.VXLANPort, LenDelta: 1000}, packet.VXLAN{VNI: 42},
		packet.Ethernet{}, packet.IPv4{LenDelta: 1000}, packet.TCP{Src: 1, Dst: 2}, packet.Bytes(100))
	flow, r := oracle.Classify(oracle.View{Data: frame}, table.Tunnels)
	if r != oracle.OK {
		t.Fatal(r)
	}
	slot := b.slotOf(flow)
	b.forget(t, slot)
	was := b.look(t)
	b.run(t, frame, 17)
	if diff := cmp.Diff(b.next(was, slot, oracle.OK, 17), b.look(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A lane of the nic stage that has its thread takes the frame.
func TestXDPRedirectsToALaneWithAThread(t *testing.T) {
	b := newBench(t, NIC)
	if err := b.StartLanes([]int{b.core}); err != nil {
		t.Fatal(err)
	}
	if err := b.SetLanes(NIC, []int{b.core}); err != nil {
		t.Fatal(err)
	}
	if v := b.run(t, flowOf(1), 1); v != xdpRedirect {
		t.Errorf("verdict %d, want redirect", v)
	}
	if v := b.run(t, tunnelled(packet.ARP{}), 1); v != xdpPass {
		t.Errorf("verdict on ARP %d, want pass", v)
	}
}

// A frame may lie in several buffers, of which a program sees the first.
func TestXDPSteersAFrameInSeveralBuffers(t *testing.T) {
	b := newBench(t, NIC)
	frame := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 9}, packet.Bytes(9000))
	slot := b.slotOf(classify(t, frame))
	b.forget(t, slot)
	was := b.look(t)
	b.run(t, frame, 1)
	if diff := cmp.Diff(b.next(was, slot, oracle.OK, 1), b.look(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Some drivers leave the first buffer empty. Such a frame passes, is counted, and tells of its NIC. Test runs fill that
// buffer, with 14 bytes at least: a program in front takes off all that is more.
func TestFramesWithoutHeadersInTheFirstBufferTellOfTheirNIC(t *testing.T) {
	const first, loopback = 14, 1 // a test run's NIC
	p := newPriority(t)
	d := p.d
	frame := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 9}, packet.Bytes(9000))
	for name, prog := range map[string]*ebpf.Program{"pipeline": d.xdp.OlUnderlayXdp, "priority": p.objs.OlPriorityXdp, "priority, two lanes": p.objs.OlPrioTwoXdp} {
		in, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1, Contents: []ebpf.MapKV{{Key: uint32(0), Value: prog}}})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cut, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R2, asm.R1, 4, asm.Word), // data_end
			asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), // data
			asm.Sub.Reg(asm.R2, asm.R1),
			asm.Sub.Imm(asm.R2, first),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.FnXdpAdjustHead.Call(),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.LoadMapPtr(asm.R2, in.FD()),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnTailCall.Call(),
			asm.Mov.Imm(asm.R0, xdpDrop), // there is no such program
			asm.Return(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer cut.Close()
		told := func(frames int) (nics []int, counted uint64) {
			t.Helper()
			was, err := d.Counters()
			if err != nil {
				t.Fatal(err)
			}
			for range frames {
				if verdict, err := cut.Run(&ebpf.RunOptions{Data: frame}); err != nil || verdict != xdpPass {
					t.Fatalf("%s: verdict %d, %v", name, verdict, err)
				}
			}
			now, err := d.Counters()
			if err != nil {
				t.Fatal(err)
			}
			if nics, err = d.Headless(); err != nil {
				t.Fatal(err)
			}
			reason := reasonNames[stagesOlReasonOL_HEADLESS]
			return nics, now.Stock[reason] - was.Stock[reason]
		}
		const enough = int(stagesOlLimitOL_HEADLESS_ENOUGH)
		if nics, n := told(enough - 1); len(nics) != 0 || n != uint64(enough-1) {
			t.Errorf("%s, one too few: NICs %v, %d counted", name, nics, n)
		}
		if nics, n := told(1); !slices.Equal(nics, []int{loopback}) || n != 1 {
			t.Errorf("%s, enough: NICs %v, %d counted", name, nics, n)
		}
		if nics, _ := told(1); len(nics) != 0 {
			t.Errorf("%s: %v are told of again, by one frame", name, nics)
		}
		if err := d.stages.OlHeadless.Delete(uint32(loopback)); err != nil {
			t.Fatal(err)
		}
	}
	// A short frame is short, not elsewhere.
	if _, err := d.xdp.OlUnderlayXdp.Run(&ebpf.RunOptions{Data: frame[:20]}); err != nil {
		t.Fatal(err)
	}
	var frames uint32
	if err := d.stages.OlHeadless.Lookup(uint32(loopback), &frames); err == nil {
		t.Errorf("a short frame counts as one in several buffers")
	}
}

// Whatever it is, and whatever becomes of it: a driver's own count may miss what XDP sends on.
func TestXDPCountsEachFrame(t *testing.T) {
	p := newPriority(t)
	d := p.d
	core := pinned(t)
	for name, prog := range map[string]*ebpf.Program{"pipeline": d.xdp.OlUnderlayXdp, "priority": p.objs.OlPriorityXdp, "priority, two lanes": p.objs.OlPrioTwoXdp} {
		came := func() uint64 {
			t.Helper()
			cores, err := d.Cores()
			if err != nil {
				t.Fatal(err)
			}
			return cores[core].Came
		}
		was := came()
		for _, frame := range [][]byte{flowOf(1), tunnelled(packet.ARP{}), packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.TCP{Dst: 443})} {
			if _, err := prog.Run(&ebpf.RunOptions{Data: frame}); err != nil {
				t.Fatal(err)
			}
		}
		if n := came() - was; n != 3 {
			t.Errorf("%s: %d of 3 frames are counted", name, n)
		}
	}
}

// Until a core may steer, and after, its packets stay where they are.
func TestACoreThatMayNotSteerLeavesPacketsAlone(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		if err := b.Steer(b.core); err != nil {
			t.Fatal(err)
		}
		was := b.look(t)
		b.run(t, flowOf(1), 1)
		want := was
		if b.stage == NIC {
			want.Counters.XDPOverlay++
		} else {
			want.Counters.Overlay++
		}
		if diff := cmp.Diff(want, b.look(t)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
