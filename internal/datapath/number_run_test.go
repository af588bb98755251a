// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/test/parser/packet"
)

// What is whole stays on its core whenever the tunnel may have a mask for branches' second cores, which is so
// before flows are split, and after: the mask would move it, and what stays a moment later would overtake it.
func TestTheWholeStayBeforeFlowsAreSplit(t *testing.T) {
	b := newBench(t, NIC)
	ns := newNamespace(t)
	in(t, ns, "ip", "link", "add", "from", "up", "type", "veth", "peer", "name", "wire")
	in(t, ns, "ip", "link", "set", "wire", "up")
	seen := hashes(t, b, ns)
	const unsplit, second = "before a flow is split", "while flows are split"
	for _, tt := range []struct {
		name    string
		neutral bool // masks may be there
		split   Split
		stays   bool
	}{
		{unsplit, true, Split{}, true},
		{second, true, Split{UDP: true, Numbered: true, Batch: 64, At: NIC, Second: true}, true},
		{"without masks", false, Split{}, false},
	} {
		if err := errors.Join(b.SetLanes(Tunnel, []int{0}), b.SetNeutral(tt.neutral), b.SetSplit(tt.split)); err != nil {
			t.Fatal(err)
		}
		if hash := seen(t); (hash == 0) != tt.stays {
			t.Errorf("%s: a packet for the tunnel has hash %#x", tt.name, hash)
		}
	}
}

// hashes sends a packet through the hook on the underlay, and returns the hash by which a mask would go.
func hashes(t *testing.T, b *bench, ns *netns.Handle) func(*testing.T) uint32 {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const read = 1 << 32 // beside a hash: there was a packet
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.FnGetHashRecalc.Call(),
			asm.Mov.Reg(asm.R6, asm.R0),
			asm.LoadImm(asm.R7, read, asm.DWord),
			asm.Or.Reg(asm.R6, asm.R7),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
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
		l, err := b.AttachUnderlayNumber(Device{Netns: ns, Ifindex: wire.Index})
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		behind, err := link.AttachTCX(link.TCXOptions{Interface: wire.Index, Program: prog, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
		if err != nil {
			return err
		}
		t.Cleanup(func() { behind.Close() })
		from, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(from) })
		return unix.Bind(from, &unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: 0})
	})
	if err != nil {
		t.Fatal(err)
	}
	frame := tunnelled(packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}, packet.Raw(make([]byte, 64)))
	return func(t *testing.T) uint32 {
		t.Helper()
		var got uint64
		if err := m.Put(uint32(0), got); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(from, frame); err != nil {
			t.Fatal(err)
		}
		for begun := time.Now(); got&read == 0; time.Sleep(time.Millisecond) { // nothing tells of it
			if err := m.Lookup(uint32(0), &got); err != nil {
				t.Fatal(err)
			}
			if time.Since(begun) > 10*time.Second {
				t.Fatal("the packet did not come")
			}
		}
		return uint32(got)
	}
}
