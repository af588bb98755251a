// SPDX-License-Identifier: Apache-2.0

// Package xdp owns the place for an XDP program on each NIC: a driver has one. Every mechanism gets
// it here, and from here only, so that what an attach costs, and that a driver refuses it, is found
// out once and told by each in the same words.
package xdp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shell"
)

// Mechanism is one that wants the place, by its key in the configuration.
type Mechanism string

// Mechanisms. Pipeline, micro-flows and express have one program in common.
const (
	Pipeline   Mechanism = "pipeline"
	Microflows Mechanism = "microflows"
	Express    Mechanism = "express"
	Priority   Mechanism = "priority"
)

// asks says how an operator asks for a mechanism.
var asks = map[Mechanism]string{
	Pipeline:   "tier: xdp",
	Microflows: "microflows: {mode: forced}",
	Express:    "express: forced",
	Priority:   "priority rules, or classify: auto",
}

// Want is which mechanism wants a place, and how.
type Want struct {
	By Mechanism
	// Asked: an operator has asked for it, and so takes what an attach costs.
	Asked bool
}

// Left is why a NIC is left without a program.
type Left struct{ Reason string }

func (e *Left) Error() string { return e.Reason }

const (
	// UnderVLANs: a frame that XDP sends to a lane loses the tag that the NIC took off, and with it
	// the VLAN that it was for.
	UnderVLANs = "no XDP program: a VLAN device or a bridge with VLANs is on it, and XDP does not see the tags that the NIC takes off"
	// Headless: a driver's way for each frame, as mlx5's with a striding receive queue and a large MTU.
	Headless = "no XDP program: its driver leaves the first buffer of frames empty, where XDP reads their headers; with mlx5 " +
		"a smaller MTU helps, or ethtool --set-priv-flags NIC rx_striding_rq off and a restart of overlane"
	// Foreign begins what is said of a program of others.
	Foreign = "left alone: a foreign XDP program is attached"
)

// Ground is what the places need of the node.
type Ground interface {
	// Look reads what an attach may change about a NIC.
	Look(node.Underlay) (State, error)
}

// Places are the places of a node's NICs. They are not safe for concurrent use.
type Places struct {
	ground Ground
	log    *slog.Logger
	memory *Memory
	places map[node.DevKey]*place
	busy   map[node.DevKey]string // refused for what others do there, until the next scan
	said   map[node.DevKey]string // what the log says last of a NIC
	named  map[uint32]string      // what is said of programs of others, until the next scan
}

// place is one that has a program of ours.
type place struct {
	nic  node.Underlay
	link io.Closer
	by   map[Mechanism]bool
}

// New returns places without a program. What is found out about NICs goes into memory.
func New(ground Ground, memory *Memory, log *slog.Logger) *Places {
	return &Places{ground: ground, log: log, memory: memory, places: map[node.DevKey]*place{}, busy: map[node.DevKey]string{}, said: map[node.DevKey]string{}, named: map[uint32]string{}}
}

// Why says why a mechanism would not get a NIC's place now; empty if it has it, or would be let try.
func (p *Places) Why(u node.Underlay, w Want) string {
	if why := p.Unfit(u); why != "" {
		return why
	}
	if pl := p.places[u.Key()]; pl != nil {
		if pl.by[Priority] != (w.By == Priority) && w.By != Express {
			return fmt.Sprintf("%s's program is on %s", pl.holders()[0], u.Name)
		}
		return u.Moves // its lanes are to be left
	}
	return p.Bars(u, w)
}

// Bars is Why as it would be without a program of ours there.
func (p *Places) Bars(u node.Underlay, w Want) string {
	switch why := p.Unfit(u); {
	case u.VLANs:
		return UnderVLANs
	case why != "":
		return why
	case u.ForeignXDP:
		return p.foreignOn(u)
	case p.busy[u.Key()] != "":
		return p.busy[u.Key()]
	case u.Moves != "":
		return "no XDP program: " + u.Moves
	}
	if r := p.memory.of(u).Refused; r != "" {
		return "no XDP program: " + r
	}
	if cost := p.Cost(u); cost != "" && !w.Asked {
		return fmt.Sprintf("no XDP program by itself: %s (to ask for it: %s)", cost, asks[w.By])
	}
	return ""
}

// Cost says what an attach to a NIC costs; empty if it is known to cost nothing. What was seen
// outweighs what is known of the driver, for the worse; nothing but what was seen is known of a
// driver that was not read.
func (p *Places) Cost(u node.Underlay) string {
	if seen := p.memory.harm(u); seen != "" {
		return fmt.Sprintf("attaching one to %s (%s) %s, as was seen", u.Name, u.Driver, seen)
	}
	var effects, unread []string
	for _, r := range u.Receivers {
		does, known := drivers[r.Driver]
		if !known {
			unread = append(unread, r.Driver)
		}
		for _, e := range does {
			if !slices.Contains(effects, string(e)) {
				effects = append(effects, string(e))
			}
		}
	}
	switch {
	case len(effects) > 0:
		return fmt.Sprintf("attaching one to %s (%s) %s", u.Name, u.Driver, strings.Join(effects, ", and "))
	case len(unread) > 0 && !p.memory.harmless(u):
		return fmt.Sprintf("what attaching one does to %s (driver %s) is not known", u.Name, unread[0])
	}
	return ""
}

