// SPDX-License-Identifier: Apache-2.0

package express

import (
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// ground is that of NICs that an attach does nothing to.
type ground struct{}

func (ground) Look(node.Underlay) (xdp.State, error) { return xdp.State{Up: true}, nil }

// places remember nothing.
func places() *xdp.Places {
	memory, _ := xdp.Remember(nil)
	return xdp.New(ground{}, memory, slog.New(slog.DiscardHandler))
}

// reader has the settings of devices that receive on their own core, but for those that it names.
type reader struct {
	node.Reader
	masks    map[node.DevKey]string // of RPS
	threaded map[node.DevKey]bool
	tx       map[node.DevKey]int // queues
}

func (r reader) Settings(d node.Dev) (node.Settings, error) {
	mask := "0"
	if m := r.masks[d.Key()]; m != "" {
		mask = m
	}
	return node.Settings{RPSCPUs: []string{mask}, Threaded: r.threaded[d.Key()], TxQueues: r.tx[d.Key()]}, nil
}

// aPath is one that nothing speaks against.
func aPath() *path {
	nic, tunnel := node.Dev{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}, node.Dev{NetnsCookie: 1, Ifindex: 3, Name: "vx0"}
	host, peer := node.Dev{NetnsCookie: 1, Ifindex: 4, Name: "veth0"}, node.Dev{NetnsCookie: 5, Ifindex: 2, Name: "eth0"}
	return &path{
		nic:    node.Underlay{Dev: nic, Receivers: []node.Receiver{{Dev: nic}}},
		tunnel: node.Tunnel{Dev: tunnel, VNI: 42, Port: 4789, Outer: 4},
		pod:    node.Pod{Host: host, Peer: peer, PeerRxQueues: 1},
	}
}

// What speaks against a path before a namespace is looked into.
func TestWhatSpeaksAgainstAPath(t *testing.T) {
	mask := func(d node.Dev) reader { return reader{masks: map[node.DevKey]string{d.Key(): "3"}} }
	threaded := func(d node.Dev) reader { return reader{threaded: map[node.DevKey]bool{d.Key(): true}} }
	ours := func(d node.Dev) map[plan.Setting]plan.Owned {
		return map[plan.Setting]plan.Owned{plan.RPSMask(plan.Target(d), 0): {}}
	}
	tunnel, pod := aPath().tunnel.Dev, aPath().pod.Peer
	for what, tt := range map[string]struct {
		change func(*eligibility, *path)
		reason string
		waits  bool
	}{
		"nothing":                      {change: func(*eligibility, *path) {}},
		"another mechanism":            {change: func(l *eligibility, _ *path) { l.never = "split" }, reason: "split"},
		"a VLAN on the NIC":            {change: func(_ *eligibility, w *path) { w.nic.VLANs = true }, reason: "VLAN"},
		"a bond":                       {change: func(_ *eligibility, w *path) { w.nic.Receivers[0].Ifindex = 9 }, reason: "ports of eth0"},
		"priority on another NIC only": {change: func(l *eligibility, _ *path) { l.only = map[node.DevKey]bool{{Ifindex: 99}: true} }, reason: "priority's program is not on eth0"},
		"IPv6 outside":                 {change: func(_ *eligibility, w *path) { w.tunnel.Outer = 6 }, reason: "IPv4"},
		"two queues at the pod":        {change: func(_ *eligibility, w *path) { w.pod.PeerRxQueues = 2 }, reason: "2 receive queues"},
		"more TX queues than RX there": {change: func(l *eligibility, w *path) { l.devices = reader{tx: map[node.DevKey]int{w.pod.Peer.Key(): 4}} }, reason: "4 transmit queues, and veth0 has 1 receive"},
		"TX queues at the host end":    {change: func(l *eligibility, w *path) { l.devices = reader{tx: map[node.DevKey]int{w.pod.Host.Key(): 4}} }},
		"a thread polls the tunnel":    {change: func(l *eligibility, _ *path) { l.devices = threaded(tunnel) }, reason: "vx0 is polled by a thread"},
		"a thread polls the pod's end": {change: func(l *eligibility, _ *path) { l.devices = threaded(pod) }, reason: "polled by a thread"},
		"RPS of another program":       {change: func(l *eligibility, _ *path) { l.devices = mask(tunnel) }, reason: "RPS moves the packets of vx0"},
		"RPS of ours at the tunnel":    {change: func(l *eligibility, _ *path) { l.devices, l.ours = mask(tunnel), ours(tunnel) }},
		"RPS of ours at the pod":       {change: func(l *eligibility, _ *path) { l.devices, l.ours = mask(pod), ours(pod) }, waits: true},
	} {
		t.Run(what, func(t *testing.T) {
			w := aPath()
			l := eligibility{devices: reader{}, places: places(), want: xdp.Want{By: xdp.Express, Asked: true}}
			tt.change(&l, w)
			reason, waits := l.unfit(w)
			if waits != tt.waits || (reason == "") != (tt.reason == "") || !strings.Contains(reason, tt.reason) {
				t.Errorf("%q, waits for the pipeline: %t; want %q, %t", reason, waits, tt.reason, tt.waits)
			}
		})
	}
}

// Beside priority on the same NIC express has its paths.
func TestPrioritysProgramKnowsPathsAsWell(t *testing.T) {
	w, p := aPath(), places()
	attach := func() (io.Closer, error) { return io.NopCloser(nil), nil }
	if err := p.Take(w.nic, xdp.Want{By: xdp.Priority, Asked: true}, attach); err != nil {
		t.Fatal(err)
	}
	l := eligibility{devices: reader{}, places: p, want: xdp.Want{By: xdp.Express}, only: map[node.DevKey]bool{w.nic.Key(): true}}
	if reason, _ := l.unfit(w); reason != "" {
		t.Error(reason)
	}
}

// A path needs both verdicts, and is open only once the pipeline has let go of the pod.
func TestAPathNeedsBothVerdicts(t *testing.T) {
	mac, fixed := shortcut.MAC{2, 1}, map[shortcut.MAC]netip.Addr{{2, 7}: netip.MustParseAddr("10.0.0.7")}
	address := netip.MustParseAddr("10.0.0.1")
	for what, tt := range map[string]struct {
		change func(*path, *shortcut.Verdict, *shortcut.IngressVerdict)
		gone   bool
		reason string
		fits   bool
	}{
		"nothing against it":   {change: func(*path, *shortcut.Verdict, *shortcut.IngressVerdict) {}, fits: true},
		"a namespace has gone": {change: func(*path, *shortcut.Verdict, *shortcut.IngressVerdict) {}, gone: true, reason: "gone"},
		"a policy at the pod": {
			change: func(_ *path, v *shortcut.Verdict, _ *shortcut.IngressVerdict) { v.Reason = "a rule" }, reason: "a rule"},
		"marks": {
			change: func(_ *path, v *shortcut.Verdict, _ *shortcut.IngressVerdict) { v.Marked = true }, reason: "marks"},
		"a policy at the NIC": {
			change: func(_ *path, _ *shortcut.Verdict, in *shortcut.IngressVerdict) { in.Reason = "a socket" }, reason: "a socket"},
		"two addresses": {
			change: func(_ *path, _ *shortcut.Verdict, in *shortcut.IngressVerdict) {
				in.Locals = append(in.Locals, address.Next())
			}, reason: "several"},
		"the pipeline has the pod": {
			change: func(w *path, _ *shortcut.Verdict, _ *shortcut.IngressVerdict) { w.waits = true }, reason: "pipeline", fits: true},
		"the pipeline has the pod, and there is a policy": {
			change: func(w *path, v *shortcut.Verdict, _ *shortcut.IngressVerdict) { w.waits, v.Reason = true, "a rule" }, reason: "a rule"},
	} {
		t.Run(what, func(t *testing.T) {
			w := aPath()
			v := shortcut.Verdict{MAC: mac, MTU: 1450, Relearn: 400 * time.Second, Fixed: fixed}
			in := shortcut.IngressVerdict{Locals: []netip.Addr{address}}
			tt.change(w, &v, &in)
			w.judge(v, in, !tt.gone)
			if w.fits() != tt.fits || (w.reason == "") != (tt.reason == "") || !strings.Contains(w.reason, tt.reason) {
				t.Errorf("%q, fits: %t; want %q, %t", w.reason, w.fits(), tt.reason, tt.fits)
			}
			if !tt.fits {
				return
			}
			if want := (datapath.ExpressKey{NIC: 2, VNI: 42, Port: 4789, MAC: mac}); w.key != want {
				t.Errorf("key %+v, want %+v", w.key, want)
			}
			// The bridge forgets a sender after 400 s, and a VLAN tag is no part of the MTU.
			if w.to.MaxLen != 1450+18 || w.to.Refresh != 100*time.Second || w.to.Local != address || !w.to.Fixed || len(w.fixed) != 1 {
				t.Errorf("path %+v, fixed senders %v", w.to, w.fixed)
			}
		})
	}
}
