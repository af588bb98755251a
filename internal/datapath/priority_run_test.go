// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/test/parser/packet"
)

// newPriority loads the hook with the table's tunnels, and without lanes: no core can
// send bulk anywhere, so that a frame's class is all that there is to see.
func newPriority(t testing.TB) *Priority {
	t.Helper()
	b := newBench(t, NIC)
	p, err := b.LoadPriority()
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%v\n%+v", err, ve)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// nextPoll ends the poll that is under way on every core.
func (p *Priority) nextPoll(t testing.TB) {
	t.Helper()
	for cpu := range uint32(p.d.cpus) {
		var v priorityOlPrio
		if err := p.objs.OlPrios.Lookup(cpu, &v); err != nil {
			t.Fatal(err)
		}
		v.Polls++
		if err := p.objs.OlPrios.Put(cpu, &v); err != nil {
			t.Fatal(err)
		}
	}
}

// class is what the hook takes a frame for, in a poll of its own; empty if it does
// not judge it.
func (p *Priority) class(t testing.TB, frame []byte) rules.Class {
	t.Helper()
	p.nextPoll(t)
	return p.classInPoll(t, frame)
}

func (p *Priority) classInPoll(t testing.TB, frame []byte) rules.Class {
	t.Helper()
	was, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	verdict, err := p.objs.OlPriorityXdp.Run(&ebpf.RunOptions{Data: frame})
	if err != nil || verdict != xdpPass {
		t.Fatalf("verdict %d, %v; without a lane everything passes", verdict, err)
	}
	now, err := p.Counters()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case now.Latency == was.Latency+1 && now.Bulk == was.Bulk:
		return rules.Latency
	case now.Bulk == was.Bulk+1 && now.Latency == was.Latency:
		return rules.Bulk
	case now != was:
		t.Fatalf("one frame made %+v of %+v", now, was)
	}
	return ""
}

func (p *Priority) use(t testing.TB, list ...rules.Rule) {
	t.Helper()
	for i := range list {
		list[i].Name = fmt.Sprintf("r%d", i)
		if err := list[i].Finish(); err != nil {
			t.Fatal(err)
		}
	}
	table, err := rules.Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetRules(table); err != nil {
		t.Fatal(err)
	}
}

// inVXLAN is a frame of the table's tunnel with VNI 42.
func inVXLAN(vni uint32, inner ...packet.Layer) []byte {
	return packet.Build(append([]packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: vni}, packet.Ethernet{}}, inner...)...)
}

