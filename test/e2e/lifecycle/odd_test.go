// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/parser/packet"
)

// oddity is what is not plain.
type oddity struct {
	name   string
	frames [][]byte
	unfit  string // why status says that it took the full path; empty: its flow was not understood, or is no UDP, and is not judged
	comes  int    // frames that come to the pod
}

func oddities(c *rig.Crate) []oddity {
	const ect, ce, udp = 2, 3, 17
	from, to := c.Bed.Sender(), c.Bed.Receiver()
	one := func(f []byte) [][]byte { return [][]byte{f} }
	plain := c.Outer(packet.IPv4{}, c.Plain(packet.IPv4{}))
	datagram := func(f []byte) []byte { return f[20+rig.EthLen:] } // what its IPv4 header carries
	// An outer checksum that is right, and one that is not.
	pseudo := append(slices.Clone(plain[rig.IPAt+12:rig.IPAt+20]), 0, udp, plain[rig.OuterUDP+4], plain[rig.OuterUDP+5])
	sum := ^rig.Ones(append(pseudo, plain[rig.OuterUDP:]...))
	return []oddity{
		{"inner fragments", rig.Fragments(c.IP(packet.IPv4{}), udp, datagram(c.Plain(packet.IPv4{})), func(p packet.IPv4, r packet.Raw) []byte {
			return c.Outer(packet.IPv4{}, c.Inner(p, r))
		}), "inner-headers", 2},
		{"outer fragments", rig.Fragments(c.OuterIP(packet.IPv4{}), udp, datagram(plain), func(p packet.IPv4, r packet.Raw) []byte { return c.Wire(p, r) }), "", 1},
		{"outer CE, inner ECT", one(rig.ECN(c.Outer(packet.IPv4{}, rig.ECN(c.Plain(packet.IPv4{}), rig.EthLen, ect)), rig.IPAt, ce)), "outer-headers", 1},
		{"outer CE, inner not", one(rig.ECN(plain, rig.IPAt, ce)), "outer-headers", 0},
		{"outer options", one(c.Outer(packet.IPv4{Options: 8}, c.Plain(packet.IPv4{}))), "", 1},
		{"inner options", one(c.Outer(packet.IPv4{}, c.Plain(packet.IPv4{Options: 8}))), "inner-headers", 1},
		{"padding", one(append(slices.Clone(plain), 0, 0, 0, 0)), "outer-headers", 1},
		{"inner padding", one(c.Outer(packet.IPv4{}, append(c.Plain(packet.IPv4{}), 0, 0, 0, 0))), "inner-headers", 1},
		{"an inner tag", one(c.Outer(packet.IPv4{}, c.Inner(packet.VLAN{ID: 5}, c.IP(packet.IPv4{}), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(40)))), "inner-frame", 1},
		{"ARP", one(c.Outer(packet.IPv4{}, c.Inner(packet.ARP{}))), "", 1},
		{"no UDP", one(c.Outer(packet.IPv4{}, c.Inner(c.IP(packet.IPv4{Proto: 89}), packet.Bytes(40)))), "", 1},
		{"too long for the pod", one(c.Outer(packet.IPv4{}, c.Inner(c.IP(packet.IPv4{}), packet.UDP{Src: 7, Dst: 9}, packet.Bytes(1100)))), "too-long", 0},
		{"from a group", one(rig.Edited(plain, rig.TunnelAt+6, 1)), "inner-frame", 0},
		{"from the tunnel itself", one(rig.Edited(plain, rig.TunnelAt+6, c.Tunnel[:]...)), "inner-frame", 0},
		{"to all NICs", one(rig.Edited(plain, 0, 255, 255, 255, 255, 255, 255)), "nic-address", 1},
		{"to another NIC", one(rig.Edited(plain, 0, 2, 2, 2, 2, 2, 2)), "nic-address", 0},
		{"from here", one(c.Wire(packet.IPv4{Src: to.IP, Dst: to.IP}, packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI}, packet.Raw(c.Plain(packet.IPv4{})))), "outer-headers", 0},
		{"a wrong outer header checksum", one(rig.Edited(plain, rig.IPAt+10, plain[rig.IPAt+10]^1)), "outer-headers", 0},
		{"a wrong outer checksum", one(rig.Edited(plain, rig.OuterUDP+6, byte(sum>>8)^1, byte(sum))), "outer-checksum", 0},
		{"an outer checksum where there is no inner one", one(rig.Edited(plain, rig.OuterUDP+6, byte(sum>>8), byte(sum))), "outer-checksum", 1},
		{"another tunnel", one(c.Wire(packet.IPv4{Src: from.IP, Dst: to.IP}, packet.UDP{Src: 50000, Dst: bed.TunnelPort}, packet.VXLAN{VNI: bed.VNI + 1}, packet.Raw(c.Plain(packet.IPv4{})))), "", 0},
	}
}

