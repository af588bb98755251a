// SPDX-License-Identifier: Apache-2.0

package shortcut

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
)

// JoinEligibility tells where datagrams are not to be joined, because something on their way would see the
// difference: rules on a packet's length or rate, sockets that get packets as they pass, tc.
type JoinEligibility struct {
	scanner  *node.Scanner
	places   *Places
	last     map[uint64]joinAnswer // of each namespace
	watchers *Watchers             // tell when rules change; nil: once only
	look     func(*joinSite) (Onlooker, error)
}

// joinAnswer is what a namespace was found to say.
type joinAnswer struct {
	site   joinSite
	reason Onlooker
	failed bool // it could not be read
}

// NewJoinEligibility reads by a scanner. own tells of BPF programs that they are overlane's. watchers tell when rules
// change, and are closed with it; nil: it scans once.
func NewJoinEligibility(s *node.Scanner, own func(progID uint32) bool, watchers *Watchers) *JoinEligibility {
	e := &JoinEligibility{scanner: s, places: NewPlaces(own), last: map[uint64]joinAnswer{}, watchers: watchers}
	e.look = e.visit
	return e
}

// joinSite is a network namespace that joined datagrams come through, and what joins them.
type joinSite struct {
	cookie  uint64
	where   string // in front of what is there
	devs    []Passed
	bridged bool
	pod     bool
	joins   []node.DevKey
}

// joinSites lists the namespaces that joined datagrams come through: those of the NICs, where what is
// forwarded and is no overlay's is joined as well, of the tunnels and of the pods behind them.
func joinSites(snap node.Snapshot) []*joinSite {
	var list []*joinSite
	at := func(cookie uint64) *joinSite {
		if i := slices.IndexFunc(list, func(p *joinSite) bool { return p.cookie == cookie }); i >= 0 {
			return list[i]
		}
		list = append(list, &joinSite{cookie: cookie})
		return list[len(list)-1]
	}
	ports := map[node.DevKey][]node.DevKey{} // what joins the datagrams of a NIC: of a bond, its ports
	for _, u := range snap.Underlays {
		p := at(u.NetnsCookie)
		p.devs = append(p.devs, Passed{Ifindex: u.Ifindex, Name: u.Name, In: true, Out: true})
		for _, r := range u.Receivers {
			if !r.Same(u.Dev) {
				p.devs = append(p.devs, Passed{Ifindex: r.Ifindex, Name: r.Name, In: true})
			}
			ports[u.Key()] = append(ports[u.Key()], r.Key())
		}
		p.joins = append(p.joins, ports[u.Key()]...)
	}
	behind := map[node.DevKey][]node.DevKey{} // what joins the datagrams of a tunnel
	for _, t := range snap.Tunnels {
		p := at(t.NetnsCookie)
		if p.where == "" && len(p.devs) == 0 {
			p.where = "in the namespace of " + t.Name
		}
		p.devs = append(p.devs, Passed{Ifindex: t.Ifindex, Name: t.Name, In: true})
		p.bridged = p.bridged || t.Bridge != nil
		behind[t.Key()] = []node.DevKey{t.Key()}
		for _, u := range t.Underlays {
			behind[t.Key()] = append(behind[t.Key()], ports[u.Key()]...)
		}
		p.joins = append(p.joins, behind[t.Key()]...)
	}
	for _, pod := range snap.Pods {
		host := at(pod.Host.NetnsCookie)
		host.devs = append(host.devs, Passed{Ifindex: pod.Host.Ifindex, Name: pod.Host.Name, Out: true})
		p := at(pod.Peer.NetnsCookie)
		if len(p.devs) == 0 {
			p.pod, p.where = true, "in the pod behind "+pod.Host.Name
		}
		p.devs = append(p.devs, Passed{Ifindex: pod.Peer.Ifindex, Name: pod.Peer.Name, In: true})
		for _, t := range pod.Tunnels {
			p.joins = append(p.joins, behind[t.Key()]...)
		}
	}
	return list
}

// Scan says why a device is not to join datagrams, by device. all: pods are scanned anew as well,
// where rules make no event, and sockets nowhere do. joining: datagrams are joined by what it said last.
func (e *JoinEligibility) Scan(snap node.Snapshot, all, joining bool) (map[node.DevKey]Onlooker, error) {
	if err := e.places.Begin(); err != nil {
		return nil, err
	}
	reasons := map[node.DevKey]Onlooker{}
	seen := map[uint64]bool{}
	for _, p := range joinSites(snap) {
		seen[p.cookie] = true
		last, known := e.last[p.cookie]
		reason := last.reason
		if !p.pod || all || !known {
			var err error
			if reason, err = e.ask(p, joining); errors.Is(err, node.ErrGone) {
				continue
			} else if err != nil {
				return nil, err
			}
		}
		if reason.What == "" {
			continue
		}
		for _, dev := range p.joins {
			if reasons[dev].What == "" {
				reasons[dev] = reason
			}
		}
	}
	return reasons, e.keep(seen)
}

