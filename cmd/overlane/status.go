// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/node"
)

// answerTime is how long a daemon that is not restoring may take to answer.
const answerTime = 5 * time.Second

func newStatusCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "What the daemon does, and why",
		Long: `Shows what the daemon of this network namespace does.

MECHANISM: the state of each, and the reason.
  active       acts on packets
  standby      could act, and it would not pay now
  off          switched off in the configuration
  unsupported  the kernel or the NIC cannot
  manual       the setting was changed by another program; it is left alone

Below:
  TRIAL    what a mechanism has gained here, against times without it
  LANE     the cores that flows are sent to
  PACKETS  how many were sent there, and how many took the stock path
  STAGE    what a packet costs, as measured`,
		Example: `  overlane status
  overlane status --json | jq .counters.steered_packets`,
		Args:        cobra.NoArgs,
		Annotations: cli.Exits(map[int]string{cli.ExitFailure: "no daemon runs, or it does not answer", cli.ExitUnsupported: ""}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withDaemon("status", func(c *control.Client) error {
				ctx, cancel := context.WithTimeout(cmd.Context(), answerTime)
				defer cancel()
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if global.json {
					return cli.JSON(cmd.OutOrStdout(), st)
				}
				showStatus(newScreen(cmd.OutOrStdout()), st, time.Now())
				return nil
			})
		},
	}
}

func showStatus(s *screen, st control.Status, now time.Time) {
	state := cell{string(st.State), bold}
	if st.State == control.Running {
		state.style = green
	}
	s.line(cell{"overlane " + st.Version + " ", bold}, state, cell{" for " + ago(now.Sub(st.Since)), plain})
	about := []string{fmt.Sprintf("pid %d", st.PID)}
	if st.Kernel != "" {
		about = append(about, "kernel "+st.Kernel)
	}
	if len(st.Cores) > 0 {
		about = append(about, "cores "+st.Cores.String())
	}
	s.line(cell{strings.Join(about, ", "), dim})
	if st.Reason != "" {
		s.line(cell{st.Reason, yellow})
	}
	if m := st.Metrics; m.Reason != "" {
		s.line(cell{fmt.Sprintf("metrics are not served at %s: %s", m.Address, m.Reason), yellow})
	}
	s.section([]string{"MECHANISM", "STATE", ">SINCE", "WHY"}, rowsOf(st.Mechanisms, func(m control.Mechanism) []cell { return mechanismRow(m, now) }))
	s.section([]string{"TRIAL", "VERDICT", ">PACKETS", ">COST", ">WAIT", ">PAIRS", ">AGO", ">HOLDS"}, rowsOf(st.Trials, func(t control.Trial) []cell { return trialRow(t, now) }))
	s.section([]string{"LANE", ">CORE", ">PACKETS", ">QUEUE", ">DROPS"}, rowsOf(st.Lanes, laneRow))
	s.section([]string{"PACKETS", ">COUNT", ""}, counterRows(st))
	s.section([]string{"", "RULE", "CLASS", "FROM", ">PACKETS", "FITS"}, ruleRows(st.Rules))
	s.section([]string{"SPARSE FLOW", ">CORE", "LATENCY BY ITSELF, WITH"}, rowsOf(st.SparseFlows, sparseRow))
	s.section([]string{"EXPRESS TO", "VETH", "FROM", "PAST", "OPEN", "WHY NOT"}, rowsOf(st.Express, expressRow))
	s.section([]string{"STAGE", ">NS/PACKET"}, rowsOf(st.StageCosts, costRow))
	s.section([]string{"TIER", "REACHED", "WHY"}, tierRows(st.Tiers))
	s.section([]string{"NAME", "ROLE", "NETWORK", ">VNI", "STATE", "WHY"}, rowsOf(st.Devices, deviceRow))
	s.section([]string{"SERVICE", ">PID", "WHAT THAT MEANS"}, rowsOf(st.Services, serviceRow))
}

func stateCell(st control.MechanismState) cell {
	colors := map[control.MechanismState]style{control.Active: green, control.Manual: yellow, control.Unsupported: yellow}
	return cell{string(st), colors[st]}
}

// rowsOf has a row for each.
func rowsOf[T any](list []T, row func(T) []cell) (rows [][]cell) {
	for _, one := range list {
		rows = append(rows, row(one))
	}
	return rows
}

func mechanismRow(m control.Mechanism, now time.Time) []cell {
	since := "-"
	if !m.Since.IsZero() {
		since = ago(now.Sub(m.Since))
	}
	return []cell{{m.Name, bold}, stateCell(m.State), {since, plain}, {m.Reason, plain}}
}

// trialRow tells of a trial what was measured with the mechanism, of that without.
func trialRow(t control.Trial, now time.Time) []cell {
	times := func(x *float64) cell {
		if x == nil {
			return cell{"-", plain}
		}
		return cell{fmt.Sprintf("%.2f×", *x), plain}
	}
	verdict := cell{t.Verdict, map[string]style{"better": green, "worse": red}[t.Verdict]}
	holds := cell{"-", plain}
	if left := t.Until.Sub(now); left > 0 {
		holds = cell{ago(left), plain}
	}
	return []cell{{t.Mechanism, bold}, verdict, times(t.Packets), times(t.Cost), times(t.Wait),
		{fmt.Sprint(t.Pairs), plain}, {ago(now.Sub(t.At)), plain}, holds}
}

