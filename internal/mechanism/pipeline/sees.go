// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/shell"
	"github.com/overlane/overlane/internal/shortcut"
)

const (
	// enoughPackets out of tunnels tell that a program which has seen none does not see them.
	enoughPackets = 100
	// seesWithin is how long these are waited for. Without traffic no packet is overtaken.
	seesWithin = 300 * time.Millisecond
)

// sees makes sure that the programs on the underlays see what goes through the tunnels: a
// foreign program in front of them may take it, or IPsec may have encrypted it. Masks would then
// spread flows whose order no program guards. Packets of a tunnel that is left alone, and known, are
// counted and need not be seen, and so tell of nothing by themselves. Where nothing is steered no program is on a NIC.
func (a *actuator) sees(ctx context.Context, snap node.Snapshot) error {
	if a.layout.Split || a.nothing != "" || a.knowsLeft(snap) && a.inFront(snap) == "" {
		return nil
	}
	before, err := a.dp.Counters()
	if err != nil {
		return err
	}
	if _, unseen, err := a.comes(ctx, enoughPackets); !unseen {
		return err
	}
	// These may have lain in a tunnel's queue before the programs came: a thousand where a thread polls the NIC of a
	// core that is short of time. The next ones are seen, then.
	if seen, _, err := a.comes(ctx, math.MaxUint64); seen || err != nil {
		return err
	}
	return a.unseen(snap, before)
}

// knowsLeft tells whether packets are counted of a tunnel that is left alone.
func (a *actuator) knowsLeft(snap node.Snapshot) bool {
	known, _ := a.known(snap)
	return slices.ContainsFunc(known, func(t node.Tunnel) bool { return a.left[t.Key()] })
}

// comes waits until the programs on the underlays have seen a packet, or so many have come out of tunnels unseen:
// neither, if that takes longer than seesWithin. The error is ctx's if that ends meanwhile.
func (a *actuator) comes(ctx context.Context, enough uint64) (seen, unseen bool, err error) {
	within, cancel := context.WithTimeout(ctx, seesWithin)
	defer cancel()
	hook, tunnels, err := a.packets()
	if err != nil {
		return false, false, err
	}
	err = datapath.Await(within, func() (bool, error) {
		a.host.Meanwhile()
		h, t, err := a.packets()
		seen = h != hook
		unseen = !seen && t-tunnels >= enough
		return seen || unseen, err
	})
	if errors.Is(err, datapath.ErrFlowsOut) { // within has ended
		err = ctx.Err()
	}
	return seen, unseen && err == nil, err
}

// unseen says why no program saw the packets that came out of tunnels.
func (a *actuator) unseen(snap node.Snapshot, before datapath.Counters) error {
	if front := a.inFront(snap); front != "" {
		return fmt.Errorf("%s takes the packets before overlane's program sees them", front)
	}
	now, err := a.dp.Counters()
	if err != nil {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(now.Stock)) {
		if now.Stock[reason]-before.Stock[reason] >= enoughPackets {
			return fmt.Errorf("overlane's programs on the NICs cannot read the packets that come out of tunnels: %s", reason)
		}
	}
	return errors.New(a.elsewhere("overlane's programs on the NICs see none of the packets that come out of tunnels: they ", snap))
}

// elsewhere completes a sentence with how packets come that no program sees.
func (a *actuator) elsewhere(sentence string, snap node.Snapshot) string {
	const by = "come by a device that is no underlay here (all underlays can be named: underlays: [NIC, NIC])"
	if a.decrypts(snap) {
		return shell.See(sentence+"may be encrypted, or "+by, shell.Command("ip xfrm state"))
	}
	return sentence + by
}

// decrypts tells whether IPsec may decrypt what comes to the NICs' namespace.
func (p *Pipeline) decrypts(snap node.Snapshot) bool {
	if len(snap.Underlays) == 0 {
		return false
	}
	ns, err := p.host.Scanner().Namespace(snap.Underlays[0].NetnsCookie) // all are in one
	if err != nil {
		return true
	}
	defer ns.Close()
	may, err := netns.Read(ns, func() (bool, error) { return shortcut.MayDecrypt(), nil })
	return may || err != nil
}

// share is which part of the packets that come out of tunnels no program on a NIC has seen of late.
type share struct {
	at            time.Time
	seen, tunnels uint64
	reason        string // that much is not seen, if so
}

const (
	// shareEvery is over how long a share is taken.
	shareEvery = time.Second
	// muchUnseen is a share that waits in queues, or a route that changes, do not explain.
	muchUnseen = 0.05
)

// lookUnseen follows the share of packets that no program sees: routes do not tell by which NICs others send.
func (a *actuator) lookUnseen(now time.Time, snap node.Snapshot) error {
	if !a.armed || a.layout.Split || a.nothing != "" {
		a.share = share{}
		return nil
	}
	if now.Sub(a.share.at) < shareEvery {
		return nil
	}
	if a.knowsLeft(snap) {
		a.share = share{at: now}
		return nil
	}
	c, err := a.dp.Counters()
	if err != nil {
		return err
	}
	_, tunnels, err := a.packets()
	if err != nil {
		return err
	}
	next := share{at: now, seen: c.Overlay, tunnels: tunnels}
	for _, n := range c.Stock { // seen as well, and not read
		next.seen += n
	}
	came, seen := next.tunnels-a.share.tunnels, next.seen-a.share.seen
	if unseen := 1 - float64(seen)/float64(came); !a.share.at.IsZero() && came >= enoughPackets && unseen >= muchUnseen {
		// At least: what the programs see is counted in frames, of which GRO has made fewer packets.
		next.reason = a.elsewhere(fmt.Sprintf("at least %.0f %% of the packets that come out of tunnels are seen by no program on a NIC, and not steered: they ", 100*unseen), snap)
	}
	a.share = next
	return nil
}

// packets counts those that the programs on the underlays saw go to tunnels, and those that
// came out of these.
func (a *actuator) packets() (hook, tunnels uint64, err error) {
	c, err := a.dp.Counters()
	if err != nil {
		return 0, 0, err
	}
	cores, err := a.dp.Cores()
	for _, core := range cores {
		tunnels += core.Packets[datapath.Tunnel]
	}
	return c.Overlay, tunnels, err
}

// inFront names a foreign program on the way of packets to ours, empty if there is
// none.
func (a *actuator) inFront(snap node.Snapshot) string {
	nics := node.Snapshot{Underlays: slices.DeleteFunc(slices.Clone(snap.Underlays), func(u node.Underlay) bool { return a.left[u.Key()] })}
	hooks := foreign.On(a.host.Scanner(), nics)
	for _, u := range nics.Underlays {
		for _, other := range hooks[u.Key()].Programs {
			if other.Hook == "tcx ingress" && !a.host.Owns(other.ID) {
				return fmt.Sprintf("%s at %s of %s", foreign.Say(other.ID), other.Hook, u.Name)
			}
		}
	}
	return ""
}
