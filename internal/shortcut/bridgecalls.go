// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"cmp"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/plan"
)

// The settings, by version of IP. What calls arptables is left alone.
const (
	bridgeCalls4 = "net/bridge/bridge-nf-call-iptables"
	bridgeCalls6 = "net/bridge/bridge-nf-call-ip6tables"
)

// BridgeCalls checks what bridges hand to netfilter here, whether they do so now or not. What
// cannot be read counts as used.
func (w *Watcher) BridgeCalls() []plan.BridgeCall {
	calls := []plan.BridgeCall{{Setting: plan.CallsNetfilter(w.cookie, bridgeCalls4)}, {Setting: plan.CallsNetfilter(w.cookie, bridgeCalls6)}}
	why := w.gather(&w.calls, "what is at netfilter's hooks", func() error { return w.bridgeCalls(calls) })
	for i := range calls {
		calls[i].Used = cmp.Or(why, calls[i].Used)
	}
	return calls
}

// bridgeCalls runs on a thread in the namespace.
func (w *Watcher) bridgeCalls(calls []plan.BridgeCall) error {
	there := false
	for i := range calls {
		l, err := w.list(&w.calls, "/proc/sys/"+calls[i].Attr)
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
