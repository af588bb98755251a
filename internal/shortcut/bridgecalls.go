// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// BridgeCall is one of the settings by which br_netfilter hands what the bridges of a namespace
// forward to netfilter's hooks of IP.
type BridgeCall struct {
	Sysctl string // below /proc/sys
	Value  string // empty: br_netfilter is not there
	// Used says what is at those hooks; empty: nothing is, and a frame passes them as it came.
	Used string
}

// The settings, by version of IP. What calls arptables is left alone.
const (
	bridgeCalls4 = "net/bridge/bridge-nf-call-iptables"
	bridgeCalls6 = "net/bridge/bridge-nf-call-ip6tables"
)

// BridgeCalls checks what bridges hand to netfilter here, whether they do so now or not. What
// cannot be read counts as used.
func (w *Watcher) BridgeCalls() []BridgeCall {
	calls := []BridgeCall{{Sysctl: bridgeCalls4}, {Sysctl: bridgeCalls6}}
	why := w.gather(&w.calls, "what is at netfilter's hooks", func() error { return w.bridgeCalls(calls) })
	for i := range calls {
		calls[i].Used = cmp.Or(why, calls[i].Used)
	}
	return calls
}

// bridgeCalls runs on a thread in the namespace.
func (w *Watcher) bridgeCalls(calls []BridgeCall) error {
	there := false
	for i := range calls {
		l, err := w.list(&w.calls, "/proc/sys/"+calls[i].Sysctl)
		if err != nil {
			return err
		}
		if len(l) > 0 {
			calls[i].Value, there = l[0], true
		}
	}
	if !there {
		return nil
	}
	var n Netfilter
	if err := w.netfilter(&n, true, &w.calls); err != nil {
		return err
	}
	calls[0].Used = hooked(n, unix.NFPROTO_IPV4, n.Tables4, bridgedHooks...)
	calls[1].Used = hooked(n, unix.NFPROTO_IPV6, n.Tables6, bridgedHooks...)
	return nil
}
