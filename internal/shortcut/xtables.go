// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
)

// harmlessMatches are those of iptables to which joined datagrams are as the first of them.
var harmlessMatches = []string{
	"addrtype", "ah", "cgroup", "cluster", "comment", "connlabel", "connlimit", "connmark", "conntrack", "cpu", "dccp", "devgroup",
	"dscp", "dst", "ecn", "esp", "eui64", "frag", "hbh", "helper", "hl", "icmp", "icmp6", "ipcomp", "iprange", "ipv6header", "ipvs",
	"mac", "mark", "mh", "multiport", "osf", "owner", "physdev", "pkttype", "policy", "realm", "rpfilter", "rt", "sctp", "socket",
	"srh", "state", "tcp", "tcpmss", "time", "tos", "ttl", "udp",
}

// countingMatches count packets, or choose among them.
var countingMatches = map[string]string{
	"limit": "a rate of packets", "hashlimit": "rates of packets", "statistic": "a choice among packets", "recent": "a count of packets",
}

// harmlessTargets are those that do the same to joined datagrams as to each of them.
var harmlessTargets = []string{
	"ACCEPT", "DROP", "QUEUE", "RETURN", "AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "CONNSECMARK", "CT", "DNAT", "DNPT", "DSCP", "ECN",
	"ERROR", "HL", "HMARK", "IDLETIMER", "LED", "LOG", "MARK", "MASQUERADE", "NETMAP", "NFQUEUE", "NOTRACK", "REDIRECT", "REJECT",
	"SECMARK", "SET", "SNAT", "SNPT", "SYNPROXY", "TCPMSS", "TCPOPTSTRIP", "TOS", "TPROXY", "TRACE", "TTL", "",
}

// seesMatch evaluates a match of iptables, also as nftables has it.
func seesMatch(name string, rev uint8, info []byte, of packets) []Sees {
	what, counts := countingMatches[name]
	switch {
	case counts:
		return []Sees{{What: fmt.Sprintf("%s (-m %s)", what, name), Counts: true}}
	case name == "set":
		if setCounts(rev, info) {
			return []Sees{{What: "a set's count of packets or bytes (-m set --packets-, --bytes-)"}}
		}
	case name == "length":
		return []Sees{{What: "the packet's length (-m length)"}}
	case name == "nfacct": // struct xt_nfacct_match_info
		account := unix.ByteSliceToString(info[:min(len(info), 32)])
		return []Sees{{What: "a quota (-m nfacct --nfacct-name " + account + ")", Account: account}}
	case name == "u32":
		return seesBytes(name, of, func(f frame) bool { return u32Tells(info, f) })
	case name == "bpf":
		return seesBytes(name, of, func(f frame) bool { return filterTells(rev, info, f) })
	case !slices.Contains(harmlessMatches, name):
		return []Sees{{What: "a match that may tell joined packets (-m " + name + ")"}}
	}
	return nil
}

// portOf is the one to which all packets go that a match lets pass (struct xt_udp), 0 if they may go to others.
func portOf(name string, info []byte) uint16 {
	const inverted = 0x02 // XT_UDP_INV_DSTPT
	if name != "udp" || len(info) < 9 || info[8]&inverted != 0 {
		return 0
	}
	from, to := binary.NativeEndian.Uint16(info[4:]), binary.NativeEndian.Uint16(info[6:])
	if from != to {
		return 0
	}
	return from
}

// setCounts tells whether a match of a set asks for counters (struct xt_set_info_match_v3 and _v4). What
// is not known may.
func setCounts(rev uint8, info []byte) bool {
	var ops []int // places of struct ip_set_counter_match.op, 0 being none
	switch {
	case rev < 3:
		return false
	case rev == 3:
		ops = []int{8, 24}
	case rev == 4:
		ops = []int{16, 32}
	default:
		return true
	}
	return slices.ContainsFunc(ops, func(at int) bool { return at >= len(info) || info[at] != 0 })
}

// target takes over a target of iptables, also as nftables has it.
func (r *PacketRule) target(name string, info []byte) {
	switch {
	case name == "LOG":
	case name == "NFLOG" && len(info) >= 6: // struct xt_nflog_info
		r.Copies = append(r.Copies, binary.NativeEndian.Uint16(info[4:]))
	default:
		r.Does = acts
	}
}

// seesTarget evaluates one.
func seesTarget(name string) []Sees {
	if name == "NFLOG" || slices.Contains(harmlessTargets, name) {
		return nil
	}
	return []Sees{{What: "a target that may tell joined packets (-j " + name + ")"}}
}

// xtFamily is how a version of IP has its tables (struct ipt_entry, struct ip6t_entry).
type xtFamily struct {
	family              uint8
	version             int
	domain, level       int
	names               string // of the tables that are there
	proto, flags, inv   int    // where an entry has these; flags -1: protocol counts always
	bits                int    // where it has the flag that a jump does not come back
	leaves              byte   // that flag
	target, next, entry int    // where it has the offsets, and where matches begin
}

// The options of getsockopt are the same for both.
const (
	soGetInfo    = 64 // IPT_SO_GET_INFO
	soGetEntries = 65
	xtInvProto   = 0x40
	xtReturn     = -5
	ip6tProto    = 0x01
	xtTableName  = 32
	xtHooks      = 5
	// entriesAt is where struct ipt_get_entries has its entries.
	entriesAt    = 40
	sizeofXtHead = 32 // struct xt_entry_match, and xt_entry_target
)

