// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"testing"

	"github.com/overlane/overlane/internal/encap"
	"github.com/overlane/overlane/test/parser/packet"
)

// datagram is one of UDP with a checksum, whose value nothing looks at.
func datagram(dst uint16, size int, ip ...packet.Layer) []byte {
	const anySum = 0x1234
	udp := packet.UDP{Src: 7, Dst: dst}
	frame := packet.Build(append(append([]packet.Layer{packet.Ethernet{}}, ip...), udp, packet.Bytes(size))...)
	binary.BigEndian.PutUint16(frame[len(frame)-size-2:], anySum)
	return frame
}

// What GRO does not take of a flow overtakes what it holds: the program tells such flows, and no others.
func TestFlowsThatGROTakesInPartAreCounted(t *testing.T) {
	v4, v6 := packet.IPv4{}, packet.IPv6{}
	plain, plain6 := datagram(9, 100, v4), datagram(9, 100, v6)
	unsummed := packet.Build(packet.Ethernet{}, v4, packet.UDP{Src: 7, Dst: 9}, packet.Bytes(100))
	labelled := datagram(9, 100, v6)
	labelled[14+3] = 5
	d, core := load(t), pinned(t)
	long := datagram(9, 1422, v4) // a frame of 1464 bytes, the longest that fits
	for name, tt := range map[string]struct {
		frames [][]byte
		segs   uint32 // of the first
		mixed  uint64
	}{
		"alike":          {frames: [][]byte{plain, plain, plain}},
		"of other sizes": {frames: [][]byte{plain, datagram(9, 50, v4), datagram(9, 500, v4)}},
		"of another type of service, which GRO lets go of what it holds for": {frames: [][]byte{plain, tos(datagram(9, 100, v4))}},
		"joined and single":                      {frames: [][]byte{plain, plain}, segs: 40},
		"the longest that fits":                  {frames: [][]byte{plain, long}},
		"a fragment":                             {frames: [][]byte{plain, datagram(9, 100, packet.IPv4{More: true})}, mixed: 1},
		"a fragment in front":                    {frames: [][]byte{datagram(9, 100, packet.IPv4{More: true}), plain}, mixed: 1},
		"a fragment between":                     {frames: [][]byte{plain, datagram(9, 100, packet.IPv4{More: true}), plain}, mixed: 2},
		"a fragment behind joined ones":          {frames: [][]byte{plain, datagram(9, 100, packet.IPv4{More: true})}, segs: 40, mixed: 1},
		"only fragments":                         {frames: [][]byte{datagram(9, 100, packet.IPv4{More: true}), datagram(9, 100, packet.IPv4{More: true})}},
		"a fragment of another flow":             {frames: [][]byte{plain, datagram(10, 100, packet.IPv4{More: true})}},
		"a later fragment, which tells no ports": {frames: [][]byte{plain, packet.Build(packet.Ethernet{}, packet.IPv4{Offset: 1480, Proto: 17}, packet.Bytes(100))}},
		"options":                                {frames: [][]byte{plain, datagram(9, 100, packet.IPv4{Options: 4})}, mixed: 1},
		"no checksum":                            {frames: [][]byte{plain, unsummed}, mixed: 1},
		"empty":                                  {frames: [][]byte{plain, datagram(9, 0, v4)}, mixed: 1},
		"padded":                                 {frames: [][]byte{plain, append(datagram(9, 100, v4), 0, 0)}, mixed: 1},
		"in outer fragments":                     {frames: [][]byte{plain, datagram(9, 1423, v4)}, mixed: 1},
		"IPv6, alike":                            {frames: [][]byte{plain6, plain6}},
		"IPv6, a fragment":                       {frames: [][]byte{plain6, datagram(9, 100, v6, packet.Fragment{More: true})}, mixed: 1},
		"IPv6, destination options":              {frames: [][]byte{plain6, datagram(9, 100, v6, packet.Extension{Kind: 60})}, mixed: 1},
		"IPv6, another flow label":               {frames: [][]byte{plain6, labelled}, mixed: 1},
		"TCP":                                    {frames: [][]byte{plain, packet.Build(packet.Ethernet{}, v4, packet.TCP{Src: 7, Dst: 9})}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := d.LoadAggregation()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Close() })
			b := &bench{Datapath: d, prog: a.objs.OlTunnelCount, core: core}
			if err := a.Fits(1464); err != nil {
				t.Fatal(err)
			}
			for i, f := range tt.frames {
				segs := uint32(1)
				if i == 0 {
					segs = max(1, tt.segs)
				}
				b.run(t, f, segs)
			}
			c, err := a.Counters()
			if err != nil {
				t.Fatal(err)
			}
			if c.Mixed != tt.mixed {
				t.Errorf("%d datagrams count as taken otherwise than others of their flow, want %d: %+v", c.Mixed, tt.mixed, c)
			}
		})
	}
}

func tos(frame []byte) []byte {
	frame[14+1] = 0xb8
	return frame
}