func TestRulesGiveFlowsTheirClass(t *testing.T) {
	p := newPriority(t)
	vni, ef := uint32(42), uint8(46)
	other := uint32(43)
	a, b := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.9.9.9")
	a6, b6 := netip.MustParseAddr("fd00:1::5"), netip.MustParseAddr("fd00:2::6")
	udp := inVXLAN(42, packet.IPv4{Src: a, Dst: b}, packet.UDP{Src: 1000, Dst: 2000})
	tcp := inVXLAN(42, packet.IPv4{Src: a, Dst: b}, packet.TCP{Src: 1000, Dst: 2000})
	udp6 := inVXLAN(42, packet.IPv6{Src: a6, Dst: b6}, packet.UDP{Src: 1000, Dst: 2000})
	icmp := inVXLAN(42, packet.IPv4{Src: a, Dst: b, Proto: 1}, packet.Bytes(16))
	marked := append([]byte(nil), udp...)
	marked[14+20+8+8+14+1] = ef << 2 // of the inner header; checksums are not looked at
	frames := map[string][]byte{"udp": udp, "tcp": tcp, "udp6": udp6, "icmp": icmp, "marked": marked}
	names := []string{"udp", "tcp", "udp6", "icmp", "marked"}

	prefix := netip.MustParsePrefix
	for _, c := range []struct {
		what    string
		rules   []rules.Rule
		latency []string // the others are bulk
	}{
		{"none", nil, nil},
		{"protocol", []rules.Rule{{Proto: 6}}, []string{"tcp"}},
		{"protocol without ports", []rules.Rule{{Proto: 1}}, []string{"icmp"}},
		{"source port", []rules.Rule{{Port: 1000}}, []string{"udp", "tcp", "udp6", "marked"}},
		{"destination port", []rules.Rule{{Port: 2000, Proto: 17}}, []string{"udp", "udp6", "marked"}},
		{"another port", []rules.Rule{{Port: 1001}}, nil},
		{"no port is not port 0", []rules.Rule{{Port: 1001}, {Proto: 17, Port: 2000}}, []string{"udp", "udp6", "marked"}},
		{"source prefix", []rules.Rule{{Prefix: prefix("10.1.0.0/16")}}, []string{"udp", "tcp", "icmp", "marked"}},
		{"destination address", []rules.Rule{{Prefix: prefix("10.9.9.9/32")}}, []string{"udp", "tcp", "icmp", "marked"}},
		{"another prefix", []rules.Rule{{Prefix: prefix("10.2.0.0/16")}}, nil},
		{"every IPv4 address", []rules.Rule{{Prefix: prefix("0.0.0.0/0")}}, []string{"udp", "tcp", "icmp", "marked"}},
		{"IPv6 prefix", []rules.Rule{{Prefix: prefix("fd00:2::/33")}}, []string{"udp6"}},
		{"another IPv6 prefix", []rules.Rule{{Prefix: prefix("fd00:3::/32")}}, nil},
		{"VNI", []rules.Rule{{VNI: &vni, Proto: 6}}, []string{"tcp"}},
		{"another VNI", []rules.Rule{{VNI: &other}}, nil},
		{"DSCP", []rules.Rule{{DSCP: &ef}}, []string{"marked"}},
		{"all fields", []rules.Rule{{Proto: 17, Port: 2000, Prefix: prefix("10.1.2.3/32"), VNI: &vni, DSCP: &ef}}, []string{"marked"}},
		{"the first wins", []rules.Rule{{Port: 1000, Proto: 6, Class: rules.Bulk}, {Prefix: prefix("10.0.0.0/8")}}, []string{"udp", "icmp", "marked"}},
		{"the first wins, the other way round", []rules.Rule{{Prefix: prefix("10.0.0.0/8")}, {Port: 1000, Proto: 6, Class: rules.Bulk}}, []string{"udp", "tcp", "icmp", "marked"}},
	} {
		p.use(t, c.rules...)
		for _, name := range names {
			want := rules.Bulk
			if slices.Contains(c.latency, name) {
				want = rules.Latency
			}
			if got := p.class(t, frames[name]); got != want {
				t.Errorf("%s: %s is %s, want %s", c.what, name, got, want)
			}
		}
	}
}

// Fragments without ports have the class that the first fragment's ports give.
func TestFragmentsHaveTheClassOfTheirDatagram(t *testing.T) {
	p := newPriority(t)
	p.use(t, rules.Rule{Port: 2000})
	first := inVXLAN(42, packet.IPv4{ID: 7, More: true}, packet.UDP{Src: 1, Dst: 2000}, packet.Bytes(64))
	later := inVXLAN(42, packet.IPv4{ID: 7, Offset: 72, Proto: 17}, packet.Bytes(64))
	stranger := inVXLAN(42, packet.IPv4{ID: 8, Offset: 72, Proto: 17}, packet.Bytes(64))
	for name, c := range map[string]struct {
		frame []byte
		want  rules.Class
	}{"stranger": {stranger, rules.Bulk}} {
		if got := p.class(t, c.frame); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for i, frame := range [][]byte{first, later, later} {
		if got := p.class(t, frame); got != rules.Latency {
			t.Errorf("fragment %d is %s", i, got)
		}
		// The pipeline's hook on the same core remembers the datagram, too.
		if _, err := p.d.stages.OlUnderlayIn.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.class(t, stranger); got != rules.Bulk {
		t.Errorf("a fragment whose first was not seen is %s", got)
	}
}

// New rules are in force from the next poll on, not in the middle of one.
func TestRulesChangeBetweenPolls(t *testing.T) {
	p := newPriority(t)
	one := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2000})
	two := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 2, Dst: 2000})
	if got := p.class(t, one); got != rules.Bulk {
		t.Fatal(got)
	}
	p.use(t, rules.Rule{Port: 2000})
	for _, frame := range [][]byte{one, two} {
		if got := p.classInPoll(t, frame); got != rules.Bulk {
			t.Errorf("in the poll that was under way: %s", got)
		}
	}
	if got := p.class(t, two); got != rules.Latency {
		t.Errorf("in the next poll: %s", got)
	}
	// What the old rules say is gone for good when the table is used again.
	p.use(t, rules.Rule{Port: 1})
	p.use(t)
	if got := p.class(t, one); got != rules.Bulk {
		t.Errorf("without rules: %s", got)
	}
}