// taps see what is sent to the first pod: on the wire, at the host's end of its veth, where
// only the full path leads by, and in it.
type taps struct {
	c               *rig.Crate
	wire, host, pod *rig.Tap
}

// pass sends frames, and returns what came by the full path, and to the pod.
func (p *taps) pass(frames ...[]byte) (host, pod [][]byte) {
	mark, outer := p.c.Mark()
	p.wire.Send(append(slices.Clone(frames), outer)...)
	return p.host.Until(mark), p.pod.Until(mark)
}

// What is not plain comes as it does without express, or does not, as without.
func TestWhatIsNotPlainTakesTheFullPath(t *testing.T) {
	b := lab(t, bed.Options{Pods: 2})
	rx, s := b.Receiver(), &scene{t: t, b: b}
	pod := rx.Pods[0]
	must(t, s.run(inPod, "ip link set POD mtu 1000"))
	c := rig.NewCrate(t, b)
	p := &taps{c: c, wire: rig.NewTap(t, b.Sender().NS, b.Sender().Wire, [6]byte{}),
		host: rig.NewTap(t, rx.Overlay, pod.HostEnd, pod.MAC), pod: rig.NewTap(t, pod.NS, bed.PodDev, pod.MAC)}

	list := oddities(c)
	without := make([][][]byte, len(list))
	for i, o := range list {
		_, without[i] = p.pass(o.frames...)
		if len(without[i]) != o.comes {
			t.Errorf("%s, without express: %d frames come, want %d", o.name, len(without[i]), o.comes)
		}
	}

	l := rig.StartSteady(t, b, 1, 1) // to the other pod
	d := rig.Start(t, rig.Spec{NS: rx.NS, Config: expresses})
	onPath(t, d)
	rig.Until(t, "both paths are open", func() (bool, string) {
		st := peek(t, d)
		return len(st.Express) == 2 && st.Express[0].Open && st.Express[1].Open, fmt.Sprintf("%+v", st.Express)
	})
	plain := c.Plain(packet.IPv4{})
	straight := func(t *testing.T) {
		t.Helper()
		rig.Until(t, "a plain frame goes straight to the pod", func() (bool, string) {
			host, _ := p.pass(c.Outer(packet.IPv4{}, plain))
			return len(host) == 0, "by the full path"
		})
	}
	for i, o := range list {
		t.Run(o.name, func(t *testing.T) {
			straight(t) // its flow, or what would be
			was := peek(t, d).Counters
			host, came := p.pass(o.frames...)
			if diff := cmp.Diff(without[i], came); diff != "" {
				t.Errorf("otherwise than without express:\n%s", diff)
			}
			// A packet socket at the host's end shows what the bridge sends to the pod.
			if len(host) < len(came) {
				t.Errorf("%d frames came, and %d by the full path", len(came), len(host))
			}
			now := peek(t, d).Counters
			for reason, n := range now.ExpressUnfit {
				want := uint64(0)
				if reason == o.unfit {
					want = uint64(len(o.frames))
				}
				if n-was.ExpressUnfit[reason] != want {
					t.Errorf("%s: %d, want %d", reason, n-was.ExpressUnfit[reason], want)
				}
			}
			if o.unfit != "" && now.ExpressUnfit[o.unfit] == 0 {
				t.Errorf("unfit are %v", now.ExpressUnfit)
			}
		})
	}
	// A flow that has gone straight to the pod does so again after each of these.
	straight(t)
	// What it carries is all that comes.
	deadline := time.Now().Add(rig.Patience)
	for came := [][]byte(nil); !slices.ContainsFunc(came, func(f []byte) bool { return bytes.Equal(f, plain) }); {
		if time.Now().After(deadline) {
			t.Fatalf("a plain frame does not come as it was sent: %x", came)
		}
		_, came = p.pass(c.Outer(packet.IPv4{}, plain))
	}
	must(t, s.run(inPod, fmt.Sprintf("ip link set POD mtu %d", bed.OverlayMTU)))
	ends(t, d)
	l.Stop()
}
