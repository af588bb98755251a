// SPDX-License-Identifier: Apache-2.0

// Package governor decides when mechanisms act, where they would work, and whether they have shown
// that they pay. It is pure: what is measured goes in with the time, what to do comes out with
// the reason.
package governor

import (
	"fmt"
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
}

// Governor is the state between windows. The zero value is not ready; use New.
type Governor struct {
	mode   Mode
	limits Limits

	last    Decision
	wanted  int // windows in a row that asked for help
	busy    time.Time
	idle    time.Time
	now     time.Time // of the last window
	started bool
}

// jump is how much later than the last one a window may be at most: who asks for the time all along
// is not told of hours in between.
const jump = time.Minute

// New returns a governor in standby.
func New(mode Mode, limits Limits) *Governor {
	return &Governor{mode: mode, limits: limits, last: Decision{Reason: "not measured yet"}}
}

// Reconfigure changes mode and limits; the next window decides by them.
func (g *Governor) Reconfigure(mode Mode, limits Limits) { g.mode, g.limits = mode, limits }

// Last is the decision in force.
func (g *Governor) Last() Decision { return g.last }

// Step takes one window and returns the decision in force after it.
func (g *Governor) Step(in Input) Decision {
	if !g.started {
		g.last.Since, g.started = in.Now, true
	}
	jumped := !g.now.IsZero() && (in.Now.Before(g.now) || in.Now.Sub(g.now) > jump)
	g.now = in.Now
	state, reason := g.decide(in)
	if jumped && g.mode == Auto {
		// What lasted how long nobody knows.
		g.wanted, g.busy, g.idle = 0, time.Time{}, time.Time{}
		if g.last.Since = in.Now; g.last.State == Active {
			state, reason = Parked, "the clock jumped"
		} else {
			state, reason = g.last.State, ""
		}
	}
	if state != g.last.State {
		g.last = Decision{State: state, Reason: reason, Since: in.Now}
		g.wanted, g.busy, g.idle = 0, time.Time{}, time.Time{}
	} else if reason != "" {
		g.last.Reason = reason
	}
	return g.last
}

// decide returns the wanted state; an empty reason keeps the one in force.
func (g *Governor) decide(in Input) (State, string) {
	switch {
	case g.mode == Off:
		return Standby, "switched off by configuration"
	case in.Layout.None():
		return Standby, in.Layout.Reason
	case g.mode == Forced:
		return Active, "forced by configuration"
	}
	if g.last.State == Active {
		return g.whileActive(in)
	}
	return g.whileNot(in)
}

func (g *Governor) whileNot(in Input) (State, string) {
	worst, sat := -1, 0.0
	stuck := -1 // saturated by what nobody can move
	for cpu, c := range in.Cores {
		switch {
		case c.Movable >= g.limits.Movable && c.Saturated > sat:
			worst, sat = cpu, c.Saturated
		case c.Movable < g.limits.Movable && c.Saturated >= g.limits.Saturated && (stuck < 0 || cpu < stuck):
			stuck = cpu
		}
	}
	if sat < g.limits.Saturated && stuck >= 0 && g.last.State == Standby {
		g.wanted = 0
		return Standby, fmt.Sprintf("core %d is saturated, but the stages that could move are %.0f %% of its work", stuck, in.Cores[stuck].Movable*100)
	}
	if sat < g.limits.Saturated {
		g.wanted = 0
		if g.last.State == Parked && in.Now.Sub(g.last.Since) >= g.limits.ParkFor {
			return Standby, "no core has been saturated by overlay packets for a while"
		}
		return g.last.State, "no core is saturated by overlay packets"
	}
	if cpu, tasks := busiest(in, worst); tasks > g.limits.TasksOn {
		g.wanted = 0
		return g.last.State, fmt.Sprintf("core %d is saturated, but tasks need core %d (%.0f %% of it)", worst, cpu, tasks*100)
	}
	if load := meanLoad(in); load >= g.limits.Busy {
		g.wanted = 0
		return g.last.State, fmt.Sprintf("core %d is saturated, but the configured cores are %.0f %% busy", worst, load*100)
	}
	g.wanted++
	if g.wanted < g.limits.Windows {
		return g.last.State, ""
	}
	return Active, fmt.Sprintf("core %d spends %.0f %% of its time on saturated receive polls", worst, sat*100)
}

func (g *Governor) whileActive(in Input) (State, string) {
	cpu, tasks := busiest(in, -1)
	load := meanLoad(in)
	if tasks > g.limits.TasksOff || load >= g.limits.Busy+0.1 {
		if g.busy.IsZero() {
			g.busy = in.Now
		}
		if in.Now.Sub(g.busy) >= g.limits.TasksFor {
			if tasks > g.limits.TasksOff {
				return Parked, fmt.Sprintf("tasks need core %d (%.0f %% of it)", cpu, tasks*100)
			}
			return Parked, fmt.Sprintf("the configured cores are %.0f %% busy", load*100)
		}
	} else {
		g.busy = time.Time{}
	}

	// What the whole path would take of one core. Costs are for each frame.
	var need float64
	costs := in.Costs.OrTypical()
	for _, c := range in.Cores {
		need = max(need, c.Rate*(costs.NIC+costs.Tunnel+costs.Pod)/1e9)
	}
	if need < g.limits.Idle {
		if g.idle.IsZero() {
			g.idle = in.Now
		}
		if in.Now.Sub(g.idle) >= g.limits.IdleFor {
			return Parked, fmt.Sprintf("one core is enough: the path would take %.0f %% of it", need*100)
		}
	} else {
		g.idle = time.Time{}
	}
	return Active, ""
}

// busiest is the lane core, other than the given one, with most tasks on it.
func busiest(in Input, except int) (cpu int, tasks float64) {
	cpu = -1
	for _, c := range in.Layout.Cores() {
		if c != except && (cpu < 0 || in.Cores[c].Tasks > tasks) {
			cpu, tasks = c, in.Cores[c].Tasks
		}
	}
	return cpu, tasks
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
