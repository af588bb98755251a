// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// flow is a packet's as a rule sees it.
type flow struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto, dscp  uint8
	vni          uint32
	host         bool
}

// first is the rule list read literally: the reference.
func first(list []Rule, f flow) (int, bool) {
	for i, r := range list {
		switch {
		case r.Proto != 0 && r.Proto != f.proto,
			r.Port != 0 && r.Port != f.sport && r.Port != f.dport,
			r.Prefix.IsValid() && !r.Prefix.Contains(f.src) && !r.Prefix.Contains(f.dst),
			r.VNI != nil && (f.host || *r.VNI != f.vni),
			r.Network == Host && !f.host, r.Network == Overlay && f.host,
			r.DSCP != nil && *r.DSCP != f.dscp:
			continue
		}
		return i, true
	}
	return 0, false
}

// look finds the rule as bpf/priority.h does.
func look(t *Table, f flow) (int, bool) {
	best, found := 0, false
	for i, s := range t.Shapes {
		k := Key{Shape: uint8(i)}
		wrong := uint16(FieldHost)
		if f.host {
			wrong = FieldTunnel | FieldVNI
		}
		if s.Fields&wrong != 0 {
			continue
		}
		if s.Fields&FieldProto != 0 {
			k.Proto = f.proto
		}
		if s.Fields&FieldDSCP != 0 {
			k.DSCP = f.dscp
		}
		if s.Fields&FieldVNI != 0 {
			k.VNI = f.vni
		}
		for bit, port := range map[uint16]uint16{FieldSrcPort: f.sport, FieldDstPort: f.dport} {
			if s.Fields&bit != 0 {
				k.Port = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
			}
		}
		family := true
		for bit, a := range map[uint16]netip.Addr{FieldSrcAddr: f.src, FieldDstAddr: f.dst} {
			if s.Fields&bit != 0 {
				family = family && a.Is6() == s.V6
				copy(k.Addr[:], a.AsSlice())
			}
		}
		for i := range k.Addr {
			k.Addr[i] &= s.Mask[i]
		}
		if m, ok := t.Keys[k]; ok && family && (!found || m.Rule < best) {
			best, found = m.Rule, true
		}
	}
	return best, found
}

func TestTableFindsTheFirstRuleThatFits(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	pick := func(n int) int { return rng.IntN(n) }
	addrs := []string{"10.0.0.1", "10.0.0.200", "10.0.1.1", "192.168.7.7", "fd00::1", "fd00::2", "fd00:1::1"}
	prefixes := []string{"10.0.0.0/24", "10.0.0.1/32", "10.0.0.0/8", "0.0.0.0/0", "fd00::/64", "fd00::1/128", "fd00::/15"}
	fits := 0
	for range 300 {
		var list []Rule
		for len(list) < 1+pick(12) {
			r := Rule{Name: "r"}
			set := func(field, value string) {
				if pick(2) == 0 {
					if err := r.Set(field, value); err != nil {
						t.Fatal(err)
					}
				}
			}
			set("proto", []string{"tcp", "udp"}[pick(2)])
			set("port", fmt.Sprint(1000+pick(4)))
			set("cidr", prefixes[pick(len(prefixes))])
			if pick(4) == 0 {
				set("vni", fmt.Sprint(pick(2)))
			}
			if pick(4) == 0 {
				set("network", []string{"overlay", "host", "any"}[pick(3)])
			}
			if pick(4) == 0 {
				set("dscp", fmt.Sprint(pick(2)))
			}
			if r.Finish() == nil {
				list = append(list, r)
			}
		}
		table, err := Compile(list)
		if err != nil {
			if strings.Contains(err.Error(), "different sets") {
				continue
			}
			t.Fatal(err)
		}
		for range 200 {
			f := flow{sport: uint16(1000 + pick(4)), dport: uint16(1000 + pick(4)), proto: []uint8{6, 17}[pick(2)], dscp: uint8(pick(2)), vni: uint32(pick(2)), host: pick(3) == 0}
			v4 := pick(2) == 0
			for f.src = (netip.Addr{}); !f.src.IsValid() || f.src.Is4() != v4; {
				f.src = netip.MustParseAddr(addrs[pick(len(addrs))])
			}
			for f.dst = (netip.Addr{}); !f.dst.IsValid() || f.dst.Is4() != v4; {
				f.dst = netip.MustParseAddr(addrs[pick(len(addrs))])
			}
			want, ok := first(list, f)
			got, found := look(table, f)
			if ok != found || want != got {
				t.Fatalf("flow %+v, rules %v: got %d %t, want %d %t", f, list, got, found, want, ok)
			}
			if ok {
				fits++
			}
		}
	}
	if fits < 1000 {
		t.Errorf("only %d flows fitted a rule", fits)
	}
}

