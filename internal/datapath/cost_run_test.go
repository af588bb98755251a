// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/parser/packet"
)

// BenchmarkCost tells what a program costs a packet, warm, beside an empty
// program of the same type: the best of interleaved runs, so that a noisy
// machine hurts all alike.
//
//	go test -run XXX -bench Cost ./internal/datapath
func BenchmarkCost(b *testing.B) {
	const rounds, repeat = 20, 50_000
	vxlan := []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Ethernet{}}
	frames := []struct {
		name   string
		layers []packet.Layer
	}{
		{"empty", nil},
		{"tcp", []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.TCP{Dst: 443}}},
		{"udp", []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: 443}}},
		{"udp6", []packet.Layer{packet.Ethernet{}, packet.IPv6{}, packet.UDP{Dst: 443}}},
		{"steered", append(vxlan[:5:5], packet.IPv4{}, packet.UDP{Src: 1, Dst: 2})},
		{"steered6", append(vxlan[:5:5], packet.IPv6{}, packet.TCP{Src: 1, Dst: 2})},
	}
	for _, stage := range []Stage{NIC, Tunnel} {
		b.Run(map[Stage]string{NIC: "xdp", Tunnel: "tcx"}[stage], func(b *testing.B) {
			bench := newBench(b, stage)
			empty := emptyProgram(b, bench.prog.Type())
			if err := errors.Join(bench.StartLanes([]int{bench.core}), bench.SetLanes(stage, []int{bench.core})); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				best := make([]time.Duration, len(frames))
				for range rounds {
					for i, f := range frames {
						prog := bench.prog
						if f.layers == nil {
							prog, f.layers = empty, frames[i+1].layers
						}
						frame := append(packet.Build(f.layers...), make([]byte, 64)...)
						_, took, err := prog.Benchmark(frame, repeat, nil)
						if err != nil {
							b.Fatal(err)
						}
						if best[i] == 0 || took < best[i] {
							best[i] = took
						}
					}
				}
				b.ReportMetric(0, "ns/op")
				for i, f := range frames {
					b.ReportMetric(float64(best[i].Nanoseconds()), fmt.Sprintf("%s-ns", f.name))
					b.ReportMetric(float64(best[i])/float64(best[0]), fmt.Sprintf("%s/empty", f.name))
				}
			}
		})
	}
}

func emptyProgram(b *testing.B, typ ebpf.ProgramType) *ebpf.Program {
	b.Helper()
	spec := &ebpf.ProgramSpec{
		Type:         typ,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
		License:      "GPL",
	}
	if typ == ebpf.XDP {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	prog, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := prog.Close(); err != nil {
			b.Error(err)
		}
	})
	return prog
}