// keep forgets all other namespaces.
func (e *JoinEligibility) keep(seen map[uint64]bool) error {
	needed := func(cookie uint64) bool { return seen[cookie] }
	e.places.Keep(needed)
	maps.DeleteFunc(e.last, func(cookie uint64, _ joinAnswer) bool { return !seen[cookie] })
	if e.watchers == nil {
		return nil
	}
	return e.watchers.Keep(needed)
}

// ask has one namespace's rules watched unless it is a pod's, since to be watched keeps one alive, and says what is
// there. What cannot be read is a reason, too. But much of that is over by the next time, as where rules change under
// the reader: while datagrams are joined the last answer counts once more, if it was for all that is asked for now.
func (e *JoinEligibility) ask(p *joinSite, joining bool) (o Onlooker, err error) {
	if e.watchers != nil && !p.pod {
		w, err := e.watchers.Of(p.cookie)
		if err != nil {
			return o, err
		}
		if err := w.FollowRules(); err != nil {
			return o, err
		}
	}
	o, err = e.look(p)
	if errors.Is(err, node.ErrGone) {
		return o, err
	}
	last, known := e.last[p.cookie]
	now := joinAnswer{site: *p, failed: err != nil}
	switch {
	case err == nil:
		now.reason = e.say(p, o)
	case joining && known && !last.failed && last.site.covers(p):
		now.reason = last.reason
	default:
		now.reason = e.say(p, Onlooker{What: fmt.Sprintf("what joined datagrams would meet cannot be read: %v", err)})
	}
	e.last[p.cookie] = now
	return now.reason, nil
}

// covers tells whether datagrams come to q by devices that were looked at for p, and are joined by no others.
func (p *joinSite) covers(q *joinSite) bool {
	return p.bridged == q.bridged &&
		!slices.ContainsFunc(q.devs, func(d Passed) bool { return !slices.Contains(p.devs, d) }) &&
		!slices.ContainsFunc(q.joins, func(k node.DevKey) bool { return !slices.Contains(p.joins, k) })
}

// visit looks at one namespace.
func (e *JoinEligibility) visit(p *joinSite) (o Onlooker, err error) {
	ns, err := e.scanner.Namespace(p.cookie)
	if err != nil {
		return o, err
	}
	o, err = netns.Read(ns, func() (Onlooker, error) { return e.places.Scan(p.cookie, p.devs, p.bridged) })
	return o, errors.Join(err, ns.Close())
}

// LeftAlone begins each reason.
const LeftAlone = "left alone: "

// say puts it in words.
func (e *JoinEligibility) say(p *joinSite, o Onlooker) Onlooker {
	if o.What == "" {
		return o
	}
	where := ""
	if p.where != "" {
		where = p.where + ", "
		if path, err := e.scanner.Path(p.cookie); err == nil {
			o.See = o.See.In(path)
		}
	}
	o.What = LeftAlone + where + o.What + "; joined datagrams are one packet there"
	return o
}

// AnyPod says what in a pod would tell joined datagrams from single ones; empty if nothing would. joining is Scan's.
func (e *JoinEligibility) AnyPod(snap node.Snapshot, joining bool) (string, error) {
	if err := e.places.Begin(); err != nil {
		return "", err
	}
	seen := map[uint64]bool{}
	var found Onlooker
	for _, p := range joinSites(snap) {
		if !p.pod {
			continue
		}
		seen[p.cookie] = true
		reason, err := e.ask(p, joining)
		if err != nil && !errors.Is(err, node.ErrGone) {
			return "", err
		}
		found = cmp.Or(found, reason)
	}
	return found.String(), e.keep(seen)
}

// Changed tells that rules may be otherwise now; nil where none are watched.
func (e *JoinEligibility) Changed() <-chan struct{} {
	if e == nil {
		return nil
	}
	return e.watchers.Changed()
}

// Close lets go of the namespaces.
func (e *JoinEligibility) Close() error {
	if e.watchers == nil {
		return nil
	}
	return e.watchers.Close()
}