// What is no flow of a tunnel of ours has no class, and passes, if no rule asks for it.
func TestFramesOfNoTunnelHaveNoClass(t *testing.T) {
	p := newPriority(t)
	p.use(t, rules.Rule{Proto: 17})
	for name, frame := range map[string][]byte{
		"no tunnel":      packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}),
		"another VNI":    inVXLAN(41, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2}),
		"no IP inside":   inVXLAN(42, packet.ARP{}),
		"outer fragment": packet.Build(packet.Ethernet{}, packet.IPv4{More: true}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}),
	} {
		if got := p.class(t, frame); got != "" {
			t.Errorf("%s is %s", name, got)
		}
	}
}

// Flows of the host have a class as soon as a rule may fit them, and keep it.
func TestFlowsOfTheHostHaveAClass(t *testing.T) {
	p := newPriority(t)
	vni := uint32(42)
	udp := packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2})
	tcp6 := packet.Build(packet.Ethernet{}, packet.IPv6{}, packet.TCP{Src: 1, Dst: 2})
	first := packet.Build(packet.Ethernet{}, packet.IPv4{ID: 3, More: true}, packet.UDP{Src: 1, Dst: 2}, packet.Bytes(64))
	later := packet.Build(packet.Ethernet{}, packet.IPv4{ID: 3, Offset: 72, Proto: 17}, packet.Bytes(64))
	inside := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2})
	fragment := packet.Build(packet.Ethernet{}, packet.IPv4{ID: 4, More: true}, packet.UDP{Src: 1, Dst: packet.VXLANPort}, packet.VXLAN{VNI: 42}, packet.Bytes(64))
	rest := packet.Build(packet.Ethernet{}, packet.IPv4{ID: 4, Offset: 80, Proto: 17}, packet.Bytes(64))
	many := packet.Build(packet.Ethernet{Multicast: true}, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2})
	clock := func(from, to uint16) []byte {
		return packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.UDP{Src: from, Dst: to}, packet.Bytes(48))
	}
	ntp := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 123})
	both, host, overlay := rules.Rule{Port: 2, Network: rules.Any}, rules.Rule{Port: 2, Network: rules.Host}, rules.Rule{Port: 2}

	for _, c := range []struct {
		what  string
		rule  rules.Rule
		frame []byte
		want  rules.Class
	}{
		{"a rule for tunnels", overlay, udp, ""},
		{"a rule with a VNI", rules.Rule{VNI: &vni}, udp, ""},
		{"a rule for both", both, udp, rules.Latency},
		{"a rule for both, IPv6", both, tcp6, rules.Latency},
		{"a rule for both, inside", both, inside, rules.Latency},
		{"a rule for the host", host, udp, rules.Latency},
		{"a rule for the host, inside", host, inside, rules.Bulk},
		{"a rule for the host, first fragment", host, first, rules.Latency},
		{"a rule for the host, later fragment", host, later, rules.Latency},
		{"first fragment of a tunnel's packet", both, fragment, ""},
		{"later fragment of a tunnel's packet", both, rest, ""},
		{"multicast", both, many, ""},
		{"a question for the time", both, clock(1, 123), ""},
		{"an answer", both, clock(123, 1), ""},
		{"PTP event", both, clock(319, 319), ""},
		{"PTP, general", both, clock(320, 320), ""},
		{"a question for the time that a rule names", rules.Rule{Port: 123, Network: rules.Host}, clock(1, 123), rules.Latency},
		{"the same inside", both, ntp, rules.Bulk},
		{"what comes from a port of PTP's", both, clock(319, 1), rules.Bulk},
		{"a rule for tunnels, after one for the host", overlay, udp, rules.Bulk},
	} {
		p.use(t, c.rule)
		if got := p.class(t, c.frame); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// A frame whose head is like the last one's is not parsed: whatever in it could make a
// difference must be looked at.
func TestNoFrameIsTakenForAnotherByItsHead(t *testing.T) {
	vni, ef := uint32(42), uint8(46)
	a := netip.MustParsePrefix("10.1.2.3/32")
	src, dst := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.9.9.9")
	inner := func(l4 packet.Layer) []packet.Layer {
		return []packet.Layer{packet.Ethernet{}, packet.IPv4{Src: src, Dst: dst}, l4, packet.Bytes(32)}
	}
	outer := func(layers ...packet.Layer) []packet.Layer {
		return append([]packet.Layer{packet.Ethernet{}, packet.IPv4{}, packet.UDP{Dst: packet.VXLANPort}, packet.VXLAN{VNI: vni}}, layers...)
	}
	udp := packet.UDP{Src: 1000, Dst: 2000}
	for name, c := range map[string]struct {
		rule  rules.Rule
		frame []byte
	}{
		"tunnel": {rules.Rule{Proto: 17, Port: 2000, Prefix: a, VNI: &vni, DSCP: &ef}, packet.Build(outer(inner(udp)...)...)},
		"host":   {rules.Rule{Proto: 17, Port: 2000, Prefix: a, Network: rules.Host, DSCP: &ef}, packet.Build(inner(udp)...)},
	} {
		p := newPriority(t)
		p.use(t, c.rule)
		c.frame[bytes.LastIndex(c.frame, []byte{0x45, 0})+1] = ef << 2 // of the innermost header
		differ := 0
		for bit := range 8 * len(c.frame) {
			other := slices.Clone(c.frame)
			other[bit/8] ^= 1 << (bit % 8)
			want := p.class(t, other)
			if got := p.class(t, c.frame); got != rules.Latency {
				t.Fatalf("%s: %q", name, got)
			}
			if got := p.classInPoll(t, other); got != want {
				t.Errorf("%s: with another bit %d in byte %d, %q behind the like and %q alone", name, bit%8, bit/8, got, want)
			}
			if want != rules.Latency {
				differ++
			}
		}
		if differ < 80 {
			t.Errorf("%s: only %d bits made a difference", name, differ)
		}
	}
}

// Frames are counted for the rule that gave them their class.
func TestFramesAreCountedByRule(t *testing.T) {
	p := newPriority(t)
	p.use(t, rules.Rule{Port: 1}, rules.Rule{Port: 2}, rules.Rule{Port: 3})
	one := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 9})
	two := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 2, Dst: 9})
	none := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 8, Dst: 9})
	p.onOneCore(t, func() {
		for range 3 {
			p.class(t, one)
			p.classInPoll(t, one)
			p.classInPoll(t, two)
		}
		p.class(t, none)
	})
	got, err := p.RuleFrames()
	if err != nil {
		t.Fatal(err)
	}
	if want := []uint64{6, 3, 0}; !slices.Equal(got, want) {
		t.Errorf("frames %v, want %v", got, want)
	}
	p.use(t, rules.Rule{Port: 7})
	if got, err = p.RuleFrames(); err != nil || !slices.Equal(got, []uint64{0}) {
		t.Errorf("after the rules changed: %v, %v", got, err)
	}
}

