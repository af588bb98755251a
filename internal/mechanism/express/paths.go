// SPDX-License-Identifier: Apache-2.0

package express

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/xdp"
)

// A path is one from an underlay, by a tunnel, to a pod.
type path struct {
	nic    node.Underlay
	tunnel node.Tunnel
	pod    node.Pod
	reason string // against it; empty: none
	// waits tells that there is a reason, which the pipeline takes away as soon as it sees
	// that the pod is to have a path.
	waits bool
	key   datapath.ExpressKey
	to    datapath.ExpressPath
	// fixed are senders whose frames the tunnel drops unless they come from these hosts.
	fixed map[shortcut.MAC]netip.Addr
}

// fits tells whether flows may take it, or as soon as the pipeline lets them.
func (w *path) fits() bool { return w.reason == "" || w.waits }

// eligibility is what it takes to evaluate the paths of a node. Both the daemon and `overlane plan` decide
// by it.
type eligibility struct {
	devices  node.Reader
	snap     node.Snapshot
	watchers *shortcut.Watchers
	home     uint64                      // cookie of the NICs' namespace
	owned    map[plan.Setting]plan.Owned // what express has changed
	ours     map[plan.Setting]plan.Owned // and any mechanism
	places   *xdp.Places
	want     xdp.Want // of them
	// only are the NICs that priority's program is on, which knows paths as well: others get none. Nil: priority is on none.
	only  map[node.DevKey]bool
	never string // what speaks against any path
}

// eligibility is what the daemon evaluates by.
func (e *Express) eligibility() eligibility {
	devices, ours := e.host.Readings()
	l := eligibility{
		devices: devices, snap: e.host.Snapshot(), watchers: e.watchers, home: e.host.Cookie(),
		owned: e.host.Owned(plan.ByExpress), ours: ours,
		places: e.host.Places(), want: wanted(e.mode),
	}
	if e.host.PriorityOnNIC() {
		l.only = map[node.DevKey]bool{}
		for _, u := range l.snap.Underlays {
			l.only[u.Key()] = e.hooked(u)
		}
	}
	if e.host.Split() {
		l.never = "flows are cut into micro-flows"
	}
	return l
}

// hooked tells whether a program of overlane's is on an underlay that sends frames straight to pods.
func (e *Express) hooked(u node.Underlay) bool { return e.host.Places().On(u) }

// wanted is how express wants a NIC: as far as a trial shows that it pays, for which its program
// comes and goes, unless it is forced.
func wanted(mode governor.Mode) xdp.Want {
	return xdp.Want{By: xdp.Express, Asked: mode == governor.Forced}
}

// Plan says what the express path would change on a node, without datagrams that are joined.
func Plan(v *mechanism.View, mode governor.Mode) (plan.Plan, error) {
	_, p, err := foresee(v, mode, false)
	return p, err
}

func foresee(v *mechanism.View, mode governor.Mode, join bool) ([]*path, plan.Plan, error) {
	l := eligibility{
		devices: v.Scanner, snap: v.Snapshot, watchers: shortcut.NewWatchers(v.Scanner, v.Owns, nil), home: v.Scanner.Home(),
		places: v.Places, want: wanted(mode), owned: v.Owned(plan.ByExpress), ours: apply.Ours(v.Changed), only: v.Prioritised,
	}
	paths, err := l.paths()
	return paths, l.plan(paths, join), errors.Join(err, l.watchers.Close())
}

// Foresee says what frames change that go straight to pods. It tells the view which pods these are.
func Foresee(v *mechanism.View, mode, aggregation governor.Mode) ([]mechanism.Outlook, error) {
	if mode == governor.Off {
		return nil, nil
	}
	join := aggregation == governor.Forced || aggregation == governor.Auto && mayJoin(shortcut.NewJoinEligibility(v.Scanner, v.Owns, nil), v.Snapshot, false) == ""
	paths, p, err := foresee(v, mode, join)
	if err != nil {
		return nil, err
	}
	open := false
	v.Express = map[node.DevKey]bool{}
	for _, w := range paths {
		open = open || w.reason == ""
		if mode == governor.Forced && w.fits() {
			v.Express[w.pod.Peer.Key()] = true
		}
	}
	out := mechanism.Outlook{Name: name, Plan: p}
	out.Attach = v.Missing(out.Attach)
	switch {
	case len(v.Snapshot.Pods) == 0:
		out.When = "to hand frames straight to pods, run would wait for a pod: there is none yet"
	case !open:
		out.When = "run would hand no frames straight to pods now:"
	case out.Empty() && slices.ContainsFunc(v.Snapshot.Underlays, v.Hooked):
		out.When = "to hand frames straight to pods, nothing is to be changed: the running daemon has done it"
	case out.Empty():
		out.When = "to hand frames straight to pods, run would change nothing here now"
	case len(out.Steps) == 0:
		out.When = "to hand frames straight to pods, no setting is to be changed:"
	default:
		out.When = "once packets come fast, run would hand them straight to pods where nothing on the way could tell:"
	}
	return []mechanism.Outlook{out}, nil
}

