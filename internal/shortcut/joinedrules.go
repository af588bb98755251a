// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"fmt"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/shell"
)

// Rules are the rules of a namespace that packets may meet: of nftables, and of legacy iptables in
// the same words.
type Rules struct {
	Base  []Chain // where packets begin to meet rules
	Rules map[ChainKey][]PacketRule
	Sets  map[SetKey]Set
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
	Jumps  []string // chains of the same table
	Maps   []string // verdict maps, whose elements jump
	Sets   []string // sets whose elements may have expressions of their own
}

// Sees is what would tell joined datagrams from single ones.
type Sees struct {
	What string
	// Counts: it only counts packets, which joined datagrams are one of. Where the first packet of a
	// connection alone comes by, that makes no difference.
	Counts bool
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
func (c Chain) met(devs []Passed) bool {
	switch c.Family {
	case unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_BRIDGE:
		return slices.Contains(inHooks, c.Hook)
	case unix.NFPROTO_INET:
		if c.Hook != nfInetIngress {
			return slices.Contains(inHooks, c.Hook)
		}
	case unix.NFPROTO_NETDEV:
		if c.Hook == unix.NF_NETDEV_EGRESS {
			return slices.ContainsFunc(devs, func(d Passed) bool { return d.Out && c.on(d.Name) })
		}
	default:
		return false // ARP
	}
	return slices.ContainsFunc(devs, func(d Passed) bool { return d.In && c.on(d.Name) })
}

// seen says which rule would tell joined datagrams from single ones.
func (r Rules) seen(devs []Passed) Onlooker {
	for _, nat := range []bool{false, true} {
		w := r.walk(devs, nat)
		for w.next() {
			for _, rule := range r.Rules[w.at] {
				for _, s := range slices.Concat(rule.Sees, w.setsOf(rule)) {
					if !nat || !s.Counts {
						return Onlooker{fmt.Sprintf("%s has %s", w.at.rule(rule), s.What), w.at.show()}
					}
				}
				w.follow(rule)
			}
		}
	}
	return Onlooker{}
}

// unread lists the verdict maps whose elements are to be known: of those that only first packets of
// connections meet, which may have thousands, any chain of the table may be what they jump to.
func (r Rules) unread(devs []Passed) (list []SetKey) {
	w := r.walk(devs, false)
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

func (r Rules) walk(devs []Passed, nat bool) *walk {
	w := &walk{r: r, seen: map[ChainKey]bool{}, whole: map[SetKey]bool{}}
	for _, c := range r.Base {
		if c.Nat == nat && c.met(devs) {
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
