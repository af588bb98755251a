// SPDX-License-Identifier: Apache-2.0

// Package governor decides when mechanisms act, where they would work, and whether they have shown
// that they pay. It is pure: what is measured goes in with the time, what to do comes out with
// the reason.
package governor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// State is what the pipeline does.
type State int

const (
	// Standby: nothing of ours is on the node's devices.
	Standby State = iota
	// Parked: programs and masks are in place, every flow takes the stock path.
	Parked
	// Active: flows are steered.
	Active
)

func (s State) String() string { return [...]string{"standby", "parked", "active"}[s] }

// Core is one core's load during a window.
type Core struct {
	// Saturated is the share of the window spent in receive polls that
	// followed directly on one that left work: 0 to 1.
	Saturated float64
	// Tasks is the share of the window in which ordinary tasks ran: not idle
	// ones, not the kernel's own threads.
	Tasks float64
	// Load is the share that tasks took lately, and softirqs, which receive packets among other things.
	Load float64
	// Movable is the share of that time that went into the stages behind the
	// NIC's: what could be done elsewhere. Traffic that is no overlay has none,
	// and where GRO makes few packets of many frames they are cheap.
	Movable float64
	// Rate is the frames per second that its NIC polls took, Overlay the packets
	// that GRO made of those of them that went through a tunnel.
	Rate, Overlay float64
}

// Input is one window of measurements.
type Input struct {
	Now   time.Time
	Cores map[int]Core // of the machine: a NIC may be polled on any
	// Configured are the cores that work may be sent to.
	Configured []int
	Costs      Costs
	// Layout is what would be, or is, in use.
	Layout Layout
}

// Pollers are the cores on which a notable part of the overlay's packets is polled from a NIC: a tenth of
// what the core polls that polls most.
func (in Input) Pollers() []int {
	var most float64
	for _, c := range in.Cores {
		most = max(most, c.Overlay)
	}
	var nic []int
	for cpu, c := range in.Cores {
		if c.Overlay > 0 && c.Overlay >= most/10 {
			nic = append(nic, cpu)
		}
	}
	slices.Sort(nic)
	return nic
}

// path is the part of a core that the whole receive path of what it polls would take. Costs are for
// each frame.
func (in Input) path(c Core) float64 {
	costs := in.Costs.OrTypical()
	return c.Rate * (costs.NIC + costs.Tunnel + costs.Pod) / 1e9
}

// Path is how many cores it would take of the whole node.
func (in Input) Path() (cores float64) {
	for _, c := range in.Cores {
		cores += in.path(c)
	}
	return cores
}

// Besides is that without so many frames a second.
func (in Input) Besides(frames float64) (cores float64) {
	var all float64
	for _, c := range in.Cores {
		all += c.Rate
	}
	if all == 0 {
		return 0
	}
	return in.Path() * max(1-frames/all, 0)
}

// Mode is the configuration's word.
type Mode int

const (
	// Auto acts when it pays.
	Auto Mode = iota
	// Forced acts always.
	Forced
	// Off never acts.
	Off
)

// Limits are the thresholds. Each has a lower one at which the decision is taken
// back, so that load at the threshold does not switch back and forth.
type Limits struct {
	Saturated float64       // a NIC core's saturated share that asks for help
	Movable   float64       // the least share of that which must be movable
	TasksOn   float64       // tasks' share of a lane's core up to which help is taken from it
	TasksOff  float64       // ... and above which it is let alone again
	Busy      float64       // mean load of the configured cores at which the pipeline is off
	Idle      float64       // share of one core that the whole path would take, below which no help is needed
	Windows   int           // windows in a row before acting
	TasksFor  time.Duration // how long cores must be busy before giving up
	IdleFor   time.Duration // how long idle before parking
	ParkFor   time.Duration // how long parked before standing by
}

// DefaultLimits are the limits without configuration.
func DefaultLimits() Limits {
	return Limits{
		Saturated: 0.5, Movable: 0.3, TasksOn: 0.35, TasksOff: 0.6, Busy: 0.8, Idle: 0.6,
		Windows: 3, TasksFor: 500 * time.Millisecond, IdleFor: 3 * time.Second, ParkFor: time.Minute,
	}
}

