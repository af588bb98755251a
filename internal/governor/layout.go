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
// (docs/measurements-log.md); they only serve until the node's own are known.
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
	// with Here so does the core that polls. Sets says of which flows, the neediest core's first.
	Split, Here bool
	Sets        []Branches
	// Whole are the cores whose flows are not split, as there are no branches for them, sorted.
	Whole []int
	// Merge: split flows are put in order again, behind which they go on on the Pod cores.
	Merge  bool
	Reason string
	// Gain is the predicted factor of one flow's packet rate.
	Gain float64
	// Helps is how many cores the lanes can keep up with; 0: with all.
	Helps int
}

// None tells that no stage is worth a hop.
func (l Layout) None() bool { return len(l.NIC)+len(l.Tunnel)+len(l.Pod) == 0 }

// Pays tells whether the predicted gain is worth it.
func (l Layout) Pays() bool { return l.Gain >= minGain }

// all tells that the flows of all cores are helped together: behind lanes of the nic stage it is the lanes'
// cores that count frames, and micro-flows are for flows, wherever they come.
func (l Layout) all() bool { return l.Split || len(l.NIC) > 0 }

// need is how many of some lanes there have to be at least.
type need struct {
	cores []int
	least int
}

// needs are what a placement cannot do without: of each stage one lane; of branches two, or the only one, and the
// cores behind them.
func (l Layout) needs() (list []need) {
	if !l.Split {
		return []need{{l.NIC, 1}, {l.Tunnel, 1}, {l.Pod, 1}}
	}
	for _, s := range l.Sets {
		list = append(list, need{s.Cores, min(2, len(s.Cores))})
	}
	if len(l.NIC) > 0 {
		list = append(list, need{l.Tunnel, len(l.Tunnel)})
	}
	return append(list, need{l.Pod, len(l.Pod)})
}

// Shape tells what kind of placement it is, whichever cores it has: what one shows holds for another of the
// same shape.
func (l Layout) Shape() string {
	s := fmt.Sprintf("nic %d, tunnel %d, pod %d", len(l.NIC), len(l.Tunnel), len(l.Pod))
	if l.Split {
		s += ", split"
	}
	return s
}

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

// String is what the configuration calls it.
func (t Tier) String() string {
	if t == XDP {
		return "xdp"
	}
	return "tc"
}

