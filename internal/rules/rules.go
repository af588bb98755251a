// SPDX-License-Identifier: Apache-2.0

// Package rules says which flows belong to which class: an ordered list, of
// which the first rule that fits a flow wins. It is pure: rules come from a
// file or from `overlane prio`, and go to the kernel as a Table.
package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Class is how a flow is treated.
type Class string

// The classes, as in bpf/abi.h.
const (
	Bulk    Class = "bulk"    // waits in a lane while latency traffic passes
	Latency Class = "latency" // overtakes bulk from the driver on
)

// Classes lists them in the order of their numbers in the kernel.
var Classes = []Class{Bulk, Latency}

// Rule names flows by what all of its fields that are set ask for. Port and
// Prefix fit on either side of a flow, each for itself.
type Rule struct {
	Name  string `json:"name"`
	Class Class  `json:"class"`
	// Proto is an IP protocol number, 0 for any.
	Proto uint8 `json:"proto,omitempty"`
	// Port is of TCP, UDP or SCTP, 0 for any.
	Port uint16 `json:"port,omitempty"`
	// Prefix is of inner addresses; the zero value is any.
	Prefix netip.Prefix `json:"cidr,omitzero"`
	// VNI is that of the tunnel; nil for any, and for flows outside of tunnels.
	VNI *uint32 `json:"vni,omitempty"`
	// DSCP is that of the inner IP header; nil for any.
	DSCP *uint8 `json:"dscp,omitempty"`
	// Network is where the flow runs; in a tunnel if nothing is said.
	Network Network `json:"network,omitempty"`
}

// Network tells flows in tunnels from those of the host itself. Of the latter, a
// rule's addresses are the only ones that there are.
type Network string

// The networks.
const (
	Overlay Network = "overlay" // in a tunnel
	Host    Network = "host"    // in none
	Any     Network = "any"     // in either
)

// protocols by their names in rules.
var protocols = map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}

// codepoints by their names (RFC 2474, 2597, 3246, 5865, 8622).
var codepoints = map[string]uint8{
	"cs0": 0, "cs1": 8, "cs2": 16, "cs3": 24, "cs4": 32, "cs5": 40, "cs6": 48, "cs7": 56,
	"af11": 10, "af12": 12, "af13": 14, "af21": 18, "af22": 20, "af23": 22,
	"af31": 26, "af32": 28, "af33": 30, "af41": 34, "af42": 36, "af43": 38,
	"ef": 46, "va": 44, "le": 1,
}

// Fields that a rule may have, with what they take.
var Fields = []struct{ Name, Allowed string }{
	{"name", "letters, digits, '.', '-' and '_', at most 40"},
	{"class", "latency or bulk; latency if it is left out"},
	{"proto", "tcp, udp, sctp, icmp, icmpv6 or a number from 1 to 255"},
	{"port", "1 to 65535"},
	{"cidr", "an address or prefix, such as 10.32.0.0/24 or fd00::1"},
	{"vni", "0 to 16777215"},
	{"dscp", "a name such as ef or af41, or 0 to 63"},
	{"network", "overlay, host or any; overlay if it is left out"},
}

// FieldError is about one field of a rule.
type FieldError struct {
	Field   string
	Problem string
	Allowed string
}

func (e *FieldError) Error() string {
	if e.Allowed == "" {
		return e.Field + ": " + e.Problem
	}
	return fmt.Sprintf("%s: %s; allowed: %s", e.Field, e.Problem, e.Allowed)
}