func laneRow(l control.Lane) []cell {
	drops := cell{count(l.Drops), plain}
	if l.Drops > 0 {
		drops.style = red
	}
	return []cell{{l.Stage, bold}, {fmt.Sprint(l.Core), plain}, {count(l.Packets), plain}, {count(l.Queue), plain}, drops}
}

func counterRows(st control.Status) (rows [][]cell) {
	c, share := st.Counters, ""
	if c.OverlayPackets > 0 {
		share = fmt.Sprintf("%.1f %% of the overlay's", 100*float64(c.SteeredPackets)/float64(c.OverlayPackets))
	}
	add := func(name string, n uint64, what string) {
		rows = append(rows, []cell{{name, bold}, {count(n), plain}, {what, dim}})
	}
	add("overlay", c.OverlayPackets, "inside of a tunnel that is served")
	add("steered", c.SteeredPackets, share)
	add("lane changes", c.LaneChanges, count(c.LaneChangesHeld)+" held until the old lane was empty")
	if c.LaneRefused > 0 {
		rows = append(rows, []cell{{"refused", bold}, {count(c.LaneRefused), red}, {"dropped for their flow to leave a full lane", dim}})
	}
	if c.SplitPackets > 0 {
		add("split", c.SplitPackets, fmt.Sprintf("in %s micro-flows; %s times a flow began to be", count(c.Microflows), count(c.Splits)))
	}
	if n := c.MergePassed + c.MergeHeld; n > 0 {
		add("merged", n, fmt.Sprintf("%s waited for others; %s times these were lost, %s times late; %s did not wait, %s dropped, %s before they came there; %s wait now",
			count(c.MergeHeld), count(c.MergeGaps), count(c.MergeExpired), count(c.MergeUnwatched), count(c.MergeRefused+c.MergeDropped), count(c.MergeNoRoom), count(c.MergeWaiting)))
	}
	if c.SuperPackets > 0 {
		add("aggregated", c.AggregatedPackets, fmt.Sprintf("crossed the overlay in %s super-packets", count(c.SuperPackets)))
	}
	if c.ExpressPackets > 0 {
		add("express", c.ExpressPackets, fmt.Sprintf("straight from the NIC to the pod; %s times a flow left that path before it was seen to be empty; %s found no room",
			count(c.ExpressLeft), count(c.ExpressDrops)))
	}
	for _, r := range slices.Sorted(maps.Keys(c.ExpressUnfit)) {
		add("full path", c.ExpressUnfit[r], "not plain: "+r)
	}
	if c.LatencyPackets+c.BulkPackets > 0 {
		add("latency", c.LatencyPackets, fmt.Sprintf("%s behind what their flow had in the bulk lane, %s in it as beyond their share of the core",
			count(c.LatencyHeld), count(c.LatencyExcess)))
		add("bulk", c.BulkPackets, fmt.Sprintf("%s by the bulk lane, %s dropped since it was full", count(c.BulkLane), count(c.Refused)))
	}
	reasons := slices.SortedFunc(maps.Keys(c.Unparsed), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.Unparsed[b], c.Unparsed[a]), cmp.Compare(a, b))
	})
	for _, r := range reasons {
		if n := c.Unparsed[r]; n > 0 {
			add("stock path", n, r)
		}
	}
	return rows
}

func expressRow(w control.ExpressPath) []cell {
	return []cell{{w.Name, bold}, {w.Pod, plain}, {w.NIC, plain}, {w.Tunnel, plain}, yesOr(plain, w.Open), {w.Reason, plain}}
}

func costRow(c control.StageCost) []cell {
	ns := "not measured"
	if c.NsPerPacket != nil {
		ns = fmt.Sprintf("%.0f", *c.NsPerPacket)
	}
	return []cell{{c.Stage, bold}, {ns, plain}}
}

func tierRows(tiers []control.TierStatus) (rows [][]cell) {
	for _, t := range tiers {
		rows = append(rows, answerRows(t.Name, t.Reached, t.Reason, t.Remedy)...)
	}
	return rows
}

// answerRows say whether there is something, why, and what would change that.
func answerRows(name string, yes bool, reason, remedy string) [][]cell {
	rows := [][]cell{{{name, bold}, yesOr(yellow, yes), {reason, plain}}}
	if remedy != "" {
		rows = append(rows, []cell{{}, {}, {remedy, command}})
	}
	return rows
}

// yesOr is a green yes, or a no in a style.
func yesOr(no style, yes bool) cell {
	if yes {
		return cell{"yes", green}
	}
	return cell{"no", no}
}

// nameOf is the name of a device, or what people call the place that it leads to.
func nameOf(name string, place *node.Place) string {
	if place == nil {
		return name
	}
	return cmp.Or(place.String(), name)
}

func deviceRow(d control.Device) []cell {
	vni := ""
	if d.VNI != nil {
		vni = fmt.Sprint(*d.VNI)
	}
	return []cell{{nameOf(d.Name, d.Place), bold}, {string(d.Role), plain}, {d.Network, plain}, {vni, plain}, stateCell(d.State), {d.Reason, plain}}
}