// plan says what it takes to have frames take the paths that are safe, and of each other path why it is not. join:
// datagrams are to be joined.
func (l eligibility) plan(paths []*path, join bool) plan.Plan {
	same := map[datapath.ExpressKey]int{}
	for _, w := range paths {
		if w.reason == "" {
			same[w.key]++
		}
	}
	fixed := fixedSenders(paths)
	for _, w := range paths {
		switch {
		case w.reason != "":
		case len(w.fixed) > 0 && len(fixed) > datapath.MaxSenders:
			w.reason = fmt.Sprintf("the tunnels were told where more than %d senders are", datapath.MaxSenders)
		case same[w.key] > 1:
			w.reason = "another tunnel with the same number and port leads to a pod with the same address"
		}
	}
	in := l.input(paths)
	in.Join = join
	made := plan.Express(in)
	for _, w := range paths {
		at := slices.IndexFunc(made.Skipped, func(s plan.Skip) bool { return s.Target == plan.Target(w.pod.Peer) })
		if at >= 0 && w.reason == "" {
			w.reason = made.Skipped[at].Reason
		}
	}
	return made
}

// paths checks each path from a NIC to a pod.
func (l eligibility) paths() ([]*path, error) {
	var paths []*path
	nics := map[node.DevKey]node.Underlay{}
	for _, u := range l.snap.Underlays {
		nics[u.Key()] = u
	}
	tunnels := map[node.DevKey]node.Tunnel{}
	for _, t := range l.snap.Tunnels {
		tunnels[t.Key()] = t
	}
	for _, p := range l.snap.Pods {
		for _, t := range p.Tunnels {
			for _, u := range tunnels[t.Key()].Underlays {
				w := &path{nic: nics[u.Key()], tunnel: tunnels[t.Key()], pod: p}
				w.reason, w.waits = l.unfit(w)
				paths = append(paths, w)
			}
		}
	}
	checked, err := l.watchers.Check(l.snap, l.home)
	verdicts := map[shortcut.Path]shortcut.Verdict{}
	for _, v := range checked {
		verdicts[v.Path] = v
	}
	entries, failed := l.ingress(paths)
	for _, w := range paths {
		if w.reason != "" {
			continue
		}
		v, ok := verdicts[shortcut.Path{Tunnel: w.tunnel.Dev, Host: w.pod.Host}]
		from, known := entries[w.ingress()]
		w.judge(v, from, ok && known)
	}
	return paths, errors.Join(err, failed)
}

// judge takes the verdicts on what is between the tunnel and the pod, and between the NIC and the tunnel.
func (w *path) judge(v shortcut.Verdict, from shortcut.IngressVerdict, known bool) {
	switch {
	case !known:
		w.reason = "its network namespace is gone"
	case !v.Safe():
		w.reason = v.Reason
	case v.Marked:
		w.reason = fmt.Sprintf("%s takes marks from its packets (gbp, gpe)", w.tunnel.Name)
	case !from.Safe():
		w.reason = from.Reason
	case len(from.Locals) != 1:
		w.reason = fmt.Sprintf("%s has several addresses, and the tunnel takes packets for any of them", w.nic.Name)
	default:
		w.key = datapath.ExpressKey{NIC: w.nic.Ifindex, VNI: w.tunnel.VNI, Port: w.tunnel.Port, MAC: v.MAC}
		w.to = datapath.ExpressPath{
			MaxLen: v.MTU + shortcut.Tagged, Refresh: v.Relearn / shortcut.RefreshPart,
			Local: from.Locals[0], Remote: w.tunnel.Remote, NICMAC: from.MAC, TunnelMAC: v.TunnelMAC,
			Fixed: len(v.Fixed) > 0,
		}
		w.fixed = v.Fixed
	}
	if w.waits = w.waits && w.reason == ""; w.waits {
		w.reason = "the pipeline still moves the pod's packets between cores"
	}
}

// ingress is what the NIC's side of a path is asked about.
func (w *path) ingress() shortcut.Ingress {
	return shortcut.Ingress{NIC: w.nic.Dev, Local: w.tunnel.Local, Port: w.tunnel.Port}
}

