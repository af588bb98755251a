// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"cmp"
	"fmt"
	"slices"
)

// Costs is the measured time in each stage, in ns for each frame that the NIC
// received: behind GRO many of these are one packet. Zero: not measured.
type Costs struct {
	NIC, Tunnel, Pod float64
	// Hop is what handing a packet to another core's backlog adds, on both
	// sides together.
	Hop float64
}

// Known tells whether the stages have been measured.
func (c Costs) Known() bool { return c.NIC > 0 && c.Tunnel > 0 && c.Pod > 0 }

// OrTypical fills in what has not been measured.
func (c Costs) OrTypical() Costs {
	if !c.Known() {
		c = Costs{NIC: typical.NIC, Tunnel: typical.Tunnel, Pod: typical.Pod, Hop: c.Hop}
	}
	c.Hop = cmp.Or(c.Hop, typical.Hop)
	return c
}

// typical are the proportions of the stages of a bridged VXLAN overlay
// (docs/measurements.md); they only serve until the node's own are known.
var typical = Costs{NIC: 900, Tunnel: 1150, Pod: 650, Hop: 250}

// Layout is the placement of the stages: which cores take the work of the
// tunnel stage and of the pod stage. A core is in one list at most, so that no
// backlog carries hops of two ranks: else packets that are nearly done would be
// dropped for packets that have just come.
type Layout struct {
	NIC    []int // tier 2 only: the cores that build skbs, in threads of their own
	Tunnel []int
	Pod    []int
	// Split: each of the NIC cores does all stages of the micro-flows that it gets, and
	// with Here so does the core that polls.
	Split, Here bool
	// Merge: split flows are put in order again, behind which they go on on the Pod cores.
	Merge  bool
	Reason string
	// Gain is the predicted factor of one flow's packet rate.
	Gain float64
}

// None tells that no stage is worth a hop.
func (l Layout) None() bool { return len(l.NIC)+len(l.Tunnel)+len(l.Pod) == 0 }

// Pays tells whether the predicted gain is worth it.
func (l Layout) Pays() bool { return l.Gain >= minGain }

// Cores are all that take work from others, each once.
func (l Layout) Cores() []int {
	all := slices.Concat(l.NIC, l.Tunnel, l.Pod)
	slices.Sort(all)
	return slices.Compact(all)
}

// minGain is the least predicted gain for which a hop is taken, and clearly by
// how much a placement must be predicted to be better than one that is listed
// before it: predictions from stage costs are no better than that.
const (
	minGain = 1.05
	clearly = 1.15
)

// Split is the further cost, in ns per frame, of doing the nic stage in a cpumap
// thread: XDP on the core that polls, the ring, smaller batches.
const (
	splitPoll   = 200
	splitThread = 400
)

// Tier is which facilities a placement may use.
type Tier int

const (
	// TC steers behind the nic stage only.
	TC Tier = iota + 1
	// XDP splits the nic stage too.
	XDP
)

// Place decides which stages hop, and to which of the cores, given those that
// poll the NIC. cores is sorted. With tier XDP the nic stage hops, whatever the
// prediction: that tier is only asked for by name.
func Place(tier Tier, cores, nic []int, measured Costs) Layout {
	cost, source := measured.OrTypical(), "measured stage costs"
	if !measured.Known() {
		source = "typical stage costs"
	}
	var free []int
	for _, c := range cores {
		if !slices.Contains(nic, c) {
			free = append(free, c)
		}
	}
	if len(cores) == 0 || len(cores) == 1 && len(free) == 0 {
		return Layout{Gain: 1, Reason: "one core: there is none to hop to"}
	}
	if tier == XDP && len(free) == 0 {
		return Layout{Gain: 1, Reason: "every core polls a NIC: none is left for the NIC's stage (tier: xdp); give the NIC fewer queues (ethtool -L), or set tier: tc"}
	}
	best := Layout{Gain: 1, Reason: fmt.Sprintf("no hop is worth it by %s", source)}
	list := candidates(cores, nic, free, cost)
	if tier == XDP {
		list = splits(cores, free, cost)
	}
	for _, l := range list {
		if tier == XDP || l.Pays() && (best.None() || l.Gain > clearly*best.Gain) {
			l.Reason = fmt.Sprintf("%s (nic %.0f, tunnel %.0f, pod %.0f, hop %.0f ns): %.2f times one core's rate predicted",
				source, cost.NIC, cost.Tunnel, cost.Pod, cost.Hop, l.Gain)
			best = l
		}
	}
	return best
}