// Take gives a mechanism the place on a NIC. attach puts its program there, if no other has put
// the same one. The error is a Left where the NIC is left alone, node.ErrGone where it is gone.
func (p *Places) Take(u node.Underlay, w Want, attach func() (io.Closer, error)) error {
	if why := p.Why(u, w); why != "" {
		p.say(u, why)
		return &Left{why}
	}
	if pl := p.places[u.Key()]; pl != nil {
		pl.by[w.By] = true
		return nil
	}
	before, err := p.ground.Look(u)
	if errors.Is(err, node.ErrGone) {
		return err
	}
	link, attachErr := attach()
	if attachErr != nil {
		return p.refused(u, before, attachErr)
	}
	p.places[u.Key()] = &place{nic: u, link: link, by: map[Mechanism]bool{w.By: true}}
	delete(p.said, u.Key())
	about := []any{"mechanism", w.By, "hook", "XDP", "device", u.Name}
	if cost := p.observe(u, before, err); cost != "" {
		about = append(about, "cost", cost)
	}
	p.log.Info("program attached", about...)
	return nil
}

// observe remembers what an attach has done to a NIC, and says it.
func (p *Places) observe(u node.Underlay, before State, unread error) string {
	after, err := p.ground.Look(u)
	if err := errors.Join(unread, err); err != nil {
		p.log.Warn("what attaching an XDP program does cannot be seen", "device", u.Dev, "reason", err)
		return p.Cost(u)
	}
	p.keep(u, p.memory.attached(u, before, after))
	return p.Cost(u)
}

// refused makes one thing of all ways in which an attach fails: the NIC is left alone.
func (p *Places) refused(u node.Underlay, before State, err error) error {
	no, refused := errors.AsType[*datapath.Refused](err)
	if !refused || errors.Is(err, node.ErrGone) {
		return err
	}
	why := "no XDP program: " + no.Error()
	if errors.Is(err, datapath.ErrForeignXDP) {
		why = fmt.Sprintf("%s: %v", Foreign, no)
		p.busy[u.Key()] = why
	} else {
		p.keep(u, p.memory.refused(u, before, no.Error()))
	}
	p.say(u, why)
	return &Left{why}
}

// keep tells that what was found out cannot be kept: it holds until the daemon ends all the same.
func (p *Places) keep(u node.Underlay, err error) {
	if err != nil {
		p.log.Warn("what was found out about XDP on a NIC is not kept", "device", u.Dev, "reason", err)
	}
}

// say logs why a NIC is left alone, once.
func (p *Places) say(u node.Underlay, why string) {
	if p.said[u.Key()] != why {
		p.said[u.Key()] = why
		p.log.Info("NIC is left without an XDP program", "device", u.Dev, "reason", why)
	}
}

// Look follows a scan: what stood against an attach may have changed, and NICs may be gone.
func (p *Places) Look(list []node.Underlay) {
	clear(p.busy)
	clear(p.named)
	here := map[node.DevKey]bool{}
	for _, u := range list {
		here[u.Key()] = true
	}
	for key, pl := range p.places {
		if here[key] {
			continue
		}
		if _, err := p.ground.Look(pl.nic); errors.Is(err, node.ErrGone) {
			_ = pl.link.Close() // the kernel has detached it
			delete(p.places, key)
		}
	}
	for _, u := range list {
		if pl := p.places[u.Key()]; pl != nil {
			pl.nic = u
		}
		if p.memory.of(u).unfinished && !slices.ContainsFunc(u.Receivers, node.Receiver.Hidden) {
			p.memory.make(u).unfinished = false // the scan tells
		}
		if p.memory.of(u).Refused == "" {
			continue
		}
		if s, err := p.ground.Look(u); err == nil && p.memory.reconsider(u, s) {
			p.log.Info("XDP may be tried again", "device", u.Dev, "reason", "its settings have changed since its driver refused")
		}
	}
}

// On tells whether a NIC has a program of ours.
func (p *Places) On(u node.Underlay) bool { return p.places[u.Key()] != nil }

// Holds tells whether a mechanism has a place.
func (p *Places) Holds(by Mechanism) bool {
	for _, pl := range p.places {
		if pl.by[by] {
			return true
		}
	}
	return false
}

// Shared tells whether a NIC has the program that all but priority have in common.
func (p *Places) Shared() bool {
	for _, pl := range p.places {
		if !pl.by[Priority] {
			return true
		}
	}
	return false
}

// Unfit says why no program may take frames of a NIC, whether there is one already or not; empty if one may.
func (p *Places) Unfit(u node.Underlay) string {
	switch {
	case p.Headless(u):
		return Headless
	case u.Unfinished != "":
		return "no XDP program: " + u.Unfinished
	case p.memory.of(u).unfinished:
		return "no XDP program: " + unfinished(u)
	}
	return ""
}