// ingress checks the NICs' side of the paths.
func (l eligibility) ingress(paths []*path) (map[shortcut.Ingress]shortcut.IngressVerdict, error) {
	var list []shortcut.Ingress
	for _, w := range paths {
		if in := w.ingress(); w.reason == "" && !slices.Contains(list, in) {
			list = append(list, in)
		}
	}
	verdicts := map[shortcut.Ingress]shortcut.IngressVerdict{}
	if len(list) == 0 {
		return verdicts, nil
	}
	w, err := l.watchers.Of(l.home)
	if err != nil {
		return nil, err
	}
	for _, v := range w.CheckIngress(list) {
		verdicts[v.Ingress] = v
	}
	return verdicts, nil
}

// unfit says what speaks against a path without a check of foreign programs and rules; waits: nothing but the
// pipeline does.
func (l eligibility) unfit(w *path) (reason string, waits bool) {
	why := l.places.Why(w.nic, l.want)
	switch {
	case l.never != "":
		return l.never, false
	case why != "" && !l.only[w.nic.Key()]:
		return why, false
	case w.nic.Master():
		return fmt.Sprintf("frames come by the ports of %s, and express paths begin at a NIC", w.nic.Name), false
	case l.only != nil && !l.only[w.nic.Key()]:
		return fmt.Sprintf("priority's program is not on %s", w.nic.Name), false
	case w.tunnel.Outer == 6:
		return "only IPv4 outside is understood", false
	case w.pod.PeerRxQueues != 1:
		return fmt.Sprintf("the pod's end of its veth has %d receive queues, between which packets could overtake", w.pod.PeerRxQueues), false
	}
	for _, dev := range []node.Dev{w.tunnel.Dev, w.pod.Peer} {
		set, err := l.devices.Settings(dev)
		if err != nil {
			return fmt.Sprintf("how %s receives cannot be read: %v", dev.Name, err), false
		}
		if set.Threaded {
			return dev.Name + " is polled by a thread of its own", false
		}
		if dev.Same(w.pod.Peer) && set.TxQueues > 1 {
			// The kernel forgets then that the host end takes frames (veth_set_xdp_features), and drops them.
			host, err := l.devices.Settings(w.pod.Host)
			if err != nil {
				return fmt.Sprintf("how %s receives cannot be read: %v", w.pod.Host.Name, err), false
			}
			if n := len(host.RPSCPUs); set.TxQueues > n {
				return fmt.Sprintf("the pod's end of its veth has %d transmit queues, and %s has %d receive queues: with fewer it takes no frames from XDP", set.TxQueues, w.pod.Host.Name, n), false
			}
		}
		for i, mask := range set.RPSCPUs {
			if strings.Trim(mask, "0,") == "" {
				continue
			}
			if _, ours := l.ours[plan.RPSMask(plan.Target(dev), i)]; !ours {
				return fmt.Sprintf("RPS moves the packets of %s to other cores", dev.Name), false
			}
			// The guard knows the tunnel's lanes. At the pod, frames without a hash of ours
			// would go where the guard does not check.
			waits = waits || dev.Same(w.pod.Peer)
		}
	}
	return "", waits
}

// input puts what was evaluated into the planner's words.
func (l eligibility) input(paths []*path) plan.ExpressInput {
	in := plan.ExpressInput{Owned: l.owned}
	for _, w := range paths {
		if w.reason == "" && l.only == nil {
			nic := plan.Target(w.nic.Dev)
			i := slices.IndexFunc(in.NICs, func(n plan.HandingNIC) bool { return n.Target == nic })
			if i < 0 {
				i = len(in.NICs)
				in.NICs = append(in.NICs, plan.HandingNIC{Target: nic, Cost: l.places.Cost(w.nic)})
			}
			in.NICs[i].Pods = append(in.NICs[i].Pods, plan.Target(w.pod.Peer))
		}
		at := slices.IndexFunc(in.Pods, func(p plan.Landing) bool { return p.Target == plan.Target(w.pod.Peer) })
		if at >= 0 {
			in.Pods[at].Path = in.Pods[at].Path || w.reason == ""
			continue
		}
		pod := plan.Landing{Target: plan.Target(w.pod.Peer), Path: w.reason == "", Unfit: w.reason}
		if err := mechanism.Offloads(l.devices, w.pod.Peer, map[string]*string{plan.GRO: &pod.GRO, plan.GROList: &pod.List}); err != nil {
			pod.Path, pod.Unfit = false, fmt.Sprintf("its features cannot be read: %v", err)
		}
		in.Pods = append(in.Pods, pod)
	}
	return in
}
