// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// express hands frames from the NICs straight to the pods' veths, where nothing on the way there
// could tell.
type express struct {
	judges *judges // nil while it does not act
	ways   []way   // as last judged
	// open are the ways that flows may take, closing those that they are leaving, since then.
	open    map[datapath.ExpressKey]bool
	closing map[datapath.ExpressKey]time.Time
	skipped []plan.Skip

	since   time.Time // when it began to act, or ceased to
	quiet   time.Time // since when hardly a packet has come
	checked time.Time
	retry   time.Time
	err     error // why the last attempt to put it in place failed
	dropped uint64
}

// A way is one from an underlay, by a tunnel, to a pod.
type way struct {
	nic    node.Underlay
	tunnel node.Tunnel
	pod    node.Pod
	reason string // against it; empty: none
	key    datapath.ExpressKey
	to     datapath.ExpressWay
}

const (
	// glanceEvery is how often it is looked for what makes no event.
	glanceEvery = 50 * time.Millisecond
	// closeAfter is by when every flow has left a way that is withdrawn.
	closeAfter = 100 * time.Millisecond
	// expressQuiet is how long hardly a packet must have come before the ways are closed.
	expressQuiet = time.Minute
)

// stepExpress takes one window: decide, act.
func (d *Daemon) stepExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	if d.opts.Express != governor.Auto {
		return nil
	}
	rate, err := d.softnet.read(now)
	if err != nil {
		return err
	}
	if rate >= asleepBelow && !math.IsInf(rate, 1) {
		e.quiet = now
	}
	active := now.Sub(e.quiet) < expressQuiet && now.After(e.retry)
	switch {
	case !active && e.judges == nil:
	case !active:
		d.log.Info("express standby", "reason", "hardly a packet comes")
		_, err := d.stopExpress(ctx)
		return err
	case e.judges == nil || now.Sub(e.checked) >= checkEvery || len(e.closing) > 0:
		return d.tryExpress(ctx, now)
	}
	return nil
}

// changed tells that a judgement may be otherwise now; nil while it does not act.
func (e *express) changed() <-chan struct{} {
	if e.judges == nil {
		return nil
	}
	return e.judges.changed
}

// due is the time to glance, while there are ways that flows may be on.
func (e *express) due(tick <-chan time.Time) <-chan time.Time {
	if len(e.open)+len(e.closing) == 0 {
		return nil
	}
	return tick
}

// tryExpress makes it fit the node; where that fails, it leaves no trace.
func (d *Daemon) tryExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	before := len(e.open)
	if e.err = d.followExpress(ctx, now); e.err != nil {
		e.retry = now.Add(retryAfter)
		d.log.Error("express could not be put in place", "reason", e.err, "again_in", retryAfter)
		_, err := d.stopExpress(ctx)
		return err
	}
	if n := len(e.open); n != before {
		d.log.Info("express ways", "open", n, "were", before)
	}
	return nil
}

// glanceExpress looks for what makes no event, and for frames that do not arrive.
func (d *Daemon) glanceExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	c, err := d.dp.Counters()
	if err != nil {
		return err
	}
	dropped := c.ExpressDrop != e.dropped
	e.dropped = c.ExpressDrop
	if !dropped && !e.judges.glance() {
		return nil
	}
	return d.tryExpress(ctx, now)
}