// Set reads one field into the rule. The error is a *FieldError, and the rule as it was.
func (r *Rule) Set(field, value string) error {
	var names []string
	allowed := ""
	for _, f := range Fields {
		names = append(names, f.Name)
		if f.Name == field {
			allowed = f.Allowed
		}
	}
	if allowed == "" {
		return &FieldError{field, "a rule has no such field", strings.Join(names, ", ")}
	}
	ok := true
	number := func(least, most uint64) uint64 {
		n, err := strconv.ParseUint(value, 10, 32)
		ok = err == nil && least <= n && n <= most
		return n
	}
	set := *r
	switch field {
	case "name":
		set.Name, ok = value, validName(value)
	case "class":
		set.Class = Class(value)
		ok = slices.Contains(Classes, set.Class)
	case "proto":
		if set.Proto = protocols[value]; set.Proto == 0 {
			set.Proto = uint8(number(1, 255))
		}
	case "port":
		set.Port = uint16(number(1, 65535))
	case "cidr":
		p, err := netip.ParsePrefix(value)
		if a, aerr := netip.ParseAddr(value); aerr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if ok = err == nil && !p.Addr().Is4In6(); ok && p.Masked() != p {
			return &FieldError{field, fmt.Sprintf("%q has bits beyond its length", value), p.Masked().String()}
		}
		set.Prefix = p
	case "vni":
		set.VNI = new(uint32(number(0, 1<<24-1)))
	case "dscp":
		c, known := codepoints[value]
		if !known {
			c = uint8(number(0, 63))
		}
		set.DSCP = &c
	case "network":
		set.Network = Network(value)
		ok = set.Network.valid()
	}
	if !ok {
		return &FieldError{field, fmt.Sprintf("%q does not fit", value), allowed}
	}
	*r = set
	return nil
}

func (n Network) valid() bool { return n == Overlay || n == Host || n == Any }

// validName keeps status and metrics readable.
var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`).MatchString

// Finish fills in what was left out, and refuses a rule that means nothing.
func (r *Rule) Finish() error {
	if r.Class == "" {
		r.Class = Latency
	}
	if r.Network == "" {
		r.Network = Overlay
	}
	switch {
	case r.Name == "":
		return &FieldError{"name", "missing", Fields[0].Allowed}
	case !validName(r.Name):
		return &FieldError{"name", fmt.Sprintf("%q does not fit", r.Name), Fields[0].Allowed}
	case !slices.Contains(Classes, r.Class):
		return &FieldError{"class", fmt.Sprintf("%q does not fit", r.Class), Fields[1].Allowed}
	case r.Proto == 0 && r.Port == 0 && !r.Prefix.IsValid() && r.VNI == nil && r.DSCP == nil && r.Network != Host:
		return errors.New("it fits every flow; name a proto, port, cidr, vni or dscp")
	case !r.Network.valid():
		return &FieldError{"network", fmt.Sprintf("%q does not fit", r.Network), Fields[len(Fields)-1].Allowed}
	case r.Network != Overlay && r.VNI != nil:
		return &FieldError{"vni", fmt.Sprintf("does not go with network %s: only flows in tunnels have one", r.Network), ""}
	case r.Port != 0 && r.Proto != 0 && r.Proto != 6 && r.Proto != 17 && r.Proto != 132:
		return &FieldError{"port", "does not go with a protocol that has none", ""}
	}
	return nil
}

// Fits is what the rule asks of a flow, as fields and values.
func (r Rule) Fits() string {
	var parts []string
	add := func(name, value string) { parts = append(parts, name+" "+value) }
	if r.Proto != 0 {
		add("proto", ProtoName(r.Proto))
	}
	if r.Port != 0 {
		add("port", strconv.Itoa(int(r.Port)))
	}
	if r.Prefix.IsValid() {
		add("cidr", r.Prefix.String())
	}
	if r.VNI != nil {
		add("vni", strconv.Itoa(int(*r.VNI)))
	}
	if r.DSCP != nil {
		add("dscp", strconv.Itoa(int(*r.DSCP)))
	}
	if r.Network != Overlay {
		add("network", string(r.Network))
	}
	return strings.Join(parts, " ")
}

// String is the rule as `overlane prio add` takes it.
func (r Rule) String() string {
	return fmt.Sprintf("%s %s class %s", r.Name, r.Fits(), r.Class)
}

// ProtoName is how a protocol is written in rules.
func ProtoName(p uint8) string {
	for name, n := range protocols {
		if n == p {
			return name
		}
	}
	return strconv.Itoa(int(p))
}