// Place decides which stages hop, and to which of a machine's cores. With tier XDP the nic stage hops,
// whatever the prediction: that tier is only asked for by name.
func Place(tier Tier, m Machine, measured Costs) Layout {
	cost, source := measured.OrTypical(), "measured stage costs"
	if !measured.Known() {
		source = "typical stage costs"
	}
	if none := m.none(tier); none != "" {
		return Layout{Gain: 1, Reason: none}
	}
	best := Layout{Gain: 1, Reason: fmt.Sprintf("no hop is worth it by %s", source)}
	list := m.candidates(cost)
	if tier == XDP {
		list = m.splits(cost)
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

// none says why there is no core to hop to, or nothing.
func (m Machine) none(tier Tier) string {
	switch others := m.others(); {
	case len(m.Cores) == 0 || len(m.Cores) == 1 && len(others) == 0:
		return "one core: there is none to hop to"
	case len(m.free()) > 0:
		return ""
	case len(others) > 0:
		return "tasks, or packets that they receive, need all the other cores"
	case m.Short != nil:
		return "every core polls a NIC, and none of them has time to spare; give the NIC fewer queues (ethtool -L) to leave some"
	case tier == XDP:
		return "every core polls a NIC: none is left for the NIC's stage (tier: xdp); give the NIC fewer queues (ethtool -L), or set tier: tc"
	}
	return ""
}

// PlaceBesidePriority is Place where bulk must not wait in a backlog in which latency
// traffic does: on a core that polls a NIC, nothing comes back.
func PlaceBesidePriority(m Machine, measured Costs) Layout {
	if m.Cores = m.others(); len(m.Cores) == 0 {
		return Layout{Gain: 1, Reason: "every core polls a NIC, where latency traffic comes first: none is left for bulk to hop to"}
	}
	return Place(TC, m, measured)
}

// candidates are the placements worth comparing, the preferred one first, with
// their predicted gain: the time of the slowest core per packet, against all
// stages on one. With one free core the hop there and back comes first: a core
// that only has pods' packets to handle is done with each batch before the next,
// and so has to be woken for every one.
func (m Machine) candidates(c Costs) []Layout {
	free, h := m.free(), c.Hop
	switch {
	case len(free) >= 2:
		// Cores of their own for either stage, in proportion to its cost.
		both := free[:m.size(free, c.NIC+h/2, c.Tunnel+h, c.Pod+h/2)]
		n := part(len(both), c.Tunnel, c.Pod)
		pod := free[:m.size(free, c.NIC+c.Tunnel+h/2, c.Pod+h/2)]
		return []Layout{
			m.predict(Layout{Tunnel: lanes(both[:n]), Pod: lanes(both[n:])}, c, c.NIC+h/2, c.Tunnel+h, c.Pod+h/2),
			m.predict(Layout{Pod: lanes(pod)}, c, c.NIC+c.Tunnel+h/2, 0, c.Pod+h/2),
		}
	case len(free) == 1:
		alone := m.predict(Layout{Pod: free}, c, c.NIC+c.Tunnel+h/2, 0, c.Pod+h/2)
		i := slices.IndexFunc(m.helped(), func(core int) bool { return slices.Contains(m.Cores, core) })
		if i < 0 {
			return []Layout{alone} // the core that is helped may take nothing back
		}
		there := m.predict(Layout{Tunnel: free}, c, c.NIC+c.Pod+h, c.Tunnel+h, 0)
		if there.Pod = m.helped()[i : i+1]; m.Short != nil {
			there.Helps = 1 // that one
		}
		return []Layout{there, alone}
	default:
		// Every core polls the NIC: the upper ones take the tunnel stage of
		// the others' flows, the lower ones the pod stage.
		n := max(len(m.Cores)/2, 1)
		return []Layout{
			m.predict(Layout{Tunnel: lanes(m.Cores[n:]), Pod: lanes(m.Cores[:n])}, c, c.NIC+c.Pod+h, c.Tunnel+h, 0),
		}
	}
}

// predict fills in what a placement gains and how many cores its lanes keep up with, where the core that
// polls has so much to do for a frame, and the lanes so much.
func (m Machine) predict(l Layout, c Costs, here, tunnel, pod float64) Layout {
	slowest := here
	for _, stage := range []struct {
		cost  float64
		cores []int
	}{{tunnel, l.Tunnel}, {pod, l.Pod}} {
		if stage.cost == 0 {
			continue
		}
		// One flow has one lane, and what that one has left.
		var room, most float64
		for _, core := range stage.cores {
			room, most = room+m.room(core), max(most, m.room(core))
		}
		if m.Short == nil {
			most = 1
		} else {
			// To send lanes more than they can do costs packets on which a core has spent time already.
			helps := max(int(room*here/stage.cost), 1)
			if l.Helps == 0 || helps < l.Helps {
				l.Helps = helps
			}
			most = min(most, room/float64(min(helps, len(m.Short))))
		}
		slowest = max(slowest, stage.cost/most)
	}
	l.Gain = (c.NIC + c.Tunnel + c.Pod) / slowest
	return l
}

// splits are the placements in which the nic stage goes to threads on other
// cores than those that poll.
func (m Machine) splits(c Costs) []Layout {
	free := m.free()
	one := c.NIC + c.Tunnel + c.Pod
	gain := func(slowest ...float64) float64 { return one / slices.Max(slowest) }
	thread := c.NIC + splitThread
	switch {
	case len(free) >= 3:
		free = free[:max(m.size(free, splitPoll, thread+c.Hop/2, c.Tunnel+c.Hop, c.Pod+c.Hop/2), 3)]
		n := min(part(len(free), thread, c.Tunnel+c.Pod), len(free)-2)
		t := n + part(len(free)-n, c.Tunnel, c.Pod)
		return []Layout{{NIC: lanes(free[:n]), Tunnel: lanes(free[n:t]), Pod: lanes(free[t:]),
			Gain: gain(splitPoll, thread+c.Hop/2, c.Tunnel+c.Hop, c.Pod+c.Hop/2)}}
	case len(free) == 2:
		// The thread's core has no backlog of its own kind: the pod stage may
		// come back to it.
		return []Layout{{NIC: free[:1], Tunnel: free[1:], Pod: free[:1],
			Gain: gain(splitPoll, thread+c.Pod+c.Hop, c.Tunnel+c.Hop)}}
	case len(free) == 1 && len(m.Cores) > 1:
		rest := slices.DeleteFunc(slices.Clone(m.Cores), func(core int) bool { return core == free[0] })
		return []Layout{{NIC: free, Tunnel: rest[:1], Pod: free,
			Gain: gain(splitPoll+c.Tunnel+c.Hop, thread+c.Pod+c.Hop)}}
	}
	return nil
}

// spare is how much more room lanes have than they need: flows come to them by their hashes.
const spare = 1.5

// size is how many of the free cores are needed as lanes: for each core that is helped as many as
// keep up with it, when it has nothing but its own stage to do, and one for each stage.
func (m Machine) size(free []int, own float64, stages ...float64) int {
	if m.Short == nil {
		return len(free)
	}
	var behind float64
	for _, s := range stages {
		behind += s
	}
	need, n := spare*float64(len(m.Short))*behind/own, 0
	for _, core := range free {
		if n >= len(stages) && need <= 0 {
			break
		}
		need -= m.room(core)
		n++
	}
	return n
}

// part is how many of n cores a stage gets that shares them with another one: by their costs,
// each at least one.
func part(n int, cost, others float64) int {
	return min(max(int(float64(n)*cost/(cost+others)+0.5), 1), n-1)
}

// MaxLanes is how many lanes a stage can have in the kernel side, MaxSets how many sets of branches
// there can be.
const (
	MaxLanes = 64
	MaxSets  = 63
)

// lanes are cores in the order in which the kernel keeps those of an RPS mask.
func lanes(cores []int) []int {
	return slices.Sorted(slices.Values(cores[:min(len(cores), MaxLanes)]))
}