// Datagrams that come in a row and stay single are counted, with the port that they go to.
func TestDatagramsThatCouldBeJoinedAreCounted(t *testing.T) {
	d := load(t)
	a, err := d.LoadAggregation()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	b := &bench{Datapath: d, prog: a.objs.OlTunnelCount, core: pinned(t)}
	tcp := packet.Build(packet.Ethernet{}, packet.IPv4{}, packet.TCP{Src: 7, Dst: 9})
	for _, f := range [][]byte{datagram(53, 100, packet.IPv4{}), datagram(53, 100, packet.IPv4{}), tcp, datagram(53, 99, packet.IPv4{}), datagram(53, 100, packet.IPv4{})} {
		b.run(t, f, 1)
	}
	b.run(t, datagram(9, 1000, packet.IPv4{}), 20)
	want := AggregateCounters{Packets: 25, UDP: 24, Datagrams: 20, Supers: 1, Follows: 2, Together: 2, Port: 53}
	if c, err := a.Counters(); err != nil || c != want {
		t.Errorf("counted %+v (%v), want %+v", c, err, want)
	}
}

// On a NIC a flow counts once GRO has joined some of it: what comes in tunnels, with or without a program of its own, and
// what the host forwards.
func TestFlowsThatANICTakesInPartAreCounted(t *testing.T) {
	d, core := load(t), pinned(t)
	if err := d.SetTunnels([]TunnelDevice{
		{Kind: encap.VXLAN, VNI: 1, Port: packet.VXLANPort, Ifindex: 1000, NetnsIno: 1},
		{Kind: encap.Geneve, VNI: 1, Port: packet.GenevePort, Ifindex: 1001, NetnsIno: 1},
	}, nil); err != nil {
		t.Fatal(err)
	}
	const otherVNI = 77
	plain, first := packet.IPv4{}, packet.IPv4{More: true}
	bare := func(ip packet.Layer) []byte { return datagram(9, 100, ip) }
	vxlan := func(outer packet.IPv4) func(packet.Layer) []byte {
		return func(ip packet.Layer) []byte {
			return packet.Build(packet.Ethernet{}, outer, packet.UDP{Src: 1, Dst: packet.VXLANPort}, packet.VXLAN{VNI: otherVNI}, packet.Raw(bare(ip)))
		}
	}
	geneve := func(ip packet.Layer) []byte {
		return packet.Build(packet.Ethernet{}, packet.IPv6{}, packet.UDP{Src: 1, Dst: packet.GenevePort}, packet.Geneve{VNI: 1, Options: 8}, packet.Raw(bare(ip)))
	}
	edited := func(at int, with byte) []byte {
		f := vxlan(plain)(plain)
		f[at] = with
		return f
	}
	for name, tt := range map[string]struct {
		frames [][]byte
		segs   uint32 // of the first
		mixed  uint64
	}{
		"another outer port":               {[][]byte{vxlan(plain)(plain), edited(14+20+1, 9)}, 1, 1},
		"an outer checksum":                {[][]byte{vxlan(plain)(plain), edited(14+20+7, 9)}, 1, 1},
		"outer options":                    {[][]byte{vxlan(plain)(plain), vxlan(packet.IPv4{Options: 4})(plain)}, 1, 1},
		"a byte behind the frame":          {[][]byte{vxlan(plain)(plain), append(vxlan(plain)(plain), 0)}, 1, 1},
		"another outer class":              {[][]byte{vxlan(plain)(plain), edited(14+1, 4)}, 40, 0},
		"a fragment, nothing joined":       {[][]byte{vxlan(plain)(plain), vxlan(plain)(first)}, 1, 1},
		"forwarded":                        {[][]byte{bare(plain), bare(first)}, 40, 1},
		"forwarded, nothing joined":        {[][]byte{bare(plain), bare(first)}, 1, 0},
		"forwarded, alike":                 {[][]byte{bare(plain), bare(plain)}, 40, 0},
		"joined long ago":                  {[][]byte{bare(plain), bare(plain), bare(first), bare(first)}, 40, 1},
		"in VXLAN":                         {[][]byte{vxlan(plain)(plain), vxlan(plain)(first)}, 40, 1},
		"in VXLAN, alike":                  {[][]byte{vxlan(plain)(plain), vxlan(plain)(plain)}, 40, 0},
		"in outer fragments":               {[][]byte{vxlan(plain)(plain), vxlan(first)(plain)}, 40, 1},
		"in Geneve with options":           {[][]byte{geneve(plain), geneve(first)}, 40, 1},
		"a tunnel's packet without inside": {[][]byte{packet.Build(packet.Ethernet{}, plain, packet.UDP{Src: 1, Dst: packet.VXLANPort}, packet.VXLAN{})}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := d.LoadAggregation()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Close() })
			b := &bench{Datapath: d, prog: a.objs.OlNicOrder, core: core}
			for i, f := range tt.frames {
				segs := uint32(1)
				if i == 0 {
					segs = tt.segs
				}
				b.run(t, f, segs)
			}
			if c, err := a.Counters(); err != nil || c != (AggregateCounters{Mixed: tt.mixed}) {
				t.Errorf("counted %+v (%v), want %d taken otherwise than others of their flow", c, err, tt.mixed)
			}
		})
	}
}