// followExpress judges each way anew: those that are no longer safe are withdrawn before
// anything else is done.
func (d *Daemon) followExpress(ctx context.Context, now time.Time) error {
	e := &d.expr
	if e.judges == nil {
		e.judges = newJudges(d.scanner, d.dp.Owns)
		e.open, e.closing = map[datapath.ExpressKey]bool{}, map[datapath.ExpressKey]time.Time{}
		e.since = now
	}
	e.checked = now
	owned := apply.Owned(d.locked.Entries())
	var errs []error
	errs = append(errs, d.judgeWays(owned))
	in := expressInput(d.scanner, e.ways, owned)
	in.Join = d.opts.Aggregate != governor.Off
	made := plan.Express(in)
	e.skipped = made.Skipped
	for i := range e.ways {
		w := &e.ways[i]
		at := slices.IndexFunc(made.Skipped, func(s plan.Skip) bool { return s.Target == target(w.pod.Peer) })
		if at >= 0 && w.reason == "" {
			w.reason = made.Skipped[at].Reason
		}
	}
	safe := map[datapath.ExpressKey]way{}
	twice := map[datapath.ExpressKey]bool{}
	for i := range e.ways {
		w := &e.ways[i]
		if w.reason == "" && (twice[w.key] || safe[w.key].reason != "" || has(safe, w.key)) {
			delete(safe, w.key)
			twice[w.key] = true
			w.reason = "another tunnel with the same number and port leads to a pod with the same address"
			continue
		}
		if w.reason == "" {
			safe[w.key] = *w
		}
	}
	for k := range e.open {
		if has(safe, k) {
			continue
		}
		errs = append(errs, d.dp.WithdrawWay(k))
		delete(e.open, k)
		e.closing[k] = now
	}
	for k, since := range e.closing {
		if now.Sub(since) < closeAfter {
			delete(safe, k)
			continue
		}
		errs = append(errs, d.dp.CloseWay(k))
		delete(e.closing, k)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return errors.Join(d.openWays(ctx, made, safe), d.leaveLandings(owned))
}

func has[K comparable, V any](m map[K]V, k K) bool { _, ok := m[k]; return ok }

// openWays has frames take the ways that are safe.
func (d *Daemon) openWays(ctx context.Context, made plan.Plan, safe map[datapath.ExpressKey]way) error {
	e := &d.expr
	if len(safe) == 0 {
		return nil
	}
	if err := d.carryOut(made.Steps); err != nil {
		return err
	}
	fresh := false
	for _, w := range safe {
		if d.pipe.xdp[w.nic.Key()] == nil {
			if err := d.pipe.hangXDP(w.nic); err != nil {
				return err
			}
			fresh = fresh || d.pipe.xdp[w.nic.Key()] != nil
		}
	}
	if fresh {
		// What came before the hook must not be overtaken.
		if err := d.pipe.passed(ctx, graceTimeout); err != nil {
			d.log.Debug("packets from before the hook may still be on their way", "reason", err)
		}
	}
	for k, w := range safe {
		if d.pipe.xdp[w.nic.Key()] == nil {
			continue // gone since the scan
		}
		err := d.openWay(k, w)
		switch {
		case errors.Is(err, node.ErrGone):
			continue
		case errors.Is(err, datapath.ErrTooManyPods):
			d.log.Warn("some pods have no express path", "reason", err)
			continue
		case err != nil:
			return err
		}
		e.open[k] = true
	}
	return d.dp.SetExpress(true)
}

func (d *Daemon) openWay(k datapath.ExpressKey, w way) error {
	host, err := d.scanner.Namespace(w.pod.Host.NetnsCookie)
	if err != nil {
		return err
	}
	defer host.Close()
	pod, err := d.scanner.Namespace(w.pod.Peer.NetnsCookie)
	if err != nil {
		return err
	}
	defer pod.Close()
	w.to.Host = datapath.Device{Netns: host, Ifindex: w.pod.Host.Ifindex}
	w.to.Pod = datapath.CellDevice{Ifindex: w.pod.Peer.Ifindex, NetnsIno: pod.Inode()}
	return d.dp.AddWay(k, w.to)
}

// leaveLandings takes back what no way needs any more.
func (d *Daemon) leaveLandings(owned map[plan.Setting]plan.Owned) error {
	needed := map[plan.Target]bool{}
	here := map[plan.Target]bool{}
	for _, w := range d.expr.ways {
		here[target(w.pod.Peer)] = true
		if w.reason == "" || has(d.expr.closing, w.key) {
			needed[target(w.pod.Peer)] = true
		}
	}
	err := d.locked.Forget(func(t plan.Target) bool {
		_, ours := owned[plan.Lands(t)]
		return ours && !here[t] && d.pipe.gone(t)
	})
	over := func(s plan.Setting) bool { return d.ofExpress(s) && !needed[s.Target] }
	if slices.ContainsFunc(d.locked.Entries(), func(e apply.Entry) bool { return over(e.Setting) }) {
		_, e := d.restore(over)
		err = errors.Join(err, e)
	}
	return err
}

// stopExpress leaves no trace of it but the hook on the NICs, which stays until the daemon ends.
func (d *Daemon) stopExpress(ctx context.Context) (rep apply.Report, err error) {
	e := &d.expr
	if e.judges == nil {
		return rep, nil
	}
	for k := range e.open {
		err = errors.Join(err, d.dp.WithdrawWay(k))
		e.closing[k] = time.Now()
	}
	if len(e.closing) > 0 {
		// Frames that are on their way land before their landing is taken away.
		select {
		case <-time.After(closeAfter):
		case <-ctx.Done():
		}
	}
	for k := range e.closing {
		err = errors.Join(err, d.dp.CloseWay(k))
	}
	rep, r := d.restore(d.ofExpress)
	err = errors.Join(err, d.dp.SetExpress(false), r, e.judges.close())
	e.judges, e.ways, e.open, e.closing, e.skipped = nil, nil, nil, nil, nil
	e.since = time.Now()
	return rep, err
}

// judgeWays looks at each way from a NIC to a pod.
func (d *Daemon) judgeWays(owned map[plan.Setting]plan.Owned) error {
	e := &d.expr
	e.ways = nil
	nics := map[node.DevKey]node.Underlay{}
	for _, u := range d.snap.Underlays {
		nics[u.Key()] = u
	}
	tunnels := map[node.DevKey]node.Tunnel{}
	for _, t := range d.snap.Tunnels {
		tunnels[t.Key()] = t
	}
	by := map[uint64][]shortcut.Way{}
	for _, p := range d.snap.Pods {
		for _, t := range p.Tunnels {
			for _, u := range tunnels[t.Key()].Underlays {
				w := way{nic: nics[u.Key()], tunnel: tunnels[t.Key()], pod: p}
				w.reason = d.unfitWay(w, owned)
				e.ways = append(e.ways, w)
			}
			by[t.NetnsCookie] = append(by[t.NetnsCookie], shortcut.Way{Tunnel: t, Host: p.Host})
		}
	}
	var errs []error
	verdicts := map[shortcut.Way]shortcut.Verdict{}
	for cookie, ways := range by {
		w, err := e.judges.watcher(cookie)
		if err != nil {
			if !errors.Is(err, node.ErrGone) {
				errs = append(errs, err)
			}
			continue
		}
		for _, v := range w.Check(ways) {
			verdicts[v.Way] = v
		}
	}
	entries, err := d.judgeIngress()
	if err != nil {
		errs = append(errs, err)
	}
	for i := range e.ways {
		w := &e.ways[i]
		if w.reason != "" {
			continue
		}
		v, ok := verdicts[shortcut.Way{Tunnel: w.tunnel.Dev, Host: w.pod.Host}]
		from, known := entries[w.ingress()]
		switch {
		case !ok || !known:
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
			w.to = datapath.ExpressWay{
				MaxLen: v.MTU + ethernetWithTag, Refresh: v.Relearn / refreshPart,
				Local: from.Locals[0], NICMAC: from.MAC, TunnelMAC: v.TunnelMAC,
			}
		}
	}
	errs = append(errs, e.judges.keep(func(cookie uint64) bool { return by[cookie] != nil || cookie == d.cookie }))
	return errors.Join(errs...)
}

// ingress is what the NIC's side of a way is asked about.
func (w way) ingress() shortcut.Ingress {
	return shortcut.Ingress{NIC: w.nic.Dev, Local: w.tunnel.Local, Port: w.tunnel.Port}
}

// judgeIngress looks at the NICs' side of the ways.
func (d *Daemon) judgeIngress() (map[shortcut.Ingress]shortcut.IngressVerdict, error) {
	var list []shortcut.Ingress
	for _, w := range d.expr.ways {
		if in := w.ingress(); w.reason == "" && !slices.Contains(list, in) {
			list = append(list, in)
		}
	}
	verdicts := map[shortcut.Ingress]shortcut.IngressVerdict{}
	if len(list) == 0 {
		return verdicts, nil
	}
	w, err := d.expr.judges.watcher(d.cookie)
	if err != nil {
		return nil, err
	}
	for _, v := range w.CheckIngress(list) {
		verdicts[v.Ingress] = v
	}
	return verdicts, nil
}

// unfitWay says what speaks against a way without a look at who else is there.
func (d *Daemon) unfitWay(w way, owned map[plan.Setting]plan.Owned) string {
	switch {
	case d.prio != nil:
		return "priority has its own program on the NICs"
	case d.pipe.armed && d.pipe.layout.Split:
		return "flows are cut into micro-flows"
	case w.nic.VLANs:
		return noXDPUnderVLANs
	case w.nic.ForeignXDP && d.pipe.xdp[w.nic.Key()] == nil:
		return foreignXDP
	case w.tunnel.Outer == 6:
		return "only IPv4 outside is understood"
	case w.pod.PeerRxQueues != 1:
		return fmt.Sprintf("the pod's end of its veth has %d receive queues, between which packets could overtake", w.pod.PeerRxQueues)
	}
	for _, dev := range []node.Dev{w.tunnel.Dev, w.pod.Peer} {
		set, err := d.scanner.Settings(dev)
		if err != nil {
			return fmt.Sprintf("how %s receives cannot be read: %v", dev.Name, err)
		}
		if set.Threaded {
			return dev.Name + " is polled by a thread of its own"
		}
		for i, mask := range set.RPSCPUs {
			_, ours := owned[plan.RPSMask(target(dev), i)]
			if strings.Trim(mask, "0,") != "" && (!ours || dev.Same(w.pod.Peer)) {
				return fmt.Sprintf("RPS moves the packets of %s to other cores", dev.Name)
			}
		}
	}
	return ""
}

// expressInput puts what was judged into the planner's words.
func expressInput(s *node.Scanner, ways []way, owned map[plan.Setting]plan.Owned) plan.ExpressInput {
	in := plan.ExpressInput{Owned: owned}
	for _, w := range ways {
		nic := target(w.nic.Dev)
		if w.reason == "" && !slices.Contains(in.NICs, nic) {
			in.NICs = append(in.NICs, nic)
		}
		at := slices.IndexFunc(in.Pods, func(l plan.Landing) bool { return l.Target == target(w.pod.Peer) })
		if at >= 0 {
			in.Pods[at].Way = in.Pods[at].Way || w.reason == ""
			continue
		}
		l := plan.Landing{Target: target(w.pod.Peer), Way: w.reason == "", Unfit: w.reason}
		if err := offloads(s, w.pod.Peer, map[string]*string{plan.GRO: &l.GRO, plan.GROList: &l.List}); err != nil {
			l.Way, l.Unfit = false, fmt.Sprintf("its features cannot be read: %v", err)
		}
		in.Pods = append(in.Pods, l)
	}
	return in
}

// ofExpress tells whether a setting is the express path's: pods live elsewhere than the NICs.
func (d *Daemon) ofExpress(s plan.Setting) bool {
	return s.Kind == plan.EthtoolFeature && (s.Attr == plan.GRO || s.Attr == plan.GROList) && s.NetnsCookie != d.cookie
}

// expressMechanism is what it does.
func (d *Daemon) expressMechanism() control.Mechanism {
	e := &d.expr
	m := control.Mechanism{Name: "express", State: control.Standby, Since: e.since}
	if m.Since.IsZero() {
		m.Since = d.since
	}
	safe := 0
	for _, w := range e.ways {
		if w.reason == "" {
			safe++
		}
	}
	switch {
	case d.opts.Express == governor.Off:
		m.State, m.Reason = control.Off, "switched off by configuration"
	case e.err != nil:
		m.Reason = fmt.Sprintf("could not be put in place, and is tried again every %s: %v", retryAfter, e.err)
	case e.judges == nil:
		m.Reason = "hardly a packet comes"
	case len(e.ways) == 0:
		m.Reason = "as soon as there is a pod"
	case safe == 0:
		m.Reason = "no way is without a policy or somebody else's program: " + e.ways[0].reason
	default:
		m.State, m.Reason = control.Active, fmt.Sprintf("%d of %d ways from NICs to pods are open", len(e.open), len(e.ways))
	}
	return m
}
