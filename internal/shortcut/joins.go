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
	"github.com/overlane/overlane/internal/shell"
)

// JoinEligibility tells where datagrams are not to be joined, because something on their way would see the
// difference: rules on a packet's length or rate, sockets that get packets as they pass, tc.
type JoinEligibility struct {
	scanner  *node.Scanner
	places   *Places
	last     map[uint64]joinAnswer // of each namespace
	watchers *Watchers             // tell when rules change; nil: once only
	look     func(*joinSite) (Onlooker, Around, error)
}

// joinAnswer is what a namespace was found to say.
type joinAnswer struct {
	site   joinSite
	reason Onlooker
	failed bool // it could not be read
	around Around
}

// NewJoinEligibility reads by a scanner. own tells of BPF programs that they are overlane's. watchers tell when rules
// change, and are closed with it; nil: it scans once.
func NewJoinEligibility(s *node.Scanner, own func(progID uint32) bool, watchers *Watchers) *JoinEligibility {
	e := &JoinEligibility{scanner: s, places: NewPlaces(own), last: map[uint64]joinAnswer{}, watchers: watchers}
	e.look = e.visit
	return e
}

// joinSite is a network namespace, how joined datagrams come through it, and what joins them.
type joinSite struct {
	cookie uint64
	where  string // in front of what is there
	host   bool   // it has NICs or tunnels of the overlay
	Passage
	joins []node.DevKey
	fresh bool // it is to be looked at
}

// joinSites are the namespaces that joined datagrams come through.
type joinSites struct {
	list []*joinSite
	by   map[uint64]*joinSite
	// pods are the ends of pods on both sides. A snapshot tells better what leads there.
	pods map[node.DevKey]bool
}

// sitesOf lists those of the NICs, where what is forwarded and is no overlay's is joined as well, of the tunnels and of the
// pods behind them.
func sitesOf(snap node.Snapshot) *joinSites {
	s := &joinSites{by: map[uint64]*joinSite{}, pods: map[node.DevKey]bool{}}
	ports := map[node.DevKey][]node.DevKey{} // what joins the datagrams of a NIC: of a bond, its ports
	for _, u := range snap.Underlays {
		p := s.at(u.NetnsCookie)
		p.host = true
		p.Devs = append(p.Devs, Passed{Ifindex: u.Ifindex, Name: u.Name, In: true, Out: true})
		for _, r := range u.Receivers {
			if !r.Same(u.Dev) {
				p.Devs = append(p.Devs, Passed{Ifindex: r.Ifindex, Name: r.Name, In: true})
			}
			ports[u.Key()] = append(ports[u.Key()], r.Key())
		}
		p.joins = append(p.joins, ports[u.Key()]...)
	}
	behind := map[node.DevKey][]node.DevKey{} // what joins the datagrams of a tunnel
	for _, t := range snap.Tunnels {
		p := s.at(t.NetnsCookie)
		if len(p.Devs) == 0 {
			p.host, p.where = true, "in the namespace of "+t.Name
		}
		p.Devs = append(p.Devs, Passed{Ifindex: t.Ifindex, Name: t.Name, In: true})
		behind[t.Key()] = []node.DevKey{t.Key()}
		for _, u := range t.Underlays {
			behind[t.Key()] = append(behind[t.Key()], ports[u.Key()]...)
			if nic := s.at(u.NetnsCookie); !slices.Contains(nic.Ports, t.Port) {
				nic.Ports = append(nic.Ports, t.Port)
			}
		}
		p.joins = append(p.joins, behind[t.Key()]...)
	}
	come := func(d node.Dev, where string, tunnels []node.Dev) {
		p := s.at(d.NetnsCookie)
		if len(p.Devs) == 0 {
			p.where = where
		}
		p.Devs = append(p.Devs, Passed{Ifindex: d.Ifindex, Name: d.Name, In: true})
		for _, t := range tunnels {
			p.joins = append(p.joins, behind[t.Key()]...)
		}
		s.pods[d.Key()] = true
	}
	for _, pod := range snap.Pods {
		host := s.at(pod.Host.NetnsCookie)
		host.Devs = append(host.Devs, Passed{Ifindex: pod.Host.Ifindex, Name: pod.Host.Name, Out: true})
		s.pods[pod.Host.Key()] = true
		come(pod.Peer, "in the pod behind "+pod.Host.Name, pod.Tunnels)
	}
	for _, pod := range snap.Stacked {
		come(pod.Dev, ofDevice(pod.Name, pod.On.Name), pod.Tunnels)
	}
	return s
}

