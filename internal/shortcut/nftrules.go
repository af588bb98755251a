// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/shell"
)

// Not in golang.org/x/sys.
const (
	nftaSetExpr           = 0x11
	nftaSetExpressions    = 0x12
	nftaDynsetExpressions = 0xa
	nftMetaLast           = 36 // NFT_META_BRI_IIFHWADDR: the last that was evaluated
)

// rules reads all rules of the namespace that the calling thread is in.
func (n *nftables) rules(by passes) (Rules, error) {
	r := Rules{Rules: map[ChainKey][]PacketRule{}, Sets: map[SetKey]Set{}}
	for _, q := range []struct {
		msg   uint16
		reset func()
		take  func([]byte)
	}{
		{unix.NFT_MSG_GETCHAIN, func() { r.Base = nil }, func(b []byte) {
			if c, ok := parseChain(b); ok {
				r.Base = append(r.Base, c)
			}
		}},
		{unix.NFT_MSG_GETSET, func() { clear(r.Sets) }, func(b []byte) {
			if k, s, ok := parseSet(b); ok {
				r.Sets[k] = s
			}
		}},
		{unix.NFT_MSG_GETRULE, func() { clear(r.Rules) }, func(b []byte) {
			if k, rule, ok := parseNftRule(b); ok {
				r.Rules[k] = append(r.Rules[k], rule)
			}
		}},
	} {
		if err := n.c.Dump(nft(q.msg), make([]byte, sizeofGenmsg), q.reset, q.take); err != nil {
			return r, fmt.Errorf("list the rules of nftables: %w", err)
		}
	}
	for list := r.unread(by); len(list) > 0; list = r.unread(by) {
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
	var seen map[string]bool
	err := n.c.Dump(nft(unix.NFT_MSG_GETSETELEM), req, func() { seen = map[string]bool{} }, func(b []byte) {
		for _, elem := range nlsock.Attrs(nlsock.ListOf(b, sizeofGenmsg).Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if chain := jumpsTo(nlsock.ListOf(elem, 0).Get(unix.NFTA_SET_ELEM_DATA)); chain != "" {
				seen[chain] = true
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list the elements of nftables' map %s: %w", k.Name, err)
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

func parseSet(b []byte) (SetKey, Set, bool) {
	if len(b) < sizeofGenmsg {
		return SetKey{}, Set{}, false
	}
	a := nlsock.ListOf(b, sizeofGenmsg)
	k := SetKey{Family: b[0], Table: a.Str(unix.NFTA_SET_TABLE), Name: a.Str(unix.NFTA_SET_NAME)}
	verdicts := a.U32BE(unix.NFTA_SET_DATA_TYPE) == unix.NFT_DATA_VERDICT
	// Of another map than one of verdicts nothing jumps.
	return k, Set{Map: verdicts, Read: !verdicts, Sees: seesExprs(a, nftaSetExpr, nftaSetExpressions, packets{})}, k.Name != ""
}

// seesExprs evaluates one expression and a list of them, where such attributes are.
func seesExprs(a nlsock.List, one, many uint16, of packets) (list []Sees) {
	if b, ok := a.Find(one); ok {
		list = seesExpr(parseExpr(b), of)
	}
	for _, b := range nlsock.Attrs(a.Get(many)) {
		list = append(list, seesExpr(parseExpr(b), of)...)
	}
	return list
}

// expr is an expression of nftables.
type expr struct {
	name string
	nlsock.List
}

func parseExpr(b []byte) expr {
	a := nlsock.ListOf(b, 0)
	return expr{a.Str(unix.NFTA_EXPR_NAME), a.Nested(unix.NFTA_EXPR_DATA)}
}

func parseNftRule(b []byte) (ChainKey, PacketRule, bool) {
	if len(b) < sizeofGenmsg {
		return ChainKey{}, PacketRule{}, false
	}
	a := nlsock.ListOf(b, sizeofGenmsg)
	k, r := ChainKey{Family: b[0], Table: a.Str(unix.NFTA_RULE_TABLE), Name: a.Str(unix.NFTA_RULE_CHAIN)}, PacketRule{}
	if v := a.Get(unix.NFTA_RULE_HANDLE); len(v) >= 8 {
		r.Handle = binary.BigEndian.Uint64(v)
	}
	var list []expr
	for _, e := range nlsock.Attrs(a.Get(unix.NFTA_RULE_EXPRESSIONS)) {
		list = append(list, parseExpr(e))
	}
	r.take(k.Family, list)
	return k, r, k.Name != ""
}

// What a register holds, as far as it tells which packets a rule is for.
const (
	anything = iota
	ipProtocol
	etherType
	ipVersion
	udpPort
)

// packets are what is known of those that a rule is for.
type packets struct {
	version int    // of IP, 0 if that may be both
	port    uint16 // to which they go, 0 if that may be any
}

// payloadBases are nft's names of the headers that bytes are counted from.
var payloadBases = []string{"ll", "nh", "th", "ih"}

// writes has the attribute of an expression that is the register which it writes. Where that may be
// missing the expression writes to the packet instead.
var writes = map[string]uint16{
	"meta": unix.NFTA_META_DREG, "payload": unix.NFTA_PAYLOAD_DREG, "ct": unix.NFTA_CT_DREG, "immediate": unix.NFTA_IMMEDIATE_DREG,
	"bitwise": 2, "byteorder": 2, "hash": 2, "socket": 2, "tunnel": 2, "numgen": 1, "fib": 1, "rt": 1, "exthdr": 1, "osf": 1, "xfrm": 1,
	"lookup": unix.NFTA_LOOKUP_DREG,
}

// idle are the other expressions that do nothing to a packet.
var idle = map[string]bool{"cmp": true, "range": true, "counter": true, "limit": true, "quota": true, "last": true, "connlimit": true}

// take evaluates the expressions of a rule, in their order. What follows one that no UDP passes is none
// of ours.
func (r *PacketRule) take(family uint8, list []expr) {
	holds := map[uint32]int{}
	of := packets{version: map[uint8]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 6}[family]}
	does := func(what Effect) { r.Does = max(r.Does, what) }
	for _, e := range list {
		if e.name == "cmp" {
			what, v := holds[e.U32BE(unix.NFTA_CMP_SREG)], e.Nested(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE)
			if noUDP(what, e.U32BE(unix.NFTA_CMP_OP), v) {
				break // none of ours comes further
			}
			if what != anything && e.U32BE(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
				of.version = max(of.version, versionBy(what, v))
				if what == udpPort && len(v) == 2 {
					of.port = nlsock.U16BE(v)
				}
			}
		}
		r.Sees = append(r.Sees, seesExpr(e, of)...)
		reg, writer := writes[e.name]
		if writer {
			delete(holds, e.U32BE(reg))
			if what := e.loads(of.version); what != anything {
				holds[e.U32BE(reg)] = what
			}
		}
		switch {
		case e.name == "immediate":
			if e.U32BE(reg) == 0 {
				verdict := e.List.Get(unix.NFTA_IMMEDIATE_DATA)
				does(effectOf(verdict))
				if chain := jumpsTo(verdict); chain != "" {
					r.Jumps = append(r.Jumps, chain)
				}
			}
		case e.name == "lookup":
			set := e.Str(unix.NFTA_LOOKUP_SET)
			if e.Has(reg) && e.U32BE(reg) == 0 {
				does(acts)
				r.Maps = append(r.Maps, set)
			} else {
				r.Sets = append(r.Sets, set)
			}
		case e.name == "match":
			if port := portOf(e.Str(unix.NFTA_MATCH_NAME), e.List.Get(unix.NFTA_MATCH_INFO)); port != 0 {
				of.port = port
			}
		case e.name == "log":
			if group, ok := e.Find(unix.NFTA_LOG_GROUP); ok {
				r.Copies = append(r.Copies, nlsock.U16BE(group))
			}
		case e.name == "target":
			r.target(e.Str(unix.NFTA_TARGET_NAME), e.List.Get(unix.NFTA_TARGET_INFO))
		case writer:
			if !e.Has(reg) {
				does(acts)
			}
		case !idle[e.name]:
			does(acts)
		}
	}
}

// effectOf is what a verdict does.
func effectOf(verdict []byte) Effect {
	switch code := int32(nlsock.ListOf(verdict, 0).Nested(unix.NFTA_DATA_VERDICT).U32BE(unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_CONTINUE:
		return nothing
	case unix.NFT_RETURN:
		return returns
	case unix.NFT_JUMP:
		return jumps
	case unix.NFT_GOTO:
		return leaves
	}
	return acts
}

// loads tells what an expression puts into its register.
func (e expr) loads(version int) int {
	switch {
	case e.name == "meta":
		switch e.U32BE(unix.NFTA_META_KEY) {
		case unix.NFT_META_L4PROTO:
			return ipProtocol
		case unix.NFT_META_PROTOCOL:
			return etherType
		case unix.NFT_META_NFPROTO:
			return ipVersion
		}
	case e.name == "payload" && e.U32BE(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		if e.U32BE(unix.NFTA_PAYLOAD_OFFSET) == 2 && e.U32BE(unix.NFTA_PAYLOAD_LEN) == 2 {
			return udpPort
		}
	case e.name == "payload" && e.U32BE(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_NETWORK_HEADER && e.U32BE(unix.NFTA_PAYLOAD_LEN) == 1:
		at := e.U32BE(unix.NFTA_PAYLOAD_OFFSET)
		if version == 4 && at == 9 || version == 6 && at == 6 {
			return ipProtocol
		}
	}
	return anything
}

// versionBy is the version of IP that a value stands for, 0 if for none.
func versionBy(what int, v []byte) int {
	switch {
	case what == ipVersion && len(v) >= 1 && v[0] == unix.NFPROTO_IPV4, what == etherType && nlsock.U16BE(v) == unix.ETH_P_IP:
		return 4
	case what == ipVersion && len(v) >= 1 && v[0] == unix.NFPROTO_IPV6, what == etherType && nlsock.U16BE(v) == unix.ETH_P_IPV6:
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
		return equal && typ != unix.ETH_P_IP && typ != unix.ETH_P_IPV6 && typ != unix.ETH_P_8021Q && typ != unix.ETH_P_8021AD
	}
	return false
}

// jumpsTo is the chain that a verdict jumps to; empty if it does not.
func jumpsTo(verdict []byte) string {
	return nlsock.ListOf(verdict, 0).Nested(unix.NFTA_DATA_VERDICT).Str(unix.NFTA_VERDICT_CHAIN)
}

// harmless are expressions to which joined datagrams are as the first of them.
var harmless = map[string]bool{
	"immediate": true, "cmp": true, "range": true, "bitwise": true, "byteorder": true, "lookup": true, "counter": true,
	"exthdr": true, "fib": true, "rt": true, "socket": true, "osf": true, "xfrm": true, "tunnel": true, "hash": true,
	"connlimit": true, "last": true, "nat": true, "masq": true, "redir": true, "tproxy": true, "reject": true, "queue": true,
	"notrack": true, "synproxy": true, "flow_offload": true,
}

// seesExpr evaluates an expression by itself. What is not known to be harmless is not.
func seesExpr(e expr, of packets) []Sees {
	see := func(what string) []Sees { return []Sees{{What: what}} }
	count := func(what string) []Sees { return []Sees{{What: what, Counts: true}} }
	switch e.name {
	case "meta":
		switch key := e.U32BE(unix.NFTA_META_KEY); {
		case key == unix.NFT_META_LEN:
			return see("the packet's length (meta length)")
		case key == unix.NFT_META_PRANDOM:
			return count("a random number for each packet (meta random)")
		case key > nftMetaLast:
			return see(fmt.Sprintf("something that is not known (meta key %d)", key))
		}
	case "payload":
		return seesPayload(e, of)
	case "ct":
		switch e.U32BE(unix.NFTA_CT_KEY) {
		case unix.NFT_CT_PKTS, unix.NFT_CT_BYTES, unix.NFT_CT_AVGPKT:
			return see("the number or size of a connection's packets (ct packets, ct bytes, ct avgpkt)")
		}
	case "limit":
		if e.U32BE(unix.NFTA_LIMIT_TYPE) != 0 {
			return see("a rate of bytes (limit rate)")
		}
		return count("a rate of packets (limit rate)")
	case "numgen":
		return count("a number for each packet (numgen)")
	case "quota":
		return see("a quota of bytes")
	case "log": // copies are another thing
	case "objref":
		switch typ := e.U32BE(unix.NFTA_OBJREF_IMM_TYPE); {
		case !e.Has(unix.NFTA_OBJREF_IMM_TYPE):
			return see("objects chosen by a map")
		case typ == unix.NFT_OBJECT_LIMIT:
			return see("a rate (limit " + shell.Word(e.Str(unix.NFTA_OBJREF_IMM_NAME)) + ")")
		case typ == unix.NFT_OBJECT_QUOTA:
			return see("a quota (" + shell.Word(e.Str(unix.NFTA_OBJREF_IMM_NAME)) + ")")
		case typ > unix.NFT_OBJECT_SYNPROXY:
			return see(fmt.Sprintf("an object of a kind that is not known (%d)", typ))
		}
	case "dynset":
		return seesExprs(e.List, unix.NFTA_DYNSET_EXPR, nftaDynsetExpressions, of)
	case "match":
		return seesMatch(e.Str(unix.NFTA_MATCH_NAME), uint8(e.U32BE(unix.NFTA_MATCH_REV)), e.List.Get(unix.NFTA_MATCH_INFO), of)
	case "target":
		return seesTarget(e.Str(unix.NFTA_TARGET_NAME))
	default:
		if !harmless[e.name] {
			return see("something that is not known (" + e.name + ")")
		}
	}
	return nil
}

// seesPayload evaluates what a rule reads of a packet. Joined datagrams have the headers of the first of them, but for
// their lengths and checksums, and of IPv4 the one identification; what follows the header of UDP is the first one's.
func seesPayload(e expr, of packets) []Sees {
	base, from := e.U32BE(unix.NFTA_PAYLOAD_BASE), int(e.U32BE(unix.NFTA_PAYLOAD_OFFSET))
	to := from + int(e.U32BE(unix.NFTA_PAYLOAD_LEN))
	touches := func(a, b int) bool { return from < b && to > a }
	same := false
	switch base {
	case unix.NFT_PAYLOAD_LL_HEADER:
		same = to <= 18 // with a tag
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		length := touches(4, 6)
		if of.version != 6 { // with IPv4's identification and checksum
			length = touches(2, 6) || touches(10, 12)
		}
		same = !length && to <= 40
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		same = to <= 4
	}
	if same {
		return nil
	}
	port := uint16(0)
	if base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && from >= udpHeader && to <= udpHeader+tunnelHeader {
		port = of.port
	}
	return []Sees{{Port: port, What: fmt.Sprintf("bytes of the packet that are not the same in joined datagrams (@%s,%d,%d)", payloadBases[min(base, 3)], from*8, (to-from)*8)}}
}
