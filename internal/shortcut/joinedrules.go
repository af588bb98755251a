// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/shell"
)

// Rules are the rules of a namespace that packets may meet: of nftables, and of legacy iptables in
// the same words.
type Rules struct {
	Base  []Chain // where packets begin to meet rules
	Rules map[ChainKey][]PacketRule
	Sets  map[SetKey]Set
	// Quotas are the accounts of nfacct that match by what they have counted.
	Quotas map[string]bool
}

// ChainKey names a chain, and SetKey a set, of nftables.
type ChainKey struct {
	Family      uint8
	Legacy      bool
	Table, Name string
}

// SetKey is that of a set of the same table.
type SetKey struct {
	Family      uint8
	Table, Name string
}

// PacketRule is what of a rule matters to joined datagrams.
type PacketRule struct {
	Handle uint64
	Sees   []Sees
	Does   Effect
	Copies []uint16 // groups of programs that get a copy of the packet
	Jumps  []string // chains of the same table
	Maps   []string // verdict maps, whose elements jump
	Sets   []string // sets whose elements may have expressions of their own
}

// Effect is what a rule does to a packet that it is for, the least first.
type Effect int

// The effects.
const (
	nothing Effect = iota // it counts, or logs
	returns               // to the chain that has jumped to this one
	jumps
	leaves // it jumps, and what comes back goes on in the chain that has jumped to this one
	acts   // all else
)

// Sees is what would tell joined datagrams from single ones.
type Sees struct {
	What string
	// Counts: it only counts packets, which joined datagrams are one of. Where the first packet of a
	// connection alone comes by, that makes no difference.
	Counts bool
	// Account is what it counts in: it tells only if that has a quota.
	Account string
	// Port is that to which all datagrams go of which it reads nothing but a tunnel's header: those of one tunnel have the
	// same. 0: not so.
	Port uint16
}

// Set is what of a set of nftables matters.
type Set struct {
	Sees  []Sees
	Jumps []string
	Map   bool // of verdicts
	Read  bool // Jumps are known
}

// inHooks are those of IP that packets pass which were received.
var inHooks = []int{unix.NF_INET_PRE_ROUTING, unix.NF_INET_LOCAL_IN, unix.NF_INET_FORWARD, unix.NF_INET_POST_ROUTING}

// met tells whether received packets meet the chain.
func (c Chain) met(by passes) bool {
	received := slices.Contains(inHooks, c.Hook)
	sent := by.sends && c.Hook == unix.NF_INET_LOCAL_OUT
	switch c.Family {
	case unix.NFPROTO_BRIDGE:
		return received
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6:
		return received || sent
	case unix.NFPROTO_INET:
		if c.Hook != nfInetIngress {
			return received || sent
		}
	case unix.NFPROTO_NETDEV:
		if c.Hook == unix.NF_NETDEV_EGRESS {
			return slices.ContainsFunc(by.devs, func(d Passed) bool { return d.Out && c.on(d.Name) })
		}
	default:
		return false // ARP
	}
	return slices.ContainsFunc(by.devs, func(d Passed) bool { return d.In && c.on(d.Name) })
}

// ruled is what rules say.
type ruled struct {
	Onlooker                     // which of them would tell joined datagrams from single ones
	copies   map[uint16]Onlooker // and which does if a program gets what goes to this group
}

