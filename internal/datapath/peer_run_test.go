// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/parser/packet"
)

// toPeer is how a packet goes straight to a pod.
type toPeer struct {
	spec    func() (*ebpf.CollectionSpec, error)
	program string
	tcIndex int32
}

// Of struct __sk_buff.
const skType, skMark, skPriority, skTCIndex, skCB, skSize = 4, 8, 32, 44, 48, 192

// read has the program be called by another, which gives the packet its tc_index, and then puts its type where a test
// run shows it.
func (p toPeer) read() (*ebpf.CollectionSpec, error) {
	spec, err := p.spec()
	if err != nil {
		return nil, err
	}
	prog := spec.Programs[p.program]
	main := *btf.FuncMetadata(&prog.Instructions[0])
	main.Name = "around"
	around := asm.Instructions{
		btf.WithFuncMetadata(asm.Mov.Reg(asm.R6, asm.R1).WithSymbol(main.Name).WithSource(prog.Instructions[0].Source()), &main),
		asm.Mov.Imm(asm.R2, p.tcIndex),
		asm.StoreMem(asm.R1, skTCIndex, asm.R2, asm.Word),
		asm.Call.Label(p.program),
		asm.LoadMem(asm.R1, asm.R6, skType, asm.Word),
		asm.StoreMem(asm.R6, skCB, asm.R1, asm.Word),
		asm.Return(),
	}
	prog.Instructions = append(around, prog.Instructions...)
	return spec, nil
}

// goes checks what a packet for another host, with mark and priority, is when the program has run on it.
func goes(t *testing.T, prog *ebpf.Program) {
	t.Helper()
	const redirect = 7
	in, out := make([]byte, skSize), make([]byte, skSize)
	binary.NativeEndian.PutUint32(in[skMark:], 0xbeef)
	binary.NativeEndian.PutUint32(in[skPriority:], 6)
	frame := packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Bytes(64))
	verdict, err := prog.Run(&ebpf.RunOptions{Data: frame, Context: in, ContextOut: out})
	if err != nil || verdict != redirect {
		t.Fatalf("verdict %d, %v; want a redirect", verdict, err)
	}
	at := func(field int) uint32 { return binary.NativeEndian.Uint32(out[field:]) }
	if at(skMark) != 0 || at(skPriority) != 0 {
		t.Errorf("it has mark %#x and priority %d of the host's", at(skMark), at(skPriority))
	}
	if at(skCB) != unix.PACKET_HOST {
		t.Errorf("its type is %d: the pod drops it", at(skCB))
	}
}

// Kernels before 6.12.29 leave what goes straight to a pod another host's, and none takes off mark and priority.
func TestWhatGoesStraightToAPodIsAsItsVethHandsItOver(t *testing.T) {
	t.Run("mode sync", func(t *testing.T) {
		p := newPriority(t)
		s := &Shortcuts{d: p.d, have: map[ShortcutKey]Shortcut{}}
		if err := p.d.loadObject("the program", toPeer{loadSync, "ol_tunnel_in", 0}.read, &s.objs, forAWhile); err != nil {
			t.Fatalf("%+v", err)
		}
		defer s.Close()
		core, loopback := pinned(t), 1 // a test run's device
		err := errors.Join(
			s.Set(map[ShortcutKey]Shortcut{{Tunnel: loopback, MAC: [6]byte(packet.Build(packet.Ethernet{})[:6])}: {Host: 7, MaxLen: 1500}}),
			// Where nothing can be read, head and tail are alike: an empty backlog.
			p.d.stages.OlCpus.Put(uint32(core), stagesOlCpu{Softnet: 1}),
			p.objs.OlPrios.Put(uint32(core), priorityOlPrio{Demoted: 1, Task: uint32(unix.Gettid())}),
		)
		if err != nil {
			t.Fatal(err)
		}
		goes(t, s.objs.OlTunnelIn)
	})
	t.Run("behind a resequencer", func(t *testing.T) {
		const tagMerged = 0x2000 // OL_TAG_MERGED
		b := newBench(t, Tunnel)
		var objs branchesObjects
		if err := b.loadObject("the program", toPeer{loadBranches, "ol_merged_in", tagMerged | int32(mergingPlace)}.read, &objs, forAWhile); err != nil {
			t.Fatalf("%+v", err)
		}
		defer objs.Close()
		if err := b.stages.OlMergings.Put(mergingPlace, stagesOlMerging{Ifindex: 7}); err != nil {
			t.Fatal(err)
		}
		goes(t, objs.OlMergedIn)
	})
}
