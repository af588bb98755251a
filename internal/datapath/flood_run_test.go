// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/overlane/overlane/test/parser/oracle"
	"github.com/overlane/overlane/test/parser/packet"
)

// flood is more flows than there are slots, or fragments that are remembered, many times over.
const flood = 100_000

// A sender whose packets are a flow each finds the same room as a few flows do, spread over
// the lanes as theirs are; nothing is dropped, or sent by the stock path, for want of it.
func TestAFloodOfFlowsFindsRoom(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		was := b.look(t)
		for n := range flood {
			if v := b.run(t, tunnelled(packet.IPv4{}, packet.UDP{Src: uint16(n), Dst: uint16(n >> 16)}), 1); v != b.verdict() {
				t.Fatalf("flow %d: verdict %d, want %d", n, v, b.verdict())
			}
		}
		now := b.look(t)
		all := uint64(0)
		for lane := range tableLanes {
			n := now.Lanes[b.stage][lane] - was.Lanes[b.stage][lane]
			if all += n; n < flood/tableLanes*8/10 || n > flood/tableLanes*12/10 {
				t.Errorf("lane %d of %d has %d of %d flows", lane, tableLanes, n, flood)
			}
		}
		if all != flood {
			t.Errorf("%d of %d flows have a lane", all, flood)
		}
	})
}

// The same of fragmented datagrams, each of which is remembered: the fragments of the last are known,
// those of the first, which were forgotten for later ones, take the stock path.
func TestAFloodOfFragmentsFindsRoom(t *testing.T) {
	onEachHook(t, func(t *testing.T, b *bench) {
		fragment := func(n, offset int) []byte {
			p := packet.IPv4{Proto: 17, ID: uint16(n), Offset: offset, More: offset == 0}
			if offset > 0 {
				return tunnelled(p, packet.Bytes(64))
			}
			return tunnelled(p, packet.UDP{Src: 7, Dst: 9}, packet.Bytes(64))
		}
		was := b.look(t)
		const datagrams = 1 << 16
		for n := range datagrams {
			if v := b.run(t, fragment(n, 0), 1); v != b.verdict() {
				t.Fatalf("fragment %d: verdict %d, want %d", n, v, b.verdict())
			}
		}
		lanes := func(s seen) (n uint64) {
			for lane := range tableLanes {
				n += s.Lanes[b.stage][lane]
			}
			return n
		}
		now := b.look(t)
		if n := lanes(now) - lanes(was); n != datagrams {
			t.Errorf("%d of %d first fragments have a lane", n, datagrams)
		}
		b.run(t, fragment(datagrams-1, 1480), 1)
		if n := lanes(b.look(t)) - lanes(now); n != 1 {
			t.Error("the second fragment of the last datagram is not known")
		}
		now = b.look(t)
		if v := b.run(t, fragment(0, 1480), 1); v != b.verdict() {
			t.Errorf("a fragment whose first was forgotten: verdict %d, want %d", v, b.verdict())
		}
		after := b.look(t)
		if n := lanes(after) - lanes(now); n != 0 {
			t.Error("the second fragment of the first datagram is still known")
		}
		if b.stage == Tunnel {
			reason := string(oracle.FragmentUntracked)
			if after.Counters.Stock[reason] != now.Counters.Stock[reason]+1 {
				t.Errorf("it is not counted as %s: %v", reason, after.Counters.Stock)
			}
		}
	})
}

// A sender that has found flows that share a slot on one node has found nothing for another one, or for
// the same after a restart: the hash has a key, and each load its own.
func TestFlowsThatShareASlotDoSoUnderOneKey(t *testing.T) {
	b := newBench(t, Tunnel)
	other := &bench{Datapath: load(t)}
	if err := other.stages.OlKey0.Get(&other.key[0]); err != nil {
		t.Fatal(err)
	}
	if err := other.stages.OlKey1.Get(&other.key[1]); err != nil {
		t.Fatal(err)
	}
	const want = 32
	var crowd []oracle.Flow
	first := b.slotOf(classify(t, flowOf(0)))
	for n := 0; len(crowd) < want; n++ {
		flow := classify(t, tunnelled(packet.IPv4{}, packet.UDP{Src: uint16(n), Dst: uint16(n >> 16)}))
		if b.slotOf(flow) == first {
			crowd = append(crowd, flow)
		}
	}
	slots := map[uint32]bool{}
	for _, flow := range crowd {
		slots[other.slotOf(flow)] = true
	}
	// Of 32 thrown on 4096 places, hardly two meet.
	if len(slots) < want-4 {
		t.Errorf("%d flows of one slot are on %d slots under another key", want, len(slots))
	}
}