// What no rule fits is watched, and told of with what it sent.
func TestSparseFlowsAreLatencyByThemselves(t *testing.T) {
	p := newPriority(t)
	p.use(t, rules.Rule{Port: 7, Class: rules.Bulk})
	const windows = 5
	src, dst := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.9.9.9")
	flow := func(port uint16) []byte {
		// In several buffers, all of which count.
		return inVXLAN(42, packet.IPv4{Src: src, Dst: dst}, packet.UDP{Src: port, Dst: 9}, packet.Bytes(9000))
	}
	sparse, heavy, ruled := flow(1000), flow(2000), flow(7)
	if err := p.SetTuning(PriorityTuning{SparseFrames: 8, SparseBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	var got [3]rules.Class
	p.onOneCore(t, func() {
		for range windows {
			for i, frame := range [][]byte{sparse, heavy, ruled} {
				p.class(t, frame)
				for range 10 * i {
					p.classInPoll(t, frame)
				}
				// At once: on a slow machine the next round is seconds away.
				got[i] = p.class(t, frame)
			}
			p.age(t, sparseWindow)
		}
		p.class(t, sparse) // a flow that has sent nothing for a second is not told of
	})
	if want := [3]rules.Class{rules.Latency, rules.Bulk, rules.Bulk}; got != want {
		t.Errorf("classes %v, want %v", got, want)
	}
	list, err := p.SparseFlows()
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	f := list[0]
	// On a slow machine a window may end between the two frames of a round.
	if f.Src != netip.AddrPortFrom(src, 1000) || f.Dst != netip.AddrPortFrom(dst, 9) || f.Proto != 17 || f.VNI != 42 || f.Host || f.Frames < 1 || f.Frames > 2 || f.Bytes != f.Frames*len(sparse) {
		t.Errorf("%+v", f)
	}
}

// A flood that is spread over many ports is bulk, and takes nothing from another source's sparse flow.
func TestAFloodOverManyPortsIsBulk(t *testing.T) {
	p := newPriority(t)
	if err := p.SetTuning(PriorityTuning{SparseFrames: 8, SparseBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	dst := netip.MustParseAddr("10.9.9.9")
	from := func(src string, port uint16) []byte {
		return inVXLAN(42, packet.IPv4{Src: netip.MustParseAddr(src), Dst: dst}, packet.UDP{Src: port, Dst: 9})
	}
	const windows, ports = 8, 100
	var latency, other int
	p.onOneCore(t, func() {
		// By chance it shares its two places with two flows of the flood: then those that come first have them.
		p.class(t, from("10.1.2.4", 1000))
		for w := range windows {
			latency = 0
			for range 3 {
				for port := range uint16(ports) {
					if p.class(t, from("10.1.2.3", 1000+port)) == rules.Latency {
						latency++
					}
				}
			}
			if p.class(t, from("10.1.2.4", 1000)) == rules.Latency && w > 4 {
				other++
			}
			p.age(t, sparseWindow)
		}
	})
	if latency > 0 {
		t.Errorf("%d of %d frames of the flood were latency in the last window", latency, 3*ports)
	}
	if other != windows-5 {
		t.Errorf("a sparse flow of another source was latency in %d of %d windows", other, windows-5)
	}
	list, err := p.SparseFlows()
	if err != nil || len(list) != 1 || list[0].Src.Addr() != netip.MustParseAddr("10.1.2.4") {
		t.Errorf("sparse flows: %+v, %v", list, err)
	}
}

// onOneCore keeps test runs on one core: each has a hook of its own.
func (p *Priority) onOneCore(t testing.TB, fn func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		t.Fatal(err)
	}
	for cpu := range p.d.cpus {
		if was.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &was); err != nil {
			t.Error(err)
		}
	}()
	fn()
}

// age makes what the kernel side knows of flows older.
func (p *Priority) age(t testing.TB, by time.Duration) {
	t.Helper()
	for i := range p.objs.OlSparseFlows.MaxEntries() { // sources are behind flows
		var v []priorityOlSparse
		if err := p.objs.OlSparseFlows.Lookup(i, &v); err != nil {
			t.Fatal(err)
		}
		used := false
		for core := range v {
			if v[core].Used != 0 {
				used = true
				v[core].Window -= uint32(by / time.Microsecond)
			}
		}
		if used {
			if err := p.objs.OlSparseFlows.Put(i, v); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Whatever the clock shows, and however long no poll came: times are true.
func TestAPollKnowsTheTime(t *testing.T) {
	p := newPriority(t)
	frame := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 2})
	p.onOneCore(t, func() {
		for quarter := range uint64(4) {
			var core uint32
			for cpu := range uint32(p.d.cpus) {
				var v priorityOlPrio
				if err := p.objs.OlPrios.Lookup(cpu, &v); err != nil {
					t.Fatal(err)
				}
				now, err := Now()
				if err != nil {
					t.Fatal(err)
				}
				v.NowNs = now - (quarter<<30+1<<20)*1000
				v.Now = uint32(v.NowNs / 1000)
				if err := p.objs.OlPrios.Put(cpu, &v); err != nil {
					t.Fatal(err)
				}
			}
			p.class(t, frame)
			now, err := Now()
			if err != nil {
				t.Fatal(err)
			}
			for cpu := range uint32(p.d.cpus) {
				var v priorityOlPrio
				if err := p.objs.OlPrios.Lookup(cpu, &v); err != nil {
					t.Fatal(err)
				}
				if v.Poll == v.Polls+1 {
					core = cpu + 1
					if ago := uint32(now/1000) - v.Now; ago > 1e6 {
						t.Errorf("after %d s without a poll, its time is %d us ago", quarter<<30/1e6, ago)
					}
				}
			}
			if core == 0 {
				t.Error("no core has polled")
			}
		}
	})
}

// What is beyond latency's share waits in bulk's lane, and leaves half of it to bulk.
func TestLatencyBeyondItsShareLeavesBulkItsRoom(t *testing.T) {
	p := newPriority(t)
	p.use(t, rules.Rule{Class: rules.Latency, Proto: 17, Port: 7})
	latency := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 7})
	bulk := inVXLAN(42, packet.IPv4{}, packet.UDP{Src: 1, Dst: 8})
	p.onOneCore(t, func() {
		for cpu := range uint32(p.d.cpus) {
			v := priorityOlPrio{Poll: 1, Now: 1, Demoted: 1, Over: 1, Table: uint8(p.d.policy.RulesTable), Reserve: 4}
			v.Lane[bulkLane].Room = 6
			if err := p.objs.OlPrios.Put(cpu, &v); err != nil {
				t.Fatal(err)
			}
		}
		var got []uint32
		for _, frame := range [][]byte{latency, latency, latency, bulk, latency, bulk, bulk, bulk, bulk, latency} {
			verdict, err := p.objs.OlPriorityXdp.Run(&ebpf.RunOptions{Data: frame})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, verdict)
		}
		// Without a lane's thread, what goes to the lane is passed.
		if want := []uint32{xdpPass, xdpPass, xdpDrop, xdpPass, xdpDrop, xdpPass, xdpPass, xdpPass, xdpDrop, xdpDrop}; !slices.Equal(got, want) {
			t.Errorf("verdicts %d, want %d", got, want)
		}
		c, err := p.Counters()
		if err != nil || c.Refused != 4 || c.LatencyExcess != 5 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// A lane is as eager as a NIC's thread in real time allows, until that ends, also after it was
// hurried.
func TestLanesBesideRealTime(t *testing.T) {
	p := newPriority(t)
	core, eager := 0, LaneSched{Nice: -13, Slice: 100 * time.Microsecond}
	cores := []int{core}
	if err := p.StartLanes(cores, false, eager); err != nil {
		t.Fatal(err)
	}
	nice := func(when string, want int32) {
		t.Helper()
		var cpu stagesOlCpu
		if err := p.d.stages.OlCpus.Lookup(uint32(core), &cpu); err != nil {
			t.Fatal(err)
		}
		a, err := unix.SchedGetAttr(int(cpu.LanePid[bulkLane]), 0)
		if err != nil {
			t.Fatal(err)
		}
		if a.Nice != want {
			t.Errorf("%s: nice %d, want %d", when, a.Nice, want)
		}
	}
	for _, step := range []struct {
		when string
		do   func() error
		want int32
	}{
		{"alone", func() error { return nil }, 0},
		{"hurried", func() error { return p.HurryLanes(cores, eager) }, -13},
		{"calm", func() error { return p.CalmLanes(cores) }, 0},
		{"beside real time", func() error { return p.BesideRealtime(cores, eager) }, -13},
		{"calm beside it", func() error { return p.CalmLanes(cores) }, -13},
		{"after it", func() error { return p.BesideRealtime(nil, eager) }, 0},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.when, err)
		}
		nice(step.when, step.want)
	}
}