// ofDevice says where a device is that sits on another one elsewhere.
func ofDevice(name, on string) string { return "in the network namespace of " + name + " on " + on }

func (s *joinSites) at(cookie uint64) *joinSite {
	p := s.by[cookie]
	if p == nil {
		p = &joinSite{cookie: cookie, fresh: true}
		s.list = append(s.list, p)
		s.by[cookie] = p
	}
	return p
}

// reach has datagrams come to a namespace by a device, joined as in another one, and tells whether that is news.
func (s *joinSites) reach(from *joinSite, cookie uint64, d Passed, where string) (p *joinSite, news bool) {
	p = s.at(cookie)
	if len(p.Devs) == 0 {
		if p.where = where; from.where != "" {
			p.where += ", " + from.where
		}
	}
	if !slices.ContainsFunc(p.Devs, func(o Passed) bool { return o.Ifindex == d.Ifindex && o.In }) {
		p.Devs = append(p.Devs, d)
		p.fresh, news = true, true
	}
	for _, k := range from.joins {
		if !slices.Contains(p.joins, k) {
			p.joins = append(p.joins, k)
			news = true
		}
	}
	return p, news
}

// Scan says why a device is not to join datagrams, by device. all: pods, and where datagrams go on from there, are scanned
// anew as well, where rules make no event, and sockets nowhere do. joining: datagrams are joined by what it said last.
func (e *JoinEligibility) Scan(snap node.Snapshot, all, joining bool) (map[node.DevKey]Onlooker, error) {
	sites := sitesOf(snap)
	if err := e.follow(sites, all, joining); err != nil {
		return nil, err
	}
	reasons := map[node.DevKey]Onlooker{}
	for _, p := range sites.list {
		for _, dev := range p.joins {
			if reason := e.last[p.cookie].reason; reason.What != "" && reasons[dev].What == "" {
				reasons[dev] = reason
			}
		}
	}
	return reasons, e.keep(sites)
}

// follow looks at the namespaces, and at those that datagrams go on to from there, however far. all: those of the last time
// are looked at anew as well, unless they are hosts', which are at any rate.
func (e *JoinEligibility) follow(sites *joinSites, all, joining bool) error {
	if err := e.places.Begin(); err != nil {
		return err
	}
	if all {
		for _, cookie := range e.scanner.Known() {
			sites.at(cookie) // may have a device on one that datagrams come by
		}
	} else {
		for cookie, was := range e.last {
			if sites.by[cookie] == nil {
				p := sites.at(cookie)
				*p = was.site
			}
		}
	}
	for todo := slices.Clone(sites.list); len(todo) > 0; {
		p := todo[0]
		todo = todo[1:]
		if _, known := e.last[p.cookie]; p.fresh && (p.host || all || !known) {
			if err := e.ask(p, joining); errors.Is(err, node.ErrGone) {
				delete(e.last, p.cookie)
				continue
			} else if err != nil {
				return err
			}
		}
		p.fresh = false
		news, err := e.ends(sites, p)
		if err != nil {
			return err
		}
		if todo = append(todo, news...); len(todo) == 0 {
			if todo, err = e.over(sites); err != nil {
				return err
			}
		}
	}
	return nil
}

