// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// Not in golang.org/x/sys.
const (
	nftaSetExpr           = 0x11
	nftaSetExpressions    = 0x12
	nftaDynsetExpressions = 0xa
	nftDataVerdict        = 0xffff_ff00
	nftMetaLast           = 36 // NFT_META_BRI_IIFHWADDR: the last that was evaluated
)

// rules reads all rules of the namespace that the calling thread is in.
func (n *nftables) rules(devs []Passed) (Rules, error) {
	r := Rules{Rules: map[ChainKey][]PacketRule{}, Sets: map[SetKey]Set{}}
	for _, q := range []struct {
		msg  uint16
		take func([]byte)
	}{
		{unix.NFT_MSG_GETCHAIN, func(b []byte) {
			if c, ok := parseChain(b); ok {
				r.Base = append(r.Base, BaseChain{Chain: c, Nat: chainType(b) == "nat"})
			}
		}},
		{unix.NFT_MSG_GETSET, func(b []byte) {
			if k, s, ok := parseSet(b); ok {
				r.Sets[k] = s
			}
		}},
		{unix.NFT_MSG_GETRULE, func(b []byte) {
			if k, rule, ok := parseNftRule(b); ok {
				r.Rules[k] = append(r.Rules[k], rule)
			}
		}},
	} {
		before := Rules{Base: r.Base, Rules: maps.Clone(r.Rules), Sets: maps.Clone(r.Sets)}
		err := n.c.Do(nft(q.msg), unix.NLM_F_DUMP, make([]byte, sizeofGenmsg),
			func() { r = Rules{Base: before.Base, Rules: maps.Clone(before.Rules), Sets: maps.Clone(before.Sets)} },
			func(b []byte) error { q.take(b); return nil })
		if err != nil {
			return r, fmt.Errorf("list the rules of nftables: %w", err)
		}
	}
	for list := r.unread(devs); len(list) > 0; list = r.unread(devs) {
		for _, k := range list {
			s := r.Sets[k]
			s.Read = true
			var err error
			if s.Jumps, err = n.jumps(k); err != nil {
				return r, err
			}
			r.Sets[k] = s
		}
	}
	return r, nil
}

