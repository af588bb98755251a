// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"bufio"
	"errors"
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
	var err error
	if n.Chains, err = w.chains(rs); err != nil {
		return err
	}
	if n.Ebtables, err = read(rs, ebtables); err != nil {
		return err
	}
	if n.IP4, err = w.setting(rs, "/proc/sys/"+bridgeCalls4); err != nil {
		return err
	}
	if n.IP6, err = w.setting(rs, "/proc/sys/"+bridgeCalls6); err != nil {
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
func (w *Watcher) ipHooks(n *Netfilter, rs *readings) (links linkCounts, err error) {
	if n.Tables4, err = w.list(rs, "/proc/thread-self/net/ip_tables_names"); err != nil {
		return nil, err
	}
	// Only connection tracking can be there without a rule: by this setting, and
	// for nodes that use it without one.
	for _, path := range []string{"/sys/module/nf_conntrack/parameters/enable_hooks", "/proc/sys/net/netfilter/nf_conntrack_count"} {
		if n.Conntrack, err = w.setting(rs, path); n.Conntrack || err != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if n.IPVS, err = read(rs, w.services); err != nil {
		return nil, err
	}
	links, last, err := w.bpf.count()
	rs.note(func() (bool, error) { return w.bpf.noneAfter(last) })
	n.Programs = links.netfilter()
	return links, err
}

// services tells whether IPVS has any. What follows each, its connections, is
// none of ours.
func (w *Watcher) services() (bool, error) {
	const header = 3
	l, err := w.files.first("/proc/thread-self/net/ip_vs", 1)
	if errors.Is(err, errLong) {
		err = nil
	}
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
func ebtables() (string, error) {
	built, err := builtIn()
	if err != nil || built["ebtables"] {
		return "ebtables", err
	}
	for _, m := range []string{"ebtable_filter", "ebtable_nat", "ebtable_broute"} {
		if there, err := exists("/sys/module/" + m); there || err != nil {
			return m, err
		}
	}
	return "", nil
}

// symbols are of what may be a module, each by one of its functions.
var symbols = map[string]string{
	"nf_tables_getchain": "nf_tables", "ebt_register_template": "ebtables", "xfrm_user_rcv_msg": "xfrm_user", "pfkey_process": "af_key",
}

// builtIn tells what of these the kernel has without modules, which /sys/module does not
// list.
var builtIn = sync.OnceValues(func() (map[string]bool, error) {
	built := map[string]bool{}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("find out what the kernel has built in: %w", err)
	}
	defer f.Close()
	syms := bufio.NewScanner(f)
	for syms.Scan() {
		// ffffffff81f6d200 t nf_tables_getchain, and of a module: \t[nf_tables]
		_, sym, _ := strings.Cut(syms.Text(), " ")
		if name, known := symbols[sym[min(2, len(sym)):]]; known {
			built[name] = true
		}
	}
	if err := syms.Err(); err != nil {
		return nil, fmt.Errorf("find out what the kernel has built in: %w", err)
	}
	return built, nil
})

// module tells whether the kernel has something that may be a module.
func module(rs *readings, name string) (bool, error) {
	built, err := builtIn()
	if err != nil || built[name] {
		return built[name], err
	}
	return read(rs, func() (bool, error) { return exists("/sys/module/" + name) })
}
