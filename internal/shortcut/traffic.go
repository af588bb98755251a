// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/nlsock"
	"github.com/overlane/overlane/internal/shell"
)

// Not in golang.org/x/sys.
const (
	tcaActKind, tcaActOptions = 1, 2
	tcaGactProb               = 3
	tcaU32Sel                 = 5
	clsactIngress             = 0xffff_fff2
	clsactEgress              = 0xffff_fff3
)

// filter is a filter of tc, as far as it matters to joined datagrams.
type filter struct {
	kind    string
	actions []action
	reads   bool // bytes of the packet that are not the same in joined datagrams
}

type action struct {
	kind   string
	random bool
}

// attributes of the filters that go by what joined datagrams have as the first of them: where their
// actions are, where policers.
var filterKinds = map[string]struct{ act, police uint16 }{
	"flower": {3, 0}, "matchall": {2, 0}, "fw": {4, 2}, "route": {6, 5}, "u32": {7, 6},
}

var harmlessActions = []string{"gact", "skbedit", "vlan", "csum", "ct", "nat", "connmark", "tunnel_key", "ctinfo"}

// harmlessQdiscs treat a packet of many datagrams by its bytes, or take it apart.
var harmlessQdiscs = []string{
	"", "noqueue", "noop", "mq", "pfifo_fast", "pfifo", "bfifo", "fq", "fq_codel", "fq_pie", "codel", "pie", "sfq", "prio", "htb", "hfsc",
	"drr", "qfq", "tbf", "cake", "multiq", "mqprio", "ets",
}

// seen says what of a filter would tell joined datagrams from single ones; empty if nothing.
func (f filter) seen() string {
	if _, known := filterKinds[f.kind]; !known {
		return "a tc filter (" + f.kind + ") that may tell joined packets"
	}
	if f.reads {
		return "a tc filter (" + f.kind + ") that reads bytes which are not the same in joined datagrams"
	}
	for _, a := range f.actions {
		switch {
		case a.kind == "police":
			return "a tc policer"
		case a.random:
			return "a tc filter that chooses among packets (gact random)"
		case !slices.Contains(harmlessActions, a.kind):
			return "a tc action that may tell joined packets (" + a.kind + ")"
		}
	}
	return ""
}

// parseTraffic reads one; false: it is only the head of others.
func parseTraffic(b []byte) (f filter, ok bool) {
	if len(b) < sizeofTcMsg {
		return f, false
	}
	a := nlsock.ListOf(b, sizeofTcMsg)
	f.kind = a.Str(unix.TCA_KIND)
	at, options := filterKinds[f.kind], a.Nested(unix.TCA_OPTIONS)
	proto := binary.BigEndian.Uint16(b[18:]) // the low half of tcm_info
	if proto == unix.ETH_P_ARP {
		return f, false
	}
	for _, v := range nlsock.Attrs(options.Get(at.act)) {
		act := nlsock.ListOf(v, 0)
		kind := act.Str(tcaActKind)
		f.actions = append(f.actions, action{kind, kind == "gact" && act.Nested(tcaActOptions).Has(tcaGactProb)})
	}
	if at.police != 0 && options.Has(at.police) {
		f.actions = append(f.actions, action{kind: "police"})
	}
	if sel, ok := options.Find(tcaU32Sel); ok && f.kind == "u32" {
		f.reads = readsLength(sel, proto)
	}
	return f, a.Has(unix.TCA_OPTIONS)
}

// readsLength tells whether a selector of u32 (struct tc_u32_sel) reads what is not the same in joined
// datagrams.
func readsLength(b []byte, proto uint16) bool {
	const head, sizeofKey = 16, 16
	if len(b) < head {
		return true
	}
	keys := int(b[2])
	for k := range keys {
		at := head + k*sizeofKey
		if at+sizeofKey > len(b) {
			return true
		}
		mask, off, offmask := b[at:at+4], int(int32(nlsock.U32(b[at+8:]))), nlsock.U32(b[at+12:])
		for i, m := range mask {
			if m == 0 {
				continue
			}
			from := off + i
			same := from < 20+4 && (from < 2 || from >= 6) && from != 10 && from != 11
			if proto == unix.ETH_P_IPV6 {
				same = from < 40+4 && from != 4 && from != 5
			}
			if offmask != 0 || !same {
				return true
			}
		}
	}
	return false
}

// trafficControl says what tc has on a device that would tell joined datagrams. ingress is the kind of qdisc that filters
// are attached to.
func trafficControl(c *nlsock.Conn, d Passed, root, ingress string) (o Onlooker, err error) {
	if d.Out && !slices.Contains(harmlessQdiscs, root) {
		return Onlooker{fmt.Sprintf("the qdisc %s is on %s and may tell joined packets", root, d.Name), shell.Command("tc qdisc show dev %s", d.Name)}, nil
	}
	var parents []uint32
	if d.In && ingress != "" {
		parents = append(parents, clsactIngress)
	}
	if d.Out && ingress == "clsact" {
		parents = append(parents, clsactEgress)
	}
	for _, parent := range parents {
		req := make([]byte, sizeofTcMsg)
		binary.NativeEndian.PutUint32(req[4:], uint32(d.Ifindex))
		binary.NativeEndian.PutUint32(req[12:], parent)
		filters, err := nlsock.Collect(c, unix.RTM_GETTFILTER, req, parseTraffic)
		if err != nil {
			return o, fmt.Errorf("list the tc filters of %s: %w", d.Name, err)
		}
		hook := "ingress"
		if parent == clsactEgress {
			hook = "egress"
		}
		for _, f := range filters {
			if seen := f.seen(); seen != "" {
				return Onlooker{fmt.Sprintf("%s is on %s", seen, d.Name), shell.Command("tc filter show dev %s %s", d.Name, hook)}, nil
			}
		}
	}
	return o, nil
}