var xtFamilies = []xtFamily{
	{unix.NFPROTO_IPV4, 4, unix.AF_INET, unix.IPPROTO_IP, "/proc/thread-self/net/ip_tables_names", 80, -1, 83, 82, 0x02, 88, 90, 112},
	{unix.NFPROTO_IPV6, 6, unix.AF_INET6, unix.IPPROTO_IPV6, "/proc/thread-self/net/ip6_tables_names", 128, 131, 132, 131, 0x04, 140, 142, 168},
}

// xtTable is what the kernel tells of a table (struct ipt_getinfo, struct ip6t_getinfo).
type xtTable struct {
	name       [xtTableName]byte
	valid      uint32
	hooks      [xtHooks]uint32 // where each begins
	underflows [xtHooks]uint32
	count      uint32
	size       uint32
}

// xtInfo asks for a table that is there, on a thread in the namespace.
func xtInfo(fd int, f xtFamily, name string) (t xtTable, err error) {
	copy(t.name[:xtTableName-1], name)
	_, err = getsockopt(fd, f.level, soGetInfo, unsafe.Pointer(&t), unsafe.Sizeof(t))
	return t, err
}

// xtEntries reads its rules.
func xtEntries(fd int, f xtFamily, t xtTable) ([]byte, error) {
	b := make([]byte, entriesAt+int(t.size))
	copy(b, t.name[:])
	binary.NativeEndian.PutUint32(b[xtTableName:], t.size)
	n, err := getsockopt(fd, f.level, soGetEntries, unsafe.Pointer(&b[0]), uintptr(len(b)))
	return b[min(entriesAt, n):n], err
}

func getsockopt(fd, level, opt int, into unsafe.Pointer, size uintptr) (int, error) {
	n := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt), uintptr(into), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// xtHookNames are the chains that packets begin in.
var xtHookNames = [xtHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// parse adds a table to rules. Its rules are numbered in each chain, as iptables -L --line-numbers does.
func (f xtFamily) parse(t xtTable, b []byte, into *Rules) error {
	table := unix.ByteSliceToString(t.name[:])
	names := map[int]string{}  // of the chains, by where they begin
	policies := map[int]bool{} // where these are: at the end of a chain, which a return leads to
	for hook, at := range t.hooks {
		if t.valid&(1<<hook) == 0 {
			continue
		}
		names[int(at)] = xtHookNames[hook]
		policies[int(t.underflows[hook])] = true
		into.Base = append(into.Base, Chain{
			Family: f.family, Table: table, Name: xtHookNames[hook], Hook: hook, Nat: table == "nat", Legacy: true,
		})
	}
	type rule struct {
		PacketRule
		to int
	}
	var chain string
	rules := map[string][]rule{}
	for at := 0; at < len(b); {
		e := b[at:]
		if len(e) < f.entry {
			return fmt.Errorf("table %s: an entry at %d of %d is cut short", table, at, len(b))
		}
		target, next := int(binary.NativeEndian.Uint16(e[f.target:])), int(binary.NativeEndian.Uint16(e[f.next:]))
		if target < f.entry || target+sizeofXtHead > next || next > len(e) {
			return fmt.Errorf("table %s: the entry at %d of %d lies about its length", table, at, len(b))
		}
		if name, begins := names[at]; begins {
			chain = name
		}
		tname := xtName(e[target:])
		if tname == "ERROR" {
			chain = unix.ByteSliceToString(e[target+sizeofXtHead : next])
			names[at+next] = chain
			at += next
			continue
		}
		r := rule{PacketRule: PacketRule{Handle: uint64(len(rules[chain]) + 1)}, to: -1}
		if f.mayBeUDP(e) {
			r.see(e[f.entry:target], f.version)
			r.Sees = append(r.Sees, seesTarget(tname)...)
			switch verdict := int(int32(nlsock.U32(e[target+sizeofXtHead : next]))); {
			case tname != "":
				r.target(tname, e[target+sizeofXtHead:next])
			case policies[at] || verdict == xtReturn:
				r.Does = returns
			case verdict < 0:
				r.Does = acts
			case verdict != at+next: // a jump to what comes next anyway is no target
				r.to, r.Does = verdict, jumps
				if e[f.bits]&f.leaves != 0 {
					r.Does = leaves
				}
			}
		}
		rules[chain] = append(rules[chain], r)
		at += next
	}
	for chain, list := range rules {
		k := ChainKey{f.family, true, table, chain}
		for _, r := range list {
			if r.to >= 0 {
				r.Jumps = []string{names[r.to]}
			}
			into.Rules[k] = append(into.Rules[k], r.PacketRule)
		}
	}
	return nil
}

func (r *PacketRule) see(matches []byte, version int) {
	of := packets{version: version}
	for len(matches) >= sizeofXtHead {
		size := int(binary.NativeEndian.Uint16(matches))
		if size < sizeofXtHead || size > len(matches) {
			r.Sees = append(r.Sees, Sees{What: "a match that cannot be read"})
			return
		}
		name, info := xtName(matches), matches[sizeofXtHead:size]
		if port := portOf(name, info); port != 0 { // the tools put it first
			of.port = port
		}
		r.Sees = append(r.Sees, seesMatch(name, matches[xtRevision], info, of)...)
		matches = matches[size:]
	}
}

// Where struct xt_entry_match has its revision, behind a name of 29 bytes.
const xtRevision = 31

func xtName(b []byte) string { return unix.ByteSliceToString(b[2:xtRevision]) }

// mayBeUDP tells whether an entry is for UDP, too.
func (f xtFamily) mayBeUDP(e []byte) bool {
	proto := binary.NativeEndian.Uint16(e[f.proto:])
	if proto == 0 || f.flags >= 0 && e[f.flags]&ip6tProto == 0 {
		return true
	}
	return (proto == unix.IPPROTO_UDP) != (e[f.inv]&xtInvProto != 0)
}
