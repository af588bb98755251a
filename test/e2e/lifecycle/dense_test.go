// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/speed"
)

// aborted counts the frames that any XDP program aborts, or hands to no receiver, from now on.
func aborted(t *testing.T) func() uint64 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "aborted", Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}})
	must(t, err)
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "xdp_exception", Program: prog})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return func() (n uint64) {
		t.Helper()
		must(t, m.Lookup(uint32(0), &n))
		return n
	}
}

// Programs are put before a NIC that has a frame every few microseconds: they find what they
// look up there, from the first frame on. None is aborted, and what comes is in order.
func TestProgramsComeAndGoInDenseTraffic(t *testing.T) {
	rule := fmt.Sprintf("pipeline: off\npriority: {rules: [{name: load, proto: udp, port: %d}]}\n", traffic.Port)
	turn := speed.Every(t, 2)
	for _, tc := range []struct {
		name, config string
		acts         func(*testing.T, *rig.Daemon) bool
	}{
		{"tier xdp", "pipeline: forced\ntier: xdp\n", func(t *testing.T, d *rig.Daemon) bool {
			st := peek(t, d)
			return len(st.Lanes) > 0 && st.Counters.SteeredPackets > 10000
		}},
		{"priority", rule, func(t *testing.T, d *rig.Daemon) bool { return peek(t, d).Counters.LatencyPackets > 10000 }},
		{"express", "pipeline: off\nexpress: forced\n", func(t *testing.T, d *rig.Daemon) bool { return peek(t, d).Counters.ExpressPackets > 10000 }},
	} {
		if !turn() {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			b := lab(t, bed.Options{})
			count := aborted(t)
			l := rig.StartDense(t, b, 8)
			d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: tc.config + "metrics: off\nmicroflows: {mode: off}\n"})
			rig.Until(t, "it acts", func() (bool, string) { return tc.acts(t, d), fmt.Sprintf("%+v\n%s", peek(t, d), d.Log()) })
			if v := l.Verdict(); v.Reordered+v.Duplicated+v.Stale > 0 {
				t.Errorf("on the way in: %+v", v)
			}
			ends(t, d)
			l.GoesOn()
			if n := count(); n > 0 {
				t.Errorf("%d frames were aborted", n)
			}
			v := l.Stop()
			t.Logf("%d of %d came, %d late", v.Received, l.Sent(), v.Reordered)
			overtaken(t, v, 3)
		})
	}
}
