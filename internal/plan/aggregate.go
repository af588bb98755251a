// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/shell"
)

// The features of a device that aggregation is about.
const (
	GRO           = ethtool.GRO
	UDPForwarding = ethtool.UDPForwarding
	GROList       = ethtool.GROList
)

const (
	// CountProgram counts what aggregation comes to.
	CountProgram = "ol_tunnel_count"
	// OrderProgram tells flows that the GRO of a NIC would reorder.
	OrderProgram = "ol_nic_order"
)

// Aggregator is an underlay, or a tunnel, as aggregation finds it.
type Aggregator struct {
	Target
	// The values of its features, "" for one that the kernel does not know.
	GRO, Forwarding, List string
	// Hold is how long GRO may keep packets for others that may come.
	Hold time.Duration
	// Unfit says why it is left as it is, "" if it is not.
	Unfit string
	// Uncounted: of tunnels, it gets no program.
	Uncounted bool
}

// AggregateInput is everything that aggregation's plan depends on.
type AggregateInput struct {
	Underlays []Aggregator
	// Tunnels join what the underlays could not: behind a lane without GRO, or where the
	// sender is on the same machine. There it is counted, too.
	Tunnels []Aggregator
	// Owned holds the settings that overlane has changed and not undone.
	Owned map[Setting]Owned
}

// Aggregates returns the setting that has a device aggregate datagrams.
func Aggregates(t Target) Setting {
	return Setting{Target: t, Kind: EthtoolFeature, Attr: UDPForwarding}
}

// Aggregate plans that devices join datagrams of one flow that come in a row, and the program
// that counts them.
func Aggregate(in AggregateInput) Plan {
	p := Plan{Steps: []Step{}, Attach: []Attachment{}, Skipped: []Skip{}}
	on := false
	for i, dev := range slices.Concat(in.Underlays, in.Tunnels) {
		s := Aggregates(dev.Target)
		ours, touched := in.Owned[s]
		if why := dev.unfit(touched); why != "" {
			if touched && dev.Forwarding == "on" {
				p.Steps = append(p.Steps, Step{Setting: s, Was: "on", First: ours.First, Want: ours.First, Reason: why})
			}
			p.Skipped = append(p.Skipped, Skip{What: s.String(), Reason: why, Target: dev.Target})
			continue
		}
		if on = true; dev.Forwarding != "on" {
			p.Steps = append(p.Steps, Step{Setting: s, Was: dev.Forwarding, First: Requested(dev.Forwarding), Want: "on",
				Reason: "datagrams of one flow that come in a row cross the overlay as one packet"})
		}
		if i < len(in.Underlays) {
			p.Attach = append(p.Attach, Attachment{Target: dev.Target, Program: OrderProgram, Hook: "tcx ingress", Reason: "tells flows that would be reordered"})
		}
	}
	p.Steps = of(ByAggregation, p.Steps)
	if !on {
		return p
	}
	for _, t := range in.Tunnels {
		if t.Uncounted {
			continue
		}
		p.Attach = append(p.Attach, Attachment{Target: t.Target, Program: CountProgram, Hook: "tcx ingress", Reason: "counts them"})
	}
	return p
}

func (a Aggregator) unfit(touched bool) string {
	switch {
	case a.Unfit != "":
		return a.Unfit
	case a.Forwarding == "":
		return "this kernel's GRO does not join datagrams (Linux 5.12 does)"
	case touched && a.Forwarding != "on":
		return "left alone: another program has switched it off again"
	case a.GRO != "on":
		return shell.See("GRO is off", shell.Command("ethtool -K %s gro on", a.Name))
	case a.List == "on":
		return "left alone: another program has GRO chain packets (rx-gro-list)"
	case a.Hold > 0:
		return fmt.Sprintf("GRO may hold packets back for %v (gro_flush_timeout), which datagrams have not been so far", a.Hold)
	}
	return ""
}