// seen says which rules would tell joined datagrams from single ones.
func (r Rules) seen(by passes) (found ruled) {
	quiet := map[ChainKey]int{}
	found.copies = map[uint16]Onlooker{}
	for _, nat := range []bool{false, true} {
		w := r.walk(by, nat)
		for w.next() {
			for i, rule := range r.Rules[w.at] {
				for _, group := range rule.Copies {
					if _, known := found.copies[group]; !known {
						found.copies[group] = Onlooker{fmt.Sprintf("%s copies packets to a program (log group %d)", w.at.rule(rule), group), w.at.show()}
					}
				}
				tells := func(s Sees) bool {
					same := s.Account != "" && !r.Quotas[s.Account] || s.Port != 0 && slices.Contains(by.ports, s.Port)
					return !same && (!nat || !s.Counts)
				}
				seen := slices.Concat(rule.Sees, w.setsOf(rule))
				if j := slices.IndexFunc(seen, tells); j >= 0 && r.matters(w.at, i, quiet) {
					found.Onlooker = Onlooker{fmt.Sprintf("%s has %s", w.at.rule(rule), seen[j].What), w.at.show()}
					return found
				}
				w.follow(rule)
			}
		}
	}
	return found
}

// matters tells whether it makes a difference to a packet, beyond what is counted and logged, whether a rule is for it: a
// rate that decides whether a chain goes on makes none if the rest of it does nothing.
func (r Rules) matters(k ChainKey, i int, quiet map[ChainKey]int) bool {
	rule := r.Rules[k][i]
	if rule.Does == nothing {
		return false
	}
	return !r.vain(k, rule, quiet) || rule.Does != jumps && r.quiet(k, quiet) > i
}

// quiet is from which rule on a chain does nothing to packets, 0 if all of it. What was found is in memo.
func (r Rules) quiet(k ChainKey, memo map[ChainKey]int) int {
	if at, known := memo[k]; known {
		return at
	}
	list := r.Rules[k]
	at := len(list)
	memo[k] = at + 1 // for what jumps back to it: the kernel has no loops, but rules may change while they are read
	for at > 0 && r.vain(k, list[at-1], memo) {
		at--
	}
	memo[k] = at
	return at
}

// vain tells whether a rule does nothing to packets, and neither do the chains that it jumps to.
func (r Rules) vain(k ChainKey, rule PacketRule, memo map[ChainKey]int) bool {
	return rule.Does != acts && !slices.ContainsFunc(rule.Jumps, func(name string) bool { return r.quiet(k.chain(name), memo) > 0 })
}

// Of linux/netfilter/nfnetlink_acct.h.
const (
	nfnlMsgAcctGet = 1
	nfacctName     = 1
	nfacctQuota    = 6
)

// readQuotas finds out which accounts have a quota, on a thread in the namespace. One that a rule has stays as it is.
func (r *Rules) readQuotas() error {
	counted := func(s Sees) bool { return s.Account != "" }
	named := false
	for _, list := range r.Rules {
		named = named || slices.ContainsFunc(list, func(rule PacketRule) bool { return slices.ContainsFunc(rule.Sees, counted) })
	}
	if !named {
		return nil
	}
	c, err := nlsock.Dial(unix.NETLINK_NETFILTER, make([]byte, 1<<15))
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Dump(unix.NFNL_SUBSYS_ACCT<<8|nfnlMsgAcctGet, make([]byte, sizeofGenmsg), func() { r.Quotas = map[string]bool{} }, func(b []byte) {
		if a := nlsock.ListOf(b, sizeofGenmsg); a.Has(nfacctQuota) {
			r.Quotas[a.Str(nfacctName)] = true
		}
	})
	if err != nil {
		return fmt.Errorf("list the accounts of nfacct: %w", err)
	}
	return nil
}

// unread lists the verdict maps whose elements are to be known: of those that only first packets of
// connections meet, which may have thousands, any chain of the table may be what they jump to.
func (r Rules) unread(by passes) (list []SetKey) {
	w := r.walk(by, false)
	named := map[SetKey]bool{}
	for w.next() {
		for _, rule := range r.Rules[w.at] {
			for _, m := range rule.Maps {
				k := w.at.set(m)
				if s, ok := r.Sets[k]; ok && !s.Read && !named[k] {
					named[k] = true
					list = append(list, k)
				}
			}
			if len(list) == 0 { // what comes behind a map that is not known is checked when it is
				w.follow(rule)
			}
		}
	}
	return list
}