// ends follows pairs of devices from a namespace, and returns the namespaces of which something new is known by that.
func (e *JoinEligibility) ends(sites *joinSites, p *joinSite) (news []*joinSite, err error) {
	a := e.last[p.cookie]
	for _, end := range a.around.Ends {
		if sites.pods[node.DevKey{NetnsCookie: p.cookie, Ifindex: end.Ifindex}] {
			continue
		}
		there, err := e.scanner.Other(p.cookie, end.NSID, end.Other)
		if errors.Is(err, node.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if there == 0 {
			if a.reason.What == "" {
				a.reason = e.say(p, Onlooker{end.Name + " leads to a network namespace that was not found: it has no name, and no process is in it", shell.Command("ip -d link show dev %s", end.Name)})
				e.last[p.cookie] = a
			}
			continue
		}
		if to, is := sites.reach(p, there, Passed{Ifindex: end.Other, In: true}, "in the network namespace behind "+end.Name); is {
			news = append(news, to)
		}
	}
	return news, nil
}

// over follows devices that sit on those of other namespaces, which only the former tell of.
func (e *JoinEligibility) over(sites *joinSites) (news []*joinSite, err error) {
	for _, p := range slices.Clone(sites.list) {
		for _, o := range e.last[p.cookie].around.Over {
			if sites.pods[node.DevKey{NetnsCookie: p.cookie, Ifindex: o.Ifindex}] {
				continue
			}
			there, err := e.scanner.Other(p.cookie, o.NSID, o.Lower)
			if err != nil && !errors.Is(err, node.ErrGone) {
				return nil, err
			}
			from := sites.by[there]
			if from == nil {
				continue
			}
			devs := e.last[there].around.Devs
			i := slices.IndexFunc(devs, func(d Passed) bool { return d.Ifindex == o.Lower && d.In })
			if i < 0 {
				continue
			}
			if _, is := sites.reach(from, p.cookie, Passed{Ifindex: o.Ifindex, Name: o.Name, In: true}, ofDevice(o.Name, devs[i].Name)); is {
				news = append(news, p)
			}
		}
	}
	return news, nil
}

// keep remembers how datagrams come through these namespaces, and forgets all others.
func (e *JoinEligibility) keep(sites *joinSites) error {
	needed := func(cookie uint64) bool { return sites.by[cookie] != nil }
	e.places.Keep(needed)
	maps.DeleteFunc(e.last, func(cookie uint64, _ joinAnswer) bool { return !needed(cookie) })
	for cookie, a := range e.last {
		a.site = *sites.by[cookie]
		e.last[cookie] = a
	}
	if e.watchers == nil {
		return nil
	}
	return e.watchers.Keep(needed)
}

// ask has one namespace's rules watched if it is a host's, since to be watched keeps one alive, and finds out what is
// there. What cannot be read is a reason, too. But much of that is over by the next time, as where rules change under
// the reader: while datagrams are joined the last answer counts once more, if it was for all that is asked for now.
func (e *JoinEligibility) ask(p *joinSite, joining bool) error {
	if e.watchers != nil && p.host {
		w, err := e.watchers.Of(p.cookie)
		if err != nil {
			return err
		}
		if err := w.FollowRules(); err != nil {
			return err
		}
	}
	o, around, err := e.look(p)
	if errors.Is(err, node.ErrGone) {
		return err
	}
	last, known := e.last[p.cookie]
	now := joinAnswer{site: *p, failed: err != nil, around: around}
	switch {
	case err == nil:
		now.reason = e.say(p, o)
	case joining && known && !last.failed && last.site.covers(p):
		now.reason, now.around = last.reason, last.around
	default:
		now.reason = e.say(p, Onlooker{What: fmt.Sprintf("what joined datagrams would meet cannot be read: %v", err)})
	}
	e.last[p.cookie] = now
	return nil
}

// covers tells whether datagrams come to q by devices that were looked at for p, and are joined by no others.
func (p *joinSite) covers(q *joinSite) bool {
	return !slices.ContainsFunc(q.Devs, func(d Passed) bool { return !slices.Contains(p.Devs, d) }) &&
		!slices.ContainsFunc(q.joins, func(k node.DevKey) bool { return !slices.Contains(p.joins, k) })
}

// visit looks at one namespace.
func (e *JoinEligibility) visit(p *joinSite) (o Onlooker, around Around, err error) {
	ns, err := e.scanner.Namespace(p.cookie)
	if err != nil {
		return o, around, err
	}
	o, err = netns.Read(ns, func() (o Onlooker, err error) {
		o, around, err = e.places.Scan(p.cookie, p.Passage)
		return o, err
	})
	return o, around, errors.Join(err, ns.Close())
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

// AnyPod says what in a pod, or where datagrams go on from there, would tell joined datagrams from single ones; empty if
// nothing would. joining is Scan's.
func (e *JoinEligibility) AnyPod(snap node.Snapshot, joining bool) (string, error) {
	sites := sitesOf(node.Snapshot{Pods: snap.Pods})
	for _, pod := range snap.Pods {
		sites.at(pod.Host.NetnsCookie).Devs = nil // what the host has is no pod's
	}
	if err := e.follow(sites, true, joining); err != nil {
		return "", err
	}
	var found Onlooker
	for _, p := range sites.list {
		if len(p.Devs) > 0 {
			found = cmp.Or(found, e.last[p.cookie].reason)
		}
	}
	return found.String(), e.keep(sites)
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
