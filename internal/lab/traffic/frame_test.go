// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
)

func testFlow(v6, outer bool) Flow {
	wire := bed.Link{SrcMAC: bed.MAC{2, 1}, DstMAC: bed.MAC{2, 2}, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2")}
	f := Flow{ID: 3, Link: wire, SrcPort: 1111, DstPort: Port, OuterPort: 50000}
	f.Src, f.Dst = netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.4.5.6")
	if v6 {
		f.Src, f.Dst = netip.MustParseAddr("fd00::1:2"), netip.MustParseAddr("fd00::3:4")
	}
	if outer {
		f.Outer = &wire
	}
	return f
}

// The pseudo header's sum, written down a second time.
func udpSum(f *Flow, udp []byte, length int) uint16 {
	p := append(f.Src.AsSlice(), f.Dst.AsSlice()...)
	p = append(p, 0, 17)
	p = binary.BigEndian.AppendUint16(p, uint16(length))
	p = append(p, udp...)
	if len(p)%2 == 1 {
		p = append(p, 0)
	}
	var sum uint32
	for i := 0; i < len(p); i += 2 {
		sum += uint32(p[i])<<8 | uint32(p[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

func TestFramesHaveRightLengthsAndChecksums(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, outer := range []bool{false, true} {
			for _, size := range []int{16, 24, 64, 65, 1400} {
				if v6 && size == 1400 && outer {
					size = 1390
				}
				f := testFlow(v6, outer)
				fr, got, err := buildFrame(&f, size)
				if err != nil {
					t.Fatal(err)
				}
				if got != size || fr.frags != 1 || len(fr.bytes) != fr.hdrLen+size {
					t.Errorf("v6 %t outer %t size %d: %d bytes in %d frames of %d", v6, outer, size, got, fr.frags, len(fr.bytes))
				}
				udp := fr.bytes[fr.hdrLen-8:]
				if s := udpSum(&f, udp, len(udp)); s != 0xffff {
					t.Errorf("v6 %t outer %t size %d: UDP checksum sums to %#x", v6, outer, size, s)
				}
				// Any number and time keep the checksum.
				datagram.Put(udp[8:8+min(size, datagram.StampedSize)], 3, 1<<35+77, 987654321)
				if s := udpSum(&f, udp, len(udp)); s != 0xffff {
					t.Errorf("v6 %t outer %t size %d: another number changes the checksum to %#x", v6, outer, size, s)
				}
			}
		}
	}
}

func TestLargeDatagramsAreFragmentsOfOneSize(t *testing.T) {
	for _, tc := range []struct{ size, frags int }{{1400, 1}, {4096, 3}, {65000, 46}} {
		f := testFlow(false, true)
		fr, got, err := buildFrame(&f, tc.size)
		if err != nil {
			t.Fatal(err)
		}
		if fr.frags != tc.frags || got != fr.frags*fr.perFrag-8 || got > 65507 || got < tc.size-8*tc.frags {
			t.Errorf("%d bytes: %d in %d fragments of %d", tc.size, got, fr.frags, fr.perFrag)
		}
		if fr.frags > 1 && fr.perFrag%8 != 0 {
			t.Errorf("%d bytes: fragments of %d bytes cannot be placed", tc.size, fr.perFrag)
		}
		if len(fr.bytes) > bed.WireMTU+14 {
			t.Errorf("%d bytes: a frame of %d", tc.size, len(fr.bytes))
		}
	}
	f := testFlow(true, true)
	if _, _, err := buildFrame(&f, 4096); err == nil {
		t.Error("fragments over IPv6 are not refused")
	}
	if _, _, err := buildFrame(&f, 8); err == nil {
		t.Error("a datagram without room for its number is not refused")
	}
}

func TestSchedulesShareTheSlots(t *testing.T) {
	for _, tc := range []struct {
		rates Rates
		flows int
	}{{Equal, 1}, {Equal, 7}, {Skewed, 8}, {Shifting, 8}, {Skewed, 1}} {
		s, err := tc.rates.Schedule(tc.flows, 0)
		if err != nil {
			t.Fatal(err)
		}
		n := make([]int, tc.flows)
		for _, f := range s {
			n[f]++
		}
		for i := range n {
			switch {
			case n[i] == 0:
				t.Errorf("%s: flow %d of %d never comes", tc.rates, i, tc.flows)
			case i > 0 && tc.rates == Equal && n[0]-n[i] > 1:
				t.Errorf("equal: flow %d has %d slots, flow 0 has %d", i, n[i], n[0])
			case i > 0 && tc.rates != Equal && n[i] > n[i-1]:
				t.Errorf("%s: flow %d has more than flow %d", tc.rates, i, i-1)
			}
		}
	}
	moved, err := Shifting.Schedule(4, 1)
	if err != nil {
		t.Fatal(err)
	}
	n := make([]int, 4)
	for _, f := range moved {
		n[f]++
	}
	if n[1] < n[0] || n[1] < n[2] || n[0] > n[3] {
		t.Errorf("after one shift the ranks are %v", n)
	}
	if _, err := Rates("random").Schedule(3, 0); err == nil {
		t.Error("unknown rates are not refused")
	}
}

func TestReportsOfOtherProgramsAreRead(t *testing.T) {
	iperf := []byte(`{"intervals":[
		{"sum":{"start":0,"end":0.5,"bytes":999}},
		{"sum":{"start":0.5,"end":1.0,"bytes":62500000}},
		{"sum":{"start":1.0,"end":1.5,"bytes":62500000}}]}`)
	r, err := parseIperf(iperf, TCPConfig{Omit: 500e6, Length: 500e6})
	if err != nil || r.Gbps < 0.999 || r.Gbps > 1.001 || r.Bytes != 125000000 {
		t.Errorf("iperf3: %+v %v", r, err)
	}
	r, err = parseIperf(iperf, TCPConfig{Omit: 500e6, Length: 500e6, Tail: 1})
	if err != nil || r.Gbps < 0.999 || r.Gbps > 1.001 || r.Bytes != 62500000 {
		t.Errorf("iperf3 with a tail: %+v %v", r, err)
	}
	if _, err := parseIperf([]byte(`{"error":"unable to connect"}`), TCPConfig{}); err == nil {
		t.Error("iperf3's error is not reported")
	}
	s, err := parseSockperf(`
sockperf: [Total Run] RunTime=1.100 sec; Warm up time=400 msec; SentMessages=1101; ReceivedMessages=1100
sockperf: Summary: Latency is 12.500 usec
sockperf: ---> percentile 99.900 =   70.125
sockperf: ---> percentile 99.000 =   40.250
sockperf: ---> percentile 50.000 =   11.750
`)
	if err != nil || s.P50 != 11750 || s.P99 != 40250 {
		t.Errorf("sockperf: %+v %v", s, err)
	}
}
