// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"fmt"

	"github.com/overlane/overlane/internal/foreign"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// Input puts what was seen on the node into the planner's words. Both the daemon and
// `overlane plan` plan by it. reasons say why devices are not to join datagrams.
func Input(s *node.Scanner, snap node.Snapshot, owned map[plan.Setting]plan.Owned, reasons map[node.DevKey]string) plan.AggregateInput {
	in := plan.AggregateInput{Owned: owned}
	dataplane := foreign.Dataplanes(s, snap)
	add := func(to *[]plan.Aggregator, dev node.Dev) {
		*to = append(*to, aggregator(s, dev, cmp.Or(dataplane[dev.Key()], reasons[dev.Key()])))
	}
	for _, dev := range snap.Receivers() {
		add(&in.Underlays, dev)
	}
	for _, t := range snap.Tunnels {
		add(&in.Tunnels, t.Dev)
	}
	return in
}

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