// Decision is what the pipeline shall do, and why.
type Decision struct {
	State  State
	Reason string
	Since  time.Time
	// Helped are the cores whose flows are steered while active, sorted; nil: those of all.
	Helped []int
	// Short are the cores that want help, sorted: lanes keep up with so many only.
	Short []int
	// Avoid are the cores that tasks need so much that they are to take no work, sorted.
	Avoid []int
}

// inForce is the decision of one of several that decide by the same states.
type inForce struct{ last Decision }

// Last is the decision in force.
func (f *inForce) Last() Decision { return f.last }

func (f *inForce) decide(now time.Time, s State, reason string) {
	if s != f.last.State || f.last.Since.IsZero() {
		f.last.Since = now
	}
	f.last.State, f.last.Reason = s, reason
}

// lasts takes whether something is so now, and tells whether it has been for long enough; since is when
// that began, zero while it is not so.
func lasts(since *time.Time, now time.Time, is bool, long time.Duration) bool {
	switch {
	case !is:
		*since = time.Time{}
	case since.IsZero():
		*since = now
	}
	return is && now.Sub(*since) >= long
}

// Governor is the state between windows. The zero value is not ready; use New.
type Governor struct {
	mode   Mode
	limits Limits

	last    Decision
	wanted  map[int]int       // by core: windows in a row in which it asked for help
	helped  map[int]time.Time // cores that are helped, by since when they could do without; zero: they cannot
	needed  map[int]time.Time // lanes' cores that tasks need, since
	avoid   map[int]time.Time // lanes' cores that take no work, by since when they could; zero: they cannot
	full    time.Time         // since when the configured cores are busy
	idle    time.Time         // since when all that are helped together could do without
	now     time.Time         // of the last window
	started bool
}

// jump is how much later than the last one a window may be at most: a daemon that asks for the time all
// along is not told of hours in between.
const jump = time.Minute

// New returns a governor in standby.
func New(mode Mode, limits Limits) *Governor {
	g := &Governor{mode: mode, limits: limits, last: Decision{Reason: "not measured yet"}}
	g.forget()
	return g
}

// Reconfigure changes mode and limits; the next window decides by them.
func (g *Governor) Reconfigure(mode Mode, limits Limits) { g.mode, g.limits = mode, limits }

// Last is the decision in force.
func (g *Governor) Last() Decision { return g.last }

// forget what has lasted for a while.
func (g *Governor) forget() {
	g.wanted, g.full, g.idle = map[int]int{}, time.Time{}, time.Time{}
	g.helped, g.needed, g.avoid = map[int]time.Time{}, map[int]time.Time{}, map[int]time.Time{}
}

// Step takes one window and returns the decision in force after it.
func (g *Governor) Step(in Input) Decision {
	if !g.started {
		g.last.Since, g.started = in.Now, true
	}
	jumped := !g.now.IsZero() && (in.Now.Before(g.now) || in.Now.Sub(g.now) > jump)
	g.now = in.Now
	state, reason := g.decide(in)
	if jumped && g.mode == Auto {
		// How long anything lasted is not known.
		g.forget()
		if g.last.Since = in.Now; g.last.State == Active {
			state, reason = Parked, "the clock jumped"
		} else {
			state, reason = g.last.State, ""
		}
	}
	if state != g.last.State {
		g.last = Decision{State: state, Reason: reason, Since: in.Now}
		g.full, g.idle = time.Time{}, time.Time{}
		clear(g.wanted)
		if state != Active {
			clear(g.helped)
		}
		if state == Standby {
			clear(g.needed)
			clear(g.avoid)
		}
	} else if reason != "" {
		g.last.Reason = reason
	}
	helped := g.last.Helped
	g.last.Helped, g.last.Short, g.last.Avoid = nil, nil, nil
	if g.mode == Auto {
		g.last.Avoid = slices.Sorted(maps.Keys(g.avoid))
	}
	if state == Active && g.mode == Auto && !in.Layout.all() {
		g.last.Short = slices.Sorted(maps.Keys(g.helped))
		g.last.Helped = choose(g.last.Short, in.Layout, helped)
	}
	return g.last
}

