// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/node"
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
// counted and need not be seen, and so tell of nothing by themselves.
func (a *actuator) sees(ctx context.Context, snap node.Snapshot) error {
	left := func(t node.Tunnel) bool { return a.left[t.Key()] }
	known, _ := a.known(snap)
	if a.layout.Split || slices.ContainsFunc(known, left) && a.inFront(snap) == "" {
		return nil
	}
	if _, unseen, err := a.comes(ctx, enoughPackets); !unseen {
		return err
	}
	// These may have lain in a tunnel's queue before the programs came: a thousand where a thread polls the NIC of a
	// core that is short of time. The next ones are seen, then.
	if seen, _, err := a.comes(ctx, math.MaxUint64); seen || err != nil {
		return err
	}
	return a.unseen(snap)
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
func (a *actuator) unseen(snap node.Snapshot) error {
	if front := a.inFront(snap); front != "" {
		return fmt.Errorf("%s takes the packets before overlane's program sees them", front)
	}
	return errors.New("overlane's programs on the NICs see none of the packets that come out of tunnels: they may be encrypted (see: ip xfrm state), or come by another NIC")
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
