// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"fmt"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// planInput puts what was seen on the node into the planner's words. Both the daemon and
// `overlane plan` plan by it. reasons say why devices are not to join datagrams. busy are the tunnels that are to join
// and to be counted. Another one that does so joins on: what its GRO holds would be overtaken.
func planInput(s *node.Scanner, snap node.Snapshot, busy []node.Tunnel, owned map[plan.Setting]plan.Owned, reasons map[node.DevKey]shortcut.Onlooker) plan.AggregateInput {
	in := plan.AggregateInput{Owned: owned}
	dataplane := foreign.Dataplanes(s, snap)
	add := func(to *[]plan.Aggregator, dev node.Dev) {
		*to = append(*to, aggregator(s, dev, cmp.Or(dataplane[dev.Key()], reasons[dev.Key()].String())))
	}
	for _, dev := range snap.Receivers() {
		add(&in.Underlays, dev)
	}
	counted := map[node.DevKey]bool{}
	for _, t := range busy {
		counted[t.Key()] = true
	}
	for _, t := range snap.Tunnels {
		target := plan.Target(t.Dev)
		if _, ours := owned[plan.Aggregates(target)]; !counted[t.Key()] && !ours {
			in.Tunnels = append(in.Tunnels, plan.Aggregator{Target: target, Unfit: tooMany, Uncounted: true})
			continue
		}
		add(&in.Tunnels, t.Dev)
		in.Tunnels[len(in.Tunnels)-1].Uncounted = !counted[t.Key()]
	}
	return in
}

// mostTunnels join datagrams themselves, and are counted. For each of them the kernel waits for all cores when the
// program comes, and when it goes; there may be hundreds, most of them idle.
const mostTunnels = datapath.MaxTunnels

var tooMany = fmt.Sprintf("its datagrams are joined on the NIC only, and not counted: %d tunnels receive more, or did", mostTunnels)

// aggregator reads also what is to be left alone: what overlane has switched on there is taken back.
func aggregator(s *node.Scanner, dev node.Dev, unfit string) plan.Aggregator {
	a := plan.Aggregator{Target: plan.Target(dev)}
	var err error
	if a.Hold, err = s.GROHold(dev); err == nil {
		err = mechanism.Offloads(s, dev, map[string]*string{plan.GRO: &a.GRO, plan.UDPForwarding: &a.Forwarding, plan.GROList: &a.List})
	}
	if a.Unfit = unfit; a.Unfit == "" && err != nil {
		a.Unfit = fmt.Sprintf("left alone: %v", err)
	}
	return a
}

// firstTunnels stand for the busiest where no load is measured.
func firstTunnels(snap node.Snapshot) []node.Tunnel {
	return snap.Tunnels[:min(mostTunnels, len(snap.Tunnels))]
}

// Foresee says what datagrams change that come in a row.
func Foresee(v *mechanism.View, mode governor.Mode) ([]mechanism.Outlook, error) {
	if mode == governor.Off {
		return nil, nil
	}
	var reasons map[node.DevKey]shortcut.Onlooker
	if mode != governor.Forced {
		var err error
		if reasons, err = shortcut.NewJoinEligibility(v.Scanner, v.Owns, nil).Scan(v.Snapshot, true, false); err != nil {
			return nil, err
		}
	}
	out := mechanism.Outlook{Name: name, Plan: plan.Aggregate(planInput(v.Scanner, v.Snapshot, firstTunnels(v.Snapshot), v.Owned(plan.ByAggregation), reasons))}
	planned := len(out.Attach)
	out.Attach = v.Missing(out.Attach)
	switch {
	case len(v.Snapshot.Underlays) == 0:
		out.When = "for aggregation, run would wait for an underlay: there is none yet"
	case out.Empty() && planned > 0:
		out.When = "for aggregation, nothing is to be changed: the running daemon has done it"
	case out.Empty():
		out.When = "for aggregation, run would change nothing here now:"
	case len(out.Steps) == 0:
		out.When = "for aggregation, no setting is to be changed: UDP GRO forwarding is on already"
	case mode == governor.Forced:
		out.When = "for aggregation, run would do this at once:"
	default:
		out.When = "once packets come so fast that datagrams may come in a row, run would do this:"
	}
	return []mechanism.Outlook{out}, nil
}