// walk goes through the chains that received packets may come to.
type walk struct {
	r    Rules
	at   ChainKey
	todo []ChainKey
	seen map[ChainKey]bool
	// whole are the tables all of whose chains are seen.
	whole map[SetKey]bool
}

func (r Rules) walk(by passes, nat bool) *walk {
	w := &walk{r: r, seen: map[ChainKey]bool{}, whole: map[SetKey]bool{}}
	for _, c := range r.Base {
		if c.Nat == nat && c.met(by) {
			w.add(c.key())
		}
	}
	return w
}

func (w *walk) add(k ChainKey) {
	if !w.seen[k] {
		w.seen[k] = true
		w.todo = append(w.todo, k)
	}
}

func (w *walk) next() bool {
	if len(w.todo) == 0 {
		return false
	}
	w.at, w.todo = w.todo[0], w.todo[1:]
	return true
}

// follow adds where a rule may send packets.
func (w *walk) follow(rule PacketRule) {
	for _, name := range rule.Jumps {
		w.add(w.at.chain(name))
	}
	for _, m := range rule.Maps {
		s := w.r.Sets[w.at.set(m)]
		for _, name := range s.Jumps {
			w.add(w.at.chain(name))
		}
		table := SetKey{Family: w.at.Family, Table: w.at.Table}
		if s.Read || w.whole[table] {
			continue
		}
		w.whole[table] = true
		for k := range w.r.Rules {
			if k.Family == w.at.Family && k.Table == w.at.Table && !k.Legacy {
				w.add(k)
			}
		}
	}
}

func (w *walk) setsOf(rule PacketRule) (list []Sees) {
	for _, name := range slices.Concat(rule.Sets, rule.Maps) {
		list = append(list, w.r.Sets[w.at.set(name)].Sees...)
	}
	return list
}

func (c Chain) key() ChainKey { return ChainKey{c.Family, c.Legacy, c.Table, c.Name} }

func (k ChainKey) chain(name string) ChainKey { return ChainKey{k.Family, k.Legacy, k.Table, name} }

func (k ChainKey) set(name string) SetKey { return SetKey{k.Family, k.Table, name} }

// rule names one of the chain, as the tools do.
func (k ChainKey) rule(r PacketRule) string {
	if k.Legacy {
		return fmt.Sprintf("rule %d of %s -t %s, chain %s,", r.Handle, k.tool(), shell.Word(k.Table), shell.Word(k.Name))
	}
	return fmt.Sprintf("rule handle %d of nftables' chain %s %s %s", r.Handle, families[k.Family], shell.Word(k.Table), shell.Word(k.Name))
}

// named are the names that nft(8) reads as such. It reads its arguments as a language of its own, so that no quotes of
// the shell's are enough: others may be orders to it. Nor does iptables(8) list a chain that looks like an option.
var named = regexp.MustCompile(`^[A-Za-z_.][A-Za-z0-9_./-]*$`)

// show is the command that lists the chain, or what it is in where its name cannot be written.
func (k ChainKey) show() shell.Line {
	family, table, chain := families[k.Family], named.MatchString(k.Table), named.MatchString(k.Name)
	switch {
	case k.Legacy && chain:
		return shell.Command("%s-legacy -t %s -vnL %s --line-numbers", k.tool(), k.Table, k.Name)
	case k.Legacy:
		return shell.Command("%s-legacy -t %s -vnL --line-numbers", k.tool(), k.Table)
	case table && chain:
		return shell.Command("nft -a list chain %s %s %s", family, k.Table, k.Name)
	case table:
		return shell.Command("nft -a list table %s %s", family, k.Table)
	}
	return shell.Command("nft -a list ruleset %s", family)
}

func (k ChainKey) tool() string {
	if k.Family == unix.NFPROTO_IPV6 {
		return "ip6tables"
	}
	return "iptables"
}
