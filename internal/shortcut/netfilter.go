// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
)

// netfilter checks all that br_netfilter and the bridge would call, on a
// thread in the namespace. calls: a bridge has br_netfilter called by a setting
// of its own.
//
// Nothing is asked that would make the kernel load a module or register a table:
// reading must leave no trace.
func (w *Watcher) netfilter(n *Netfilter, calls bool, rs *readings) error {
	built, err := builtIn()
	if err != nil {
		return err
	}
	if n.Chains, err = w.chains(built.nftables, rs); err != nil {
		return err
	}
	n.Ebtables, err = read(rs, func() (string, error) { return ebtables(built.ebtables) })
	if err != nil {
		return err
	}
	if n.IP4, err = w.setting(rs, "/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		return err
	}
	if n.IP6, err = w.setting(rs, "/proc/sys/net/bridge/bridge-nf-call-ip6tables"); err != nil {
		return err
	}
	if !calls && !n.IP4 && !n.IP6 {
		return nil // nothing below is ever called
	}
	if n.Tables6, err = w.list(rs, "/proc/thread-self/net/ip6_tables_names"); err != nil {
		return err
	}
	_, err = w.ipHooks(n, rs)
	return err
}

// ipHooks checks what else is at the hooks that packets of IPv4 pass, and at
// those of both versions.
func (w *Watcher) ipHooks(n *Netfilter, rs *readings) (linkCounts, error) {
	var none linkCounts
	var err error
	if n.Tables4, err = w.list(rs, "/proc/thread-self/net/ip_tables_names"); err != nil {
		return none, err
	}
	// Only connection tracking can be there without a rule: by this setting, and
	// for nodes that use it without one.
	if n.Conntrack, err = w.setting(rs, "/sys/module/nf_conntrack/parameters/enable_hooks"); err != nil {
		return none, err
	}
	if !n.Conntrack {
		if n.Conntrack, err = w.setting(rs, "/proc/sys/net/netfilter/nf_conntrack_count"); err != nil {
			return none, err
		}
	}
	if n.IPVS, err = read(rs, w.services); err != nil {
		return none, err
	}
	links, last, err := w.bpf.count()
	rs.note(func() (bool, error) { return w.bpf.noneAfter(last) })
	n.Programs = links.netfilter
	return links, err
}

// services tells whether IPVS has any. What follows each, its connections, is
// none of ours.
func (w *Watcher) services() (bool, error) {
	const header = 3
	l, err := w.files.lines("/proc/thread-self/net/ip_vs")
	return len(l) > header, err
}

// setting is files.isOn, and list is files.lines, of what Poll reads again.
func (w *Watcher) setting(rs *readings, path string) (bool, error) {
	return read(rs, func() (bool, error) { return w.files.isOn(path) })
}

func (w *Watcher) list(rs *readings, path string) ([]string, error) {
	return read(rs, func() ([]string, error) { return w.files.lines(path) })
}

// ebtables names what there is of legacy ebtables. To ask it for its tables
// registers them, and loads their modules.
func ebtables(built bool) (string, error) {
	if built {
		return "ebtables", nil
	}
	for _, m := range []string{"ebtable_filter", "ebtable_nat", "ebtable_broute"} {
		if there, err := exists("/sys/module/" + m); there || err != nil {
			return m, err
		}
	}
	return "", nil
}

type built struct{ nftables, ebtables, xfrm, pfkey bool }

// builtIn tells what the kernel has without modules, which /sys/module does not
// list.
var builtIn = sync.OnceValues(func() (built, error) {
	var b built
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return b, fmt.Errorf("find out what the kernel has built in: %w", err)
	}
	defer f.Close()
	syms := bufio.NewScanner(f)
	for syms.Scan() {
		// ffffffff81f6d200 t nf_tables_getchain, and of a module: \t[nf_tables]
		switch _, sym, _ := strings.Cut(syms.Text(), " "); {
		case len(sym) < 2:
		case sym[2:] == "nf_tables_getchain":
			b.nftables = true
		case sym[2:] == "ebt_register_template":
			b.ebtables = true
		case sym[2:] == "xfrm_user_rcv_msg":
			b.xfrm = true
		case sym[2:] == "pfkey_process":
			b.pfkey = true
		}
	}
	if err := syms.Err(); err != nil {
		return b, fmt.Errorf("find out what the kernel has built in: %w", err)
	}
	return b, nil
})
