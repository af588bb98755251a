// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/packet"
	"github.com/overlane/overlane/test/parser/table"
)

// arriving attaches a program to a device, and returns what sends a frame there, so many bytes of it in the first buffer
// (all of them, if the frame is shorter than a page). It tells by which hash a mask would go behind the program, and
// how many bytes are in that buffer then.
func arriving(t *testing.T, attach func(Device) (io.Closer, error)) func(t *testing.T, frame []byte, first int) (hash uint32, left int) {
	t.Helper()
	ns := newNamespace(t)
	in(t, ns, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6") // the kernel sends nothing of its own
	in(t, ns, "ip", "link", "add", "from", "mtu", "9000", "type", "veth", "peer", "name", "wire", "mtu", "9000")
	in(t, ns, "ip", "link", "set", "wire", "up")
	in(t, ns, "ip", "link", "set", "from", "up") // the second has a carrier, and so a queue, at once
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R7, asm.R1, 80, asm.Word), // data_end
			asm.LoadMem(asm.R2, asm.R1, 76, asm.Word), // data
			asm.Sub.Reg(asm.R7, asm.R2),
			asm.LSh.Imm(asm.R7, 32),
			asm.FnGetHashRecalc.Call(),
			asm.Or.Reg(asm.R7, asm.R0),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.R0, 0, asm.R7, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	var from int
	err = ns.Do(func() error {
		wire, err := net.InterfaceByName("wire")
		if err != nil {
			return err
		}
		dev, err := net.InterfaceByName("from")
		if err != nil {
			return err
		}
		l, err := attach(Device{Netns: ns, Ifindex: wire.Index})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		after, err := link.AttachTCX(link.TCXOptions{Interface: wire.Index, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
		if err != nil {
			return err
		}
		t.Cleanup(func() { after.Close() })
		from, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(from) })
		if err := unix.SetsockoptInt(from, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		return unix.Bind(from, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: 0})
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, frame []byte, first int) (uint32, int) {
		t.Helper()
		var got uint64
		if err := m.Put(uint32(0), got); err != nil {
			t.Fatal(err)
		}
		header := make([]byte, 10) // struct virtio_net_hdr
		binary.NativeEndian.PutUint16(header[2:], uint16(first))
		if _, err := unix.Write(from, append(header, frame...)); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); got == 0; time.Sleep(time.Millisecond) { // nothing tells of it
			if err := m.Lookup(uint32(0), &got); err != nil {
				t.Fatal(err)
			}
			if time.Since(begun) > 10*time.Second {
				t.Fatal("the packet did not come")
			}
		}
		return uint32(got), int(got >> 32)
	}
}

// Where a driver leaves only headers in the first buffer, what the hook there reads is not pulled into it: not of
// packets that it does not know, nor of those that it steers, which it must find all the same.
func TestPacketsAreReadAsTheyLie(t *testing.T) {
	data := packet.Bytes(5000)
	eth, inner := packet.Ethernet{}, []packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 9}, data}
	to := packet.UDP{Dst: packet.VXLANPort}
	frames := map[string][]byte{
		"TCP":             packet.Build(eth, packet.IPv4{}, packet.TCP{Dst: 443}, data),
		"TCP over IPv6":   packet.Build(eth, packet.IPv6{}, packet.TCP{Dst: 443}, data),
		"UDP":             packet.Build(eth, packet.IPv4{}, packet.UDP{Dst: 443}, data),
		"VXLAN":           packet.Build(append([]packet.Layer{eth, packet.IPv4{}, to, packet.VXLAN{VNI: 42}}, inner...)...),
		"VXLAN over IPv6": packet.Build(append([]packet.Layer{eth, packet.IPv6{}, to, packet.VXLAN{VNI: 42}}, inner...)...),
		"the longest headers": packet.Build(eth, packet.IPv6{}, packet.UDP{Dst: packet.GenevePort}, packet.Geneve{VNI: 42, Options: 252},
			eth, packet.VLAN{}, packet.IPv4{Options: 40}, packet.UDP{Src: 1, Dst: 9}, data),
	}
	b := newBench(t, Tunnel)
	if err := b.needBranches(); err != nil {
		t.Fatal(err)
	}
	for hook, attach := range map[string]func(Device) (io.Closer, error){"steer": b.AttachUnderlay, "split": b.AttachUnderlaySplit, "number": b.AttachUnderlayNumber} {
		t.Run(hook, func(t *testing.T) {
			send := arriving(t, attach)
			for name, frame := range frames {
				_, r := oracle.Classify(oracle.View{Data: frame, Whole: len(frame)}, table.Tunnels)
				for _, first := range []int{14, 34, 42, 50, 54, 62, 100, 192, 400} {
					was := b.look(t).Counters
					if _, left := send(t, frame, first); left != first {
						t.Errorf("%s: the first buffer has %d bytes, and had %d", name, left, first)
					}
					now := b.look(t).Counters
					if knows := now.Overlay > was.Overlay; hook != "number" && knows != (r == oracle.OK) {
						t.Errorf("%s, %d bytes in the first buffer: taken for a tunnel's: %t, want %s", name, first, knows, r)
					}
				}
			}
		})
	}
}

// In front of its pod a split flow's packet is known as well by headers that are not in the first buffer.
func TestSplitFlowsAreKnownByHeadersInAnyBuffer(t *testing.T) {
	b := newBench(t, Tunnel)
	inner := []packet.Layer{packet.IPv4{}, packet.TCP{Src: 1, Dst: 2}, packet.Bytes(5000)}
	frame := packet.Build(append([]packet.Layer{packet.Ethernet{}}, inner...)...)
	flow := classify(t, tunnelled(inner...))
	flow.VNI = 0 // as in whatever tunnel
	key, place := flow.Hash(b.key[0], ^b.key[1])|1, uint32(3)
	if err := errors.Join(b.needBranches(), b.SetMergeDevice(5), b.stages.OlMergingOf.Put(key, place)); err != nil {
		t.Fatal(err)
	}
	send := arriving(t, func(d Device) (io.Closer, error) {
		return b.attachTCX(d, ebpf.AttachTCXIngress, b.branches.OlPodMerge)
	})
	for _, first := range []int{14, 34, 54} {
		if err := b.stages.OlMergings.Put(place, stagesOlMerging{Key: key}); err != nil {
			t.Fatal(err)
		}
		if _, left := send(t, frame, first); left != first {
			t.Errorf("the first buffer has %d bytes, and had %d", left, first)
		}
		var g stagesOlMerging
		if err := b.stages.OlMergings.Lookup(place, &g); err != nil {
			t.Fatal(err)
		}
		if g.Ifindex == 0 {
			t.Errorf("%d bytes in the first buffer: the flow is not known", first)
		}
	}
}
