// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

var placeNames = [Places]string{
	Polled:   "polled from the NIC",
	Underlay: "received as the NIC's",
	Cell:     "decapsulated",
	Inner:    "received as the tunnel's",
	Bridged:  "sent to the pod's veth",
	InPod:    "received in the pod",
}

// Table shows on which cores packets came by each place.
func (c Counts) Table() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "place\tpackets\t")
	for cpu := range c[0] {
		fmt.Fprintf(w, "core %d\t", cpu)
	}
	fmt.Fprintln(w)
	for place, name := range placeNames {
		fmt.Fprintf(w, "%s\t%d\t", name, c.Total(Place(place)))
		for cpu := range c[place] {
			if c[place][cpu] == 0 {
				fmt.Fprint(w, "-\t")
			} else {
				fmt.Fprintf(w, "%.1f %%\t", 100*c.Share(Place(place), cpu))
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

// String names a poll as PRISM's Figure 6 does: the stage that it works for and
// its packets. A backlog is polled for the stage whose packets it had most of.
func (p Poll) String() string {
	switch {
	case p.Role == Wire:
		return fmt.Sprintf("eth:%d", p.Work)
	case p.Role == Tunnel:
		return fmt.Sprintf("br:%d", p.Work)
	case p.Role == LatencyLane:
		return fmt.Sprintf("eth(latency):%d", p.Work)
	case p.Role == BulkLane:
		return fmt.Sprintf("eth(bulk):%d", p.Work)
	case p.ForTunnel():
		return fmt.Sprintf("br(lane):%d", p.Work)
	}
	return fmt.Sprintf("veth:%d", p.Work)
}

// ForTunnel tells that a backlog was polled for packets of the tunnel: that is
// where steering sends them.
func (p Poll) ForTunnel() bool { return p.Role == Backlog && p.Tunnel > p.Pod }

// ForPod tells that a backlog was polled for packets of a pod.
func (p Poll) ForPod() bool { return p.Role == Backlog && p.Pod >= p.Tunnel && p.Pod > 0 }

// Order shows records side by side, core by core: the order in which NAPIs were
// polled. Rows of one core follow each other in time; those of different cores
// are not aligned.
func Order(rows int, names []string, records ...[]Poll) string {
	type column struct {
		title string
		polls []Poll
	}
	var columns []column
	for i, record := range records {
		for cpu := range 1 + maxCPU(record) {
			var on []Poll
			for _, p := range record {
				if p.CPU == cpu {
					on = append(on, p)
				}
			}
			if len(on) > 0 {
				columns = append(columns, column{fmt.Sprintf("%s, core %d", names[i], cpu), on})
			}
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "poll\t")
	for _, c := range columns {
		fmt.Fprintf(w, "%s\t", c.title)
	}
	fmt.Fprintln(w)
	for row := range rows {
		fmt.Fprintf(w, "%d\t", row+1)
		for _, c := range columns {
			if row < len(c.polls) {
				fmt.Fprint(w, c.polls[row])
			}
			fmt.Fprint(w, "\t")
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

func maxCPU(polls []Poll) int {
	top := 0
	for _, p := range polls {
		top = max(top, p.CPU)
	}
	return top
}