// unfinished is Unfit of a NIC by which frames came whose senders had left the checksum to the receiver.
func unfinished(u node.Underlay) string {
	why := fmt.Sprintf("frames came by %s whose senders had left the checksum to the receiver, %s", u.Name, node.CannotTell)
	if i := slices.IndexFunc(u.Receivers, node.Receiver.Hidden); i >= 0 {
		return shell.See(why, u.Receivers[i].FinishChecksums())
	}
	return why
}

// Headless tells whether a NIC's driver was seen to put headers where XDP does not read.
func (p *Places) Headless(u node.Underlay) bool { return p.memory.of(u).headless }

// SawHeadless takes the places away on which programs saw that, by the ifindexes of what receives, and returns whether
// there are any. Priority's is for priority to give back: what it has changed about the NIC goes before.
func (p *Places) SawHeadless(nics []int) (left bool, err error) {
	for _, pl := range p.places {
		if p.Headless(pl.nic) || !pl.receivesBy(nics) {
			continue
		}
		p.memory.make(pl.nic).headless, left = true, true
		p.say(pl.nic, Headless)
		for _, by := range pl.holders() {
			if !pl.by[Priority] {
				err = errors.Join(err, p.Release(pl.nic.Key(), by))
			}
		}
	}
	return left, err
}

// SawUnfinished takes note of NICs by which programs have seen frames whose senders had left the checksum to the
// receiver, by the ifindexes of what receives, and returns whether there are any. Mechanisms give the places back once
// what they hold of other frames is through.
func (p *Places) SawUnfinished(nics []int) (anew bool) {
	for _, pl := range p.places {
		if p.Unfit(pl.nic) == "" && pl.receivesBy(nics) {
			p.memory.make(pl.nic).unfinished, anew = true, true
			p.say(pl.nic, p.Unfit(pl.nic))
		}
	}
	return anew
}

// receivesBy tells whether one of these devices receives for the place's NIC.
func (pl *place) receivesBy(nics []int) bool {
	return slices.ContainsFunc(pl.nic.Receivers, func(r node.Receiver) bool { return slices.Contains(nics, r.Ifindex) })
}

// ReleaseUnfit gives back the places of some mechanisms whose frames no program may take.
func (p *Places) ReleaseUnfit(by ...Mechanism) (err error) {
	for nic, pl := range maps.Clone(p.places) {
		if p.Unfit(pl.nic) == "" {
			continue
		}
		for _, m := range by {
			err = errors.Join(err, p.Release(nic, m))
		}
	}
	return err
}

// Release gives a NIC's place back. The program goes with the last mechanism that has it, and
// priority's with priority.
func (p *Places) Release(nic node.DevKey, by Mechanism) error {
	pl := p.places[nic]
	if pl == nil || !pl.by[by] {
		return nil
	}
	delete(pl.by, by)
	if by == Priority {
		clear(pl.by) // express uses priority's program, which goes with it
	}
	if len(pl.by) > 0 {
		return nil
	}
	delete(p.places, nic)
	err := pl.link.Close()
	p.log.Info("program detached", "mechanism", by, "hook", "XDP", "device", pl.nic.Name)
	return err
}

// ReleaseAll gives back all places of some mechanisms.
func (p *Places) ReleaseAll(by ...Mechanism) error {
	var errs []error
	for nic := range maps.Clone(p.places) {
		for _, m := range by {
			errs = append(errs, p.Release(nic, m))
		}
	}
	return errors.Join(errs...)
}

// Held is a place that has a program.
type Held struct {
	NIC node.Dev
	By  []Mechanism
	// Cost is what taking the program off, and attaching it again, costs; empty: nothing.
	Cost string
}

// Held lists the places that have a program, by device.
func (p *Places) Held() []Held {
	var list []Held
	for _, pl := range p.places {
		list = append(list, Held{pl.nic.Dev, pl.holders(), p.Cost(pl.nic)})
	}
	slices.SortFunc(list, func(a, b Held) int { return a.NIC.Ifindex - b.NIC.Ifindex })
	return list
}

func (pl *place) holders() []Mechanism { return slices.Sorted(maps.Keys(pl.by)) }

// foreignOn is why a NIC gets no XDP program, by the name of the one that is there.
func (p *Places) foreignOn(u node.Underlay) string {
	if u.XDPProgID == 0 {
		return Foreign
	}
	said := p.named[u.XDPProgID]
	if said == "" {
		said = name(u)
		p.named[u.XDPProgID] = said
	}
	return said
}

func name(u node.Underlay) string {
	said := Foreign + ": " + foreign.Say(u.XDPProgID)
	if foreign.OwnerOf(foreign.ProgramName(u.XDPProgID)) == foreign.LibXDP {
		said += ", which runs others in turn; overlane does not join them"
	}
	return said
}

// NoNIC says why none of these has a place for a mechanism, but for other programs of overlane's; empty if one has, or
// if there is none.
func (p *Places) NoNIC(nics []node.Underlay, w Want) (why string) {
	for _, u := range nics {
		if why = p.Bars(u, w); why == "" {
			return ""
		}
	}
	return why
}
