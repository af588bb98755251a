// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Limits of what the kernel side holds; bpf/abi.h has the same.
const (
	MaxRules  = 4096
	MaxShapes = 32
)

// Fields that a shape looks at; bpf/abi.h has the same bits.
const (
	FieldProto = 1 << iota
	FieldSrcPort
	FieldDstPort
	FieldSrcAddr
	FieldDstAddr
	FieldVNI
	FieldDSCP
	FieldTunnel
	FieldHost
)

// Shape is a set of fields, with a prefix length. All rules of one shape are
// found by one look-up, however many they are.
type Shape struct {
	Fields uint16
	// V6 tells the family that Mask is for; of no matter without an address.
	V6   bool
	Mask [16]byte
}

// Key is what a shape picks from a flow, in network byte order.
type Key struct {
	Shape uint8 // index
	Proto uint8
	DSCP  uint8
	Port  uint16
	VNI   uint32
	Addr  [16]byte
}

// FitsHost tells whether a flow outside of tunnels may have its class from a rule.
func (t *Table) FitsHost() bool {
	return slices.ContainsFunc(t.Shapes, func(s Shape) bool { return s.Fields&(FieldTunnel|FieldVNI) == 0 })
}

// Match is what a key leads to: a class, and the place of its rule in the list.
type Match struct {
	Rule  int
	Class Class
}

// Table is a list of rules in a form in which the first that fits a flow is
// found in as many steps as there are shapes.
type Table struct {
	Rules  int // in the list
	Shapes []Shape
	Keys   map[Key]Match
}

var errTooManyShapes = fmt.Errorf("the rules use more than %d different sets of fields and prefix lengths (each side of a flow counts)", MaxShapes)

// Compile makes a table of a list of finished rules.
func Compile(list []Rule) (*Table, error) {
	if len(list) > MaxRules {
		return nil, fmt.Errorf("%d rules, at most %d are possible", len(list), MaxRules)
	}
	t := &Table{Rules: len(list), Keys: map[Key]Match{}}
	index := map[Shape]int{}
	for i, r := range list {
		for _, s := range shapesOf(r) {
			at, ok := index[s]
			if !ok {
				if at = len(t.Shapes); at == MaxShapes {
					return nil, fmt.Errorf("rule %s: %w", r.Name, errTooManyShapes)
				}
				index[s] = at
				t.Shapes = append(t.Shapes, s)
			}
			k := keyOf(r, s, at)
			if _, taken := t.Keys[k]; !taken {
				t.Keys[k] = Match{i, r.Class}
			}
		}
	}
	return t, nil
}

// shapesOf are the shapes of a rule: one for each side of a flow on which its
// port, and its prefix, may be.
func shapesOf(r Rule) []Shape {
	base := Shape{}
	if r.Proto != 0 {
		base.Fields |= FieldProto
	}
	if r.VNI != nil {
		base.Fields |= FieldVNI
	}
	if r.DSCP != nil {
		base.Fields |= FieldDSCP
	}
	switch r.Network {
	case Overlay:
		base.Fields |= FieldTunnel
	case Host:
		base.Fields |= FieldHost
	}
	list := []Shape{base}
	split := func(fields ...uint16) {
		var out []Shape
		for _, s := range list {
			for _, f := range fields {
				s := s
				s.Fields |= f
				out = append(out, s)
			}
		}
		list = out
	}
	if r.Port != 0 {
		split(FieldSrcPort, FieldDstPort)
	}
	if r.Prefix.IsValid() {
		split(FieldSrcAddr, FieldDstAddr)
		for i := range list {
			list[i].V6 = r.Prefix.Addr().Is6()
			list[i].Mask = mask(r.Prefix)
		}
	}
	return list
}

func mask(p netip.Prefix) (m [16]byte) {
	bits := p.Bits()
	for i := range m {
		m[i] = ^byte(0xff >> min(max(bits-8*i, 0), 8))
	}
	return m
}

func keyOf(r Rule, s Shape, at int) Key {
	k := Key{Shape: uint8(at), Proto: r.Proto, Port: binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, r.Port))}
	if r.VNI != nil {
		k.VNI = *r.VNI
	}
	if r.DSCP != nil {
		k.DSCP = *r.DSCP
	}
	if r.Prefix.IsValid() {
		copy(k.Addr[:], r.Prefix.Masked().Addr().AsSlice())
	}
	return k
}