// choose returns which of the cores that want help get it: as many as the lanes can keep up with, first
// those that had it before, then those to which the last stage comes back.
func choose(all []int, l Layout, before []int) []int {
	if l.Helps == 0 || len(all) <= l.Helps {
		return all
	}
	rank := func(core int) int {
		switch {
		case slices.Contains(before, core):
			return 0
		case slices.Contains(l.Pod, core) && !slices.Contains(l.Tunnel, core):
			return 1
		}
		return 2
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	return slices.Sorted(slices.Values(all[:l.Helps]))
}

// decide returns the wanted state; an empty reason keeps the one in force.
func (g *Governor) decide(in Input) (State, string) {
	switch {
	case g.mode == Off:
		return Standby, "switched off by configuration"
	case in.Layout.None():
		clear(g.wanted)
		return Standby, in.Layout.Reason
	case g.mode == Forced:
		return Active, "forced by configuration"
	}
	g.lookAtLanes(in)
	if g.last.State == Active {
		return g.whileActive(in)
	}
	return g.whileNot(in)
}

// Short are the cores that need help: overlay packets saturate them, and enough of that work could be
// done elsewhere. movesNIC: so could the NIC's stage.
func (l Limits) Short(in Input, movesNIC bool) (cores []int) {
	for cpu, c := range in.Cores {
		if l.short(c, movesNIC) {
			cores = append(cores, cpu)
		}
	}
	slices.Sort(cores)
	return cores
}

// nicShare is how much less must be movable behind the NIC's stage where that stage moves as well:
// then the rest only tells that the packets are those of an overlay.
const nicShare = 1. / 3

func (l Limits) short(c Core, movesNIC bool) bool {
	least := l.Movable
	if movesNIC {
		least *= nicShare
	}
	return c.Saturated >= l.Saturated && c.Movable >= least
}

func (g *Governor) whileNot(in Input) (State, string) {
	short := g.limits.Short(in, len(in.Layout.NIC) > 0)
	worst, longest := -1, 0
	wanted := map[int]int{}
	for _, cpu := range short {
		wanted[cpu] = g.wanted[cpu] + 1
		if worst < 0 || in.Cores[cpu].Saturated > in.Cores[worst].Saturated {
			worst = cpu
		}
		longest = max(longest, wanted[cpu])
	}
	g.wanted = wanted
	if worst < 0 {
		for cpu := range in.Cores {
			if in.Cores[cpu].Saturated >= g.limits.Saturated && (worst < 0 || cpu < worst) {
				worst = cpu
			}
		}
		switch {
		case worst >= 0 && g.last.State == Standby:
			return Standby, fmt.Sprintf("core %d is saturated, but the stages that could move are %.0f %% of its work", worst, in.Cores[worst].Movable*100)
		case g.last.State == Parked && in.Now.Sub(g.last.Since) >= g.limits.ParkFor:
			return Standby, "no core has been saturated by overlay packets for a while"
		}
		return g.last.State, "no core is saturated by overlay packets"
	}
	if core, lacks := g.lacksLanes(in, short); lacks {
		clear(g.wanted)
		return g.last.State, fmt.Sprintf("core %d is saturated, but tasks need core %d (%.0f %% of it)", worst, core, in.Cores[core].Tasks*100)
	}
	if load := meanLoad(in); load >= g.limits.Busy {
		clear(g.wanted)
		return g.last.State, fmt.Sprintf("core %d is saturated, but the configured cores are %.0f %% busy", worst, load*100)
	}
	if longest < g.limits.Windows {
		return g.last.State, ""
	}
	for _, cpu := range short {
		g.helped[cpu] = time.Time{}
	}
	return Active, fmt.Sprintf("core %d spends %.0f %% of its time on saturated receive polls", worst, in.Cores[worst].Saturated*100)
}

func (g *Governor) whileActive(in Input) (State, string) {
	if core, lacks := g.lacksLanes(in, nil); lacks {
		return Parked, fmt.Sprintf("tasks need core %d (%.0f %% of it)", core, in.Cores[core].Tasks*100)
	}
	if load := meanLoad(in); lasts(&g.full, in.Now, load >= g.limits.Busy+0.1, g.limits.TasksFor) {
		return Parked, fmt.Sprintf("the configured cores are %.0f %% busy", load*100)
	}

	var need float64
	for _, c := range in.Cores {
		need = max(need, in.path(c))
	}
	enough := fmt.Sprintf("one core is enough: the path would take %.0f %% of it", need*100)
	if in.Layout.all() {
		if lasts(&g.idle, in.Now, need < g.limits.Idle, g.limits.IdleFor) {
			return Parked, enough
		}
		return Active, ""
	}
	short, lanes := g.limits.Short(in, false), in.Layout.Cores()
	wanted := map[int]int{}
	for _, cpu := range short {
		// What saturates a lane may be what it takes of others.
		if _, is := g.helped[cpu]; is || slices.Contains(lanes, cpu) {
			continue
		}
		if wanted[cpu] = g.wanted[cpu] + 1; wanted[cpu] >= g.limits.Windows {
			g.helped[cpu] = time.Time{}
		}
	}
	g.wanted = wanted
	for cpu, since := range g.helped {
		switch {
		case in.path(in.Cores[cpu]) >= g.limits.Idle || slices.Contains(short, cpu):
			g.helped[cpu] = time.Time{}
		case since.IsZero():
			g.helped[cpu] = in.Now
		case in.Now.Sub(since) >= g.limits.IdleFor:
			delete(g.helped, cpu)
		}
	}
	if len(g.helped) == 0 {
		return Parked, enough
	}
	return Active, ""
}

// lookAtLanes follows which of the lanes' cores are needed by tasks.
func (g *Governor) lookAtLanes(in Input) {
	lanes := in.Layout.Cores()
	for _, known := range []map[int]time.Time{g.needed, g.avoid} {
		maps.DeleteFunc(known, func(c int, _ time.Time) bool { return !slices.Contains(lanes, c) })
	}
	for _, cpu := range lanes {
		tasks := in.Cores[cpu].Tasks
		if since, avoided := g.avoid[cpu]; avoided {
			switch {
			case tasks > g.limits.TasksOn:
				g.avoid[cpu] = time.Time{}
			case since.IsZero():
				g.avoid[cpu] = in.Now
			case in.Now.Sub(since) >= g.limits.TasksFor:
				delete(g.avoid, cpu)
			}
			continue
		}
		switch since, is := g.needed[cpu]; {
		case tasks <= g.limits.TasksOff:
			delete(g.needed, cpu)
		case !is:
			g.needed[cpu] = in.Now
		case in.Now.Sub(since) >= g.limits.TasksFor:
			delete(g.needed, cpu)
			g.avoid[cpu] = time.Time{}
		}
	}
}

// lacksLanes tells whether of some lanes there are too few left that tasks do not need, and which of their cores
// they need most. Not yet in use, given the cores that are short, a lane must be free of tasks; in use, it is not
// to be one that is avoided.
func (g *Governor) lacksLanes(in Input, short []int) (core int, lacks bool) {
	for _, some := range in.Layout.needs() {
		core = -1
		fit := 0
		for _, c := range some.cores {
			_, avoided := g.avoid[c]
			if !avoided && (short == nil || slices.Contains(short, c) || in.Cores[c].Tasks <= g.limits.TasksOn) {
				fit++
			} else if core < 0 || in.Cores[c].Tasks > in.Cores[core].Tasks {
				core = c
			}
		}
		if core >= 0 && fit < some.least {
			return core, true
		}
	}
	return 0, false
}

// meanLoad is the mean share of the configured cores that tasks take. Receive
// work does not count: it is what the pipeline spreads.
func meanLoad(in Input) float64 {
	if len(in.Configured) == 0 {
		return 0
	}
	var sum float64
	for _, cpu := range in.Configured {
		sum += in.Cores[cpu].Tasks
	}
	return sum / float64(len(in.Configured))
}

// ShortOfTime is the largest share of a core's time in saturated polls of overlay packets.
func (in Input) ShortOfTime() (most float64) {
	for _, c := range in.Cores {
		if c.Overlay > 0 {
			most = max(most, c.Saturated)
		}
	}
	return most
}