func TestThousandsOfRulesNeedFewSteps(t *testing.T) {
	var list []Rule
	for i := range MaxRules {
		r := Rule{Name: fmt.Sprintf("r%d", i), Proto: 6, Port: uint16(i + 1), Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)}
		if err := r.Finish(); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	table, err := Compile(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Shapes) != 4 || len(table.Keys) != 4*MaxRules {
		t.Errorf("%d shapes, %d keys", len(table.Shapes), len(table.Keys))
	}
	if _, err := Compile(append(list, list[0])); err == nil || !strings.Contains(err.Error(), "at most 4096") {
		t.Errorf("one rule too many: %v", err)
	}
}

func TestTooManyShapesAreRefusedWithTheRule(t *testing.T) {
	var list []Rule
	for bits := 1; bits <= MaxShapes; bits++ {
		list = append(list, Rule{Name: fmt.Sprintf("bits%d", bits), Class: Latency, Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), bits)})
	}
	if _, err := Compile(list); err == nil || !strings.Contains(err.Error(), "bits17") {
		t.Errorf("got %v, want the first rule that does not fit", err)
	}
}

func TestMalformedRulesAreRefusedWithWhatIsAllowed(t *testing.T) {
	for _, tc := range []struct{ field, value, want string }{
		{"proto", "tpc", "tcp, udp"}, {"proto", "0", "1 to 255"}, {"proto", "256", "1 to 255"},
		{"port", "0", "1 to 65535"}, {"port", "65536", "1 to 65535"}, {"port", "-1", "1 to 65535"}, {"port", "http", "1 to 65535"},
		{"cidr", "10.0.0.1/24", "10.0.0.0/24"}, {"cidr", "10.0.0.0/33", "such as"}, {"cidr", "fe80::1%eth0", "such as"}, {"cidr", "::ffff:10.0.0.1", "such as"},
		{"vni", "16777216", "16777215"}, {"dscp", "64", "0 to 63"}, {"dscp", "EF", "ef"},
		{"network", "vlan", "overlay, host or any"}, {"class", "fast", "latency or bulk"}, {"name", "", "letters"}, {"name", "a b", "letters"}, {"name", strings.Repeat("x", 41), "at most 40"},
		{"colour", "red", "name, class, proto"},
	} {
		var r Rule
		if err := r.Set(tc.field, tc.value); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %q: got %v, want %q", tc.field, tc.value, err, tc.want)
		}
		if r != (Rule{}) {
			t.Errorf("%s %q changed the rule to %v", tc.field, tc.value, r)
		}
	}
	all := Rule{Name: "all"}
	if err := all.Finish(); err == nil {
		t.Error("a rule that fits everything is accepted")
	}
	vni := uint32(1)
	outside := Rule{Name: "outside", VNI: &vni, Network: Host}
	if err := outside.Finish(); err == nil {
		t.Error("a VNI outside of tunnels is accepted")
	}
	icmp := Rule{Name: "ping", Proto: 1, Port: 80}
	if err := icmp.Finish(); err == nil {
		t.Error("a port of ICMP is accepted")
	}
}