// PlaceBesidePriority is Place where bulk must not wait in a backlog in which latency
// traffic does: on a core that polls a NIC, nothing comes back.
func PlaceBesidePriority(cores, nic []int, measured Costs) Layout {
	free := slices.DeleteFunc(slices.Clone(cores), func(c int) bool { return slices.Contains(nic, c) })
	if len(free) == 0 {
		return Layout{Gain: 1, Reason: "every core polls a NIC, where latency traffic comes first: none is left for bulk to hop to"}
	}
	return Place(TC, free, nil, measured)
}

// candidates are the placements worth comparing, the preferred one first, with
// their predicted gain: the time of the slowest core per packet, against all
// stages on one. With one free core the hop there and back comes first: a core
// that only has pods' packets to handle is done with each batch before the next,
// and so has to be woken for every one.
func candidates(cores, nic, free []int, c Costs) []Layout {
	one := c.NIC + c.Tunnel + c.Pod
	gain := func(slowest ...float64) float64 { return one / slices.Max(slowest) }
	h := c.Hop
	switch {
	case len(free) >= 2:
		// Cores of their own for either stage, in proportion to its cost.
		n := int(float64(len(free))*c.Tunnel/(c.Tunnel+c.Pod) + 0.5)
		n = min(max(n, 1), len(free)-1)
		return []Layout{
			{Tunnel: lanes(free[:n]), Pod: lanes(free[n:]), Gain: gain(c.NIC+h/2, c.Tunnel+h, c.Pod+h/2)},
			{Pod: lanes(free), Gain: gain(c.NIC+c.Tunnel+h/2, c.Pod+h/2)},
		}
	case len(free) == 1:
		alone := Layout{Pod: free, Gain: gain(c.NIC+c.Tunnel+h/2, c.Pod+h/2)}
		i := slices.IndexFunc(nic, func(c int) bool { return slices.Contains(cores, c) })
		if i < 0 {
			return []Layout{alone} // the NIC's core may take nothing back
		}
		return []Layout{{Tunnel: free, Pod: nic[i : i+1], Gain: gain(c.NIC+c.Pod+h, c.Tunnel+h)}, alone}
	default:
		// Every core polls the NIC: the upper ones take the tunnel stage of
		// the others' flows, the lower ones the pod stage.
		n := max(len(cores)/2, 1)
		return []Layout{
			{Tunnel: lanes(cores[n:]), Pod: lanes(cores[:n]), Gain: gain(c.NIC+c.Pod+h, c.Tunnel+h)},
		}
	}
}

// splits are the placements in which the nic stage goes to threads on other
// cores than those that poll.
func splits(cores, free []int, c Costs) []Layout {
	one := c.NIC + c.Tunnel + c.Pod
	gain := func(slowest ...float64) float64 { return one / slices.Max(slowest) }
	thread := c.NIC + splitThread
	switch {
	case len(free) >= 3:
		n := max(int(float64(len(free))*thread/(thread+c.Tunnel+c.Pod)), 1)
		t := min(max(int(float64(len(free)-n)*c.Tunnel/(c.Tunnel+c.Pod)+0.5), 1), len(free)-n-1)
		return []Layout{{NIC: lanes(free[:n]), Tunnel: lanes(free[n : n+t]), Pod: lanes(free[n+t:]),
			Gain: gain(splitPoll, thread+c.Hop/2, c.Tunnel+c.Hop, c.Pod+c.Hop/2)}}
	case len(free) == 2:
		// The thread's core has no backlog of its own kind: the pod stage may
		// come back to it.
		return []Layout{{NIC: free[:1], Tunnel: free[1:], Pod: free[:1],
			Gain: gain(splitPoll, thread+c.Pod+c.Hop, c.Tunnel+c.Hop)}}
	case len(free) == 1 && len(cores) > 1:
		return []Layout{{NIC: free, Tunnel: []int{other(cores, free[0])}, Pod: free,
			Gain: gain(splitPoll+c.Tunnel+c.Hop, thread+c.Pod+c.Hop)}}
	}
	return nil
}

// MaxLanes is how many lanes a stage can have in the kernel side.
const MaxLanes = 64

func lanes(cores []int) []int { return cores[:min(len(cores), MaxLanes)] }

func other(cores []int, not int) int {
	for _, c := range cores {
		if c != not {
			return c
		}
	}
	return not
}