// jumps lists the chains that the elements of a verdict map jump to.
func (n *nftables) jumps(k SetKey) ([]string, error) {
	req := []byte{k.Family, 0, 0, 0}
	req = nlsock.Attr(req, unix.NFTA_SET_ELEM_LIST_TABLE, append([]byte(k.Table), 0))
	req = nlsock.Attr(req, unix.NFTA_SET_ELEM_LIST_SET, append([]byte(k.Name), 0))
	seen := map[string]bool{}
	var list []string
	err := n.c.Do(nft(unix.NFT_MSG_GETSETELEM), unix.NLM_F_DUMP, req, func() { clear(seen); list = nil }, func(b []byte) error {
		for _, name := range parseElements(b) {
			if !seen[name] {
				seen[name] = true
				list = append(list, name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the elements of nftables' map %s: %w", k.Name, err)
	}
	return list, nil
}

func parseElements(b []byte) (jumps []string) {
	if len(b) < sizeofGenmsg {
		return nil
	}
	for t, v := range nlsock.Attrs(b[sizeofGenmsg:]) {
		if t != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, elem := range nlsock.Attrs(v) {
			for t, v := range nlsock.Attrs(elem) {
				if t == unix.NFTA_SET_ELEM_DATA {
					if _, chain := parseVerdict(v); chain != "" {
						jumps = append(jumps, chain)
					}
				}
			}
		}
	}
	return jumps
}

// chainType is "filter", "nat" or "route".
func chainType(b []byte) string {
	for t, v := range nlsock.Attrs(b[min(sizeofGenmsg, len(b)):]) {
		if t == unix.NFTA_CHAIN_TYPE {
			return nlsock.Str(v)
		}
	}
	return ""
}

func parseSet(b []byte) (SetKey, Set, bool) {
	if len(b) < sizeofGenmsg {
		return SetKey{}, Set{}, false
	}
	k, s := SetKey{Family: b[0]}, Set{}
	for t, v := range nlsock.Attrs(b[sizeofGenmsg:]) {
		switch t {
		case unix.NFTA_SET_TABLE:
			k.Table = nlsock.Str(v)
		case unix.NFTA_SET_NAME:
			k.Name = nlsock.Str(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.Map = be32(v) == nftDataVerdict
		case nftaSetExpr:
			s.Sees = append(s.Sees, seesExpr(parseExpr(v), 0)...)
		case nftaSetExpressions:
			for _, e := range nlsock.Attrs(v) {
				s.Sees = append(s.Sees, seesExpr(parseExpr(e), 0)...)
			}
		}
	}
	s.Read = !s.Map // nothing of it jumps
	return k, s, k.Name != ""
}

// expr is an expression of nftables.
type expr struct {
	name string
	attr map[uint16][]byte
}

func (e expr) has(t uint16) bool { _, ok := e.attr[t]; return ok }

func (e expr) num(t uint16) uint32 { return be32(e.attr[t]) }

func parseExpr(b []byte) expr {
	e := expr{attr: map[uint16][]byte{}}
	for t, v := range nlsock.Attrs(b) {
		switch t {
		case unix.NFTA_EXPR_NAME:
			e.name = nlsock.Str(v)
		case unix.NFTA_EXPR_DATA:
			for t, v := range nlsock.Attrs(v) {
				e.attr[t] = v
			}
		}
	}
	return e
}

func parseNftRule(b []byte) (ChainKey, PacketRule, bool) {
	if len(b) < sizeofGenmsg {
		return ChainKey{}, PacketRule{}, false
	}
	k, r := ChainKey{Family: b[0]}, PacketRule{}
	for t, v := range nlsock.Attrs(b[sizeofGenmsg:]) {
		switch t {
		case unix.NFTA_RULE_TABLE:
			k.Table = nlsock.Str(v)
		case unix.NFTA_RULE_CHAIN:
			k.Name = nlsock.Str(v)
		case unix.NFTA_RULE_HANDLE:
			if len(v) >= 8 {
				r.Handle = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			var list []expr
			for _, e := range nlsock.Attrs(v) {
				list = append(list, parseExpr(e))
			}
			r.take(k.Family, list)
		}
	}
	return k, r, k.Name != ""
}

// What a register holds, as far as it tells which packets a rule is for.
const (
	anything = iota
	ipProtocol
	etherType
	ipVersion
)

const (
	etherIPv4, etherIPv6 = 0x0800, 0x86dd
	netBase, thBase      = 1, 2 // NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER
)

// writes has the attribute of an expression that is the register which it writes. Where that may be
// missing the expression writes to the packet instead.
var writes = map[string]uint16{
	"meta": unix.NFTA_META_DREG, "payload": unix.NFTA_PAYLOAD_DREG, "ct": unix.NFTA_CT_DREG, "immediate": unix.NFTA_IMMEDIATE_DREG,
	"bitwise": 2, "byteorder": 2, "hash": 2, "socket": 2, "tunnel": 2, "numgen": 1, "fib": 1, "rt": 1, "exthdr": 1, "osf": 1, "xfrm": 1,
	"lookup": unix.NFTA_LOOKUP_DREG,
}

// idle are the other expressions that do nothing to a packet.
var idle = map[string]bool{"cmp": true, "range": true, "counter": true, "limit": true, "quota": true, "match": true, "last": true, "connlimit": true}

// take evaluates the expressions of a rule, in their order. What follows one that no UDP passes is none
// of ours, and so is a rule that does nothing to packets: it only counts or logs them.
func (r *PacketRule) take(family uint8, list []expr) {
	acts := false
	holds := map[uint32]int{}
	version := map[uint8]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 6}[family]
	for _, e := range list {
		if e.name == "cmp" {
			what, v := holds[e.num(unix.NFTA_CMP_SREG)], compared(e)
			if noUDP(what, e.num(unix.NFTA_CMP_OP), v) {
				break // none of ours comes further
			}
			if what != anything && e.num(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
				version = max(version, versionBy(what, v))
			}
		}
		r.Sees = append(r.Sees, seesExpr(e, version)...)
		reg, writer := writes[e.name]
		if writer {
			delete(holds, e.num(reg))
			if what := e.loads(version); what != anything {
				holds[e.num(reg)] = what
			}
		}
		switch {
		case e.name == "immediate":
			if e.num(reg) == 0 {
				acts = true
				if _, chain := parseVerdict(e.attr[unix.NFTA_IMMEDIATE_DATA]); chain != "" {
					r.Jumps = append(r.Jumps, chain)
				}
			}
		case e.name == "lookup":
			set := nlsock.Str(e.attr[unix.NFTA_LOOKUP_SET])
			if e.has(reg) && e.num(reg) == 0 {
				acts = true
				r.Maps = append(r.Maps, set)
			} else {
				r.Sets = append(r.Sets, set)
			}
		case e.name == "log":
			acts = acts || e.has(unix.NFTA_LOG_GROUP)
		case e.name == "target":
			acts = acts || nlsock.Str(e.attr[unix.NFTA_TARGET_NAME]) != "LOG"
		case writer:
			acts = acts || !e.has(reg)
		default:
			acts = acts || !idle[e.name]
		}
	}
	if !acts {
		r.Sees = nil
	}
}

// loads tells what an expression puts into its register.
func (e expr) loads(version int) int {
	switch {
	case e.name == "meta":
		switch e.num(unix.NFTA_META_KEY) {
		case unix.NFT_META_L4PROTO:
			return ipProtocol
		case unix.NFT_META_PROTOCOL:
			return etherType
		case unix.NFT_META_NFPROTO:
			return ipVersion
		}
	case e.name == "payload" && e.num(unix.NFTA_PAYLOAD_BASE) == netBase && e.num(unix.NFTA_PAYLOAD_LEN) == 1:
		at := e.num(unix.NFTA_PAYLOAD_OFFSET)
		if version == 4 && at == 9 || version == 6 && at == 6 {
			return ipProtocol
		}
	}
	return anything
}

// compared is what a register is compared with.
func compared(e expr) (v []byte) {
	for t, b := range nlsock.Attrs(e.attr[unix.NFTA_CMP_DATA]) {
		if t == unix.NFTA_DATA_VALUE {
			v = b
		}
	}
	return v
}

// versionBy is the version of IP that a value stands for, 0 if for none.
func versionBy(what int, v []byte) int {
	switch {
	case what == ipVersion && len(v) >= 1 && v[0] == unix.NFPROTO_IPV4, what == etherType && nlsock.U16BE(v) == etherIPv4:
		return 4
	case what == ipVersion && len(v) >= 1 && v[0] == unix.NFPROTO_IPV6, what == etherType && nlsock.U16BE(v) == etherIPv6:
		return 6
	}
	return 0
}

// noUDP tells whether a comparison with such a value lets no UDP pass.
func noUDP(what int, op uint32, v []byte) bool {
	equal, other := op == unix.NFT_CMP_EQ, op == unix.NFT_CMP_NEQ
	switch {
	case what == ipProtocol && len(v) >= 1:
		return equal && v[0] != unix.IPPROTO_UDP || other && v[0] == unix.IPPROTO_UDP
	case what == etherType && len(v) >= 2:
		typ := nlsock.U16BE(v)
		return equal && typ != etherIPv4 && typ != etherIPv6 && typ != unix.ETH_P_8021Q && typ != unix.ETH_P_8021AD
	}
	return false
}

// parseVerdict reads a verdict, and the chain that it jumps to.
func parseVerdict(b []byte) (code int32, chain string) {
	for t, v := range nlsock.Attrs(b) {
		if t != unix.NFTA_DATA_VERDICT {
			continue
		}
		for t, v := range nlsock.Attrs(v) {
			switch t {
			case unix.NFTA_VERDICT_CODE:
				code = int32(be32(v))
			case unix.NFTA_VERDICT_CHAIN:
				chain = nlsock.Str(v)
			}
		}
	}
	return code, chain
}

// harmless are expressions to which joined datagrams are as the first of them.
var harmless = map[string]bool{
	"immediate": true, "cmp": true, "range": true, "bitwise": true, "byteorder": true, "lookup": true, "counter": true,
	"exthdr": true, "fib": true, "rt": true, "socket": true, "osf": true, "xfrm": true, "tunnel": true, "hash": true,
	"connlimit": true, "last": true, "nat": true, "masq": true, "redir": true, "tproxy": true, "reject": true, "queue": true,
	"notrack": true, "synproxy": true, "flow_offload": true,
}

// seesExpr evaluates an expression by itself. What is not known to be harmless is not.
func seesExpr(e expr, version int) []Sees {
	see := func(what string) []Sees { return []Sees{{What: what}} }
	count := func(what string) []Sees { return []Sees{{What: what, Counts: true}} }
	switch e.name {
	case "meta":
		switch key := e.num(unix.NFTA_META_KEY); {
		case key == unix.NFT_META_LEN:
			return see("the packet's length (meta length)")
		case key == unix.NFT_META_PRANDOM:
			return count("a random number for each packet (meta random)")
		case key > nftMetaLast:
			return see(fmt.Sprintf("something that is not known (meta key %d)", key))
		}
	case "payload":
		return seesPayload(e, version)
	case "ct":
		switch e.num(unix.NFTA_CT_KEY) {
		case unix.NFT_CT_PKTS, unix.NFT_CT_BYTES, unix.NFT_CT_AVGPKT:
			return see("the number or size of a connection's packets (ct packets, ct bytes, ct avgpkt)")
		}
	case "limit":
		if e.num(unix.NFTA_LIMIT_TYPE) != 0 {
			return see("a rate of bytes (limit rate)")
		}
		return count("a rate of packets (limit rate)")
	case "numgen":
		return count("a number for each packet (numgen)")
	case "quota":
		return see("a quota of bytes")
	case "log":
		if e.has(unix.NFTA_LOG_GROUP) {
			return see(fmt.Sprintf("a copy for programs (log group %d)", nlsock.U16BE(e.attr[unix.NFTA_LOG_GROUP])))
		}
	case "objref":
		const quota, limit = 2, 4
		switch typ := e.num(unix.NFTA_OBJREF_IMM_TYPE); {
		case !e.has(unix.NFTA_OBJREF_IMM_TYPE):
			return see("objects chosen by a map")
		case typ == limit:
			return see("a rate (limit " + nlsock.Str(e.attr[unix.NFTA_OBJREF_IMM_NAME]) + ")")
		case typ == quota:
			return see("a quota (" + nlsock.Str(e.attr[unix.NFTA_OBJREF_IMM_NAME]) + ")")
		case typ > 10: // NFT_OBJECT_SYNPROXY
			return see(fmt.Sprintf("an object of a kind that is not known (%d)", typ))
		}
	case "dynset":
		var list []Sees
		if b, ok := e.attr[unix.NFTA_DYNSET_EXPR]; ok {
			list = append(list, seesExpr(parseExpr(b), version)...)
		}
		for _, b := range nlsock.Attrs(e.attr[nftaDynsetExpressions]) {
			list = append(list, seesExpr(parseExpr(b), version)...)
		}
		return list
	case "match":
		return seesMatch(nlsock.Str(e.attr[unix.NFTA_MATCH_NAME]), uint8(e.num(unix.NFTA_MATCH_REV)), e.attr[unix.NFTA_MATCH_INFO])
	case "target":
		return seesTarget(nlsock.Str(e.attr[unix.NFTA_TARGET_NAME]))
	default:
		if !harmless[e.name] {
			return see("something that is not known (" + e.name + ")")
		}
	}
	return nil
}

// seesPayload evaluates what a rule reads of a packet of a version of IP, 0 if that may be both. Joined
// datagrams have the headers of the first of them, but for their lengths and checksums, and of IPv4 the
// one identification; what follows the header of UDP is the first one's.
func seesPayload(e expr, version int) []Sees {
	base, from := e.num(unix.NFTA_PAYLOAD_BASE), int(e.num(unix.NFTA_PAYLOAD_OFFSET))
	to := from + int(e.num(unix.NFTA_PAYLOAD_LEN))
	touches := func(a, b int) bool { return from < b && to > a }
	same := false
	switch base {
	case 0: // NFT_PAYLOAD_LL_HEADER
		same = to <= 18 // with a tag
	case netBase:
		length := touches(4, 6)
		if version != 6 { // with IPv4's identification and checksum
			length = touches(2, 6) || touches(10, 12)
		}
		same = !length && to <= 40
	case thBase:
		same = to <= 4
	}
	if same {
		return nil
	}
	return []Sees{{What: fmt.Sprintf("bytes of the packet that are not the same in joined datagrams (@%s,%d,%d)", baseName(base), from*8, (to-from)*8)}}
}

func baseName(base uint32) string {
	switch base {
	case 0:
		return "ll"
	case netBase:
		return "nh"
	case thBase:
		return "th"
	}
	return "ih"
}
