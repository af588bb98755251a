// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/netns"
)

// readSoftnet reads a backlog's position as the order guard does: napi_poll
// gives the backlog's NAPI, softnet_data is around it.
func readSoftnet(h *netns.Handle) error {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return err
	}
	offset := func(of, member string) (int32, error) {
		var s *btf.Struct
		if err := spec.TypeByName(of, &s); err != nil {
			return 0, err
		}
		for _, m := range s.Members {
			if m.Name == member {
				return int32(m.Offset.Bytes()), nil
			}
		}
		return 0, fmt.Errorf("%s has no %s", of, member)
	}
	dev, e1 := offset("napi_struct", "dev")
	backlog, e2 := offset("softnet_data", "backlog")
	cpu, e3 := offset("softnet_data", "cpu")
	head, e4 := offset("softnet_data", "input_queue_head")
	tail, e5 := offset("softnet_data", "input_queue_tail")
	if err := errors.Join(e1, e2, e3, e4, e5); err != nil {
		return err
	}
	// [0] polls of a backlog whose softnet_data names this core and whose
	// head is not beyond its tail, [1] other polls without a device.
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		return err
	}
	defer m.Close()
	read := func(field int32, to int16) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(to)),
			asm.Mov.Imm(asm.R2, 4),
			asm.Mov.Reg(asm.R3, asm.R6), asm.Add.Imm(asm.R3, field-backlog),
			asm.FnProbeReadKernel.Call(),
			asm.JNE.Imm(asm.R0, 0, "out"),
		}
	}
	insns := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.LoadMem(asm.R1, asm.R6, int16(dev), asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "out"),
	}
	insns = append(insns, read(cpu, -4)...)
	insns = append(insns, read(head, -8)...)
	insns = append(insns, read(tail, -12)...)
	insns = append(insns,
		asm.StoreImm(asm.RFP, -16, 1, asm.Word),
		asm.FnGetSmpProcessorId.Call(),
		asm.LoadMem(asm.R1, asm.RFP, -4, asm.Word),
		asm.JNE.Reg32(asm.R0, asm.R1, "count"),
		asm.LoadMem(asm.R1, asm.RFP, -12, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, -8, asm.Word),
		asm.Sub.Reg32(asm.R1, asm.R2),
		asm.JSLT.Imm32(asm.R1, 0, "count"),
		asm.StoreImm(asm.RFP, -16, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()).WithSymbol("count"),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -16),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "napi_poll", License: "GPL", Instructions: insns,
	})
	if err != nil {
		return err
	}
	defer prog.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: prog})
	if err != nil {
		return err
	}
	defer l.Close()
	// What crosses lo is received by this core's backlog.
	err = h.Do(func() error {
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 100 {
			c.Write([]byte("x")) // refused: no process listens
		}
		return nil
	})
	if err != nil {
		return err
	}
	var good, bad uint64
	if err := errors.Join(m.Lookup(uint32(0), &good), m.Lookup(uint32(1), &bad)); err != nil {
		return err
	}
	if good == 0 || bad != 0 {
		return fmt.Errorf("%d polls read right, %d wrong", good, bad)
	}
	return nil
}
