// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"time"
)

// EagerNice is the nice value of what polls a NIC, or stands in for that: it preempts bulk
// lanes, and what they leave of a core is all that others get. It leaves others at least
// 5 % of a core by the scheduler's weights: nice -13 has weight 18705 against 1024 of nice 0.
const EagerNice = -13

// EagerSlice is its slice, the shortest there is. A running task is protected until it has
// had its own, from all but those whose slice is shorter (kernel/sched/fair.c,
// PREEMPT_SHORT): up to 3 ms, and a second and more where the weight of a control group
// has changed meanwhile.
const EagerSlice = 100 * time.Microsecond

// RealtimePriority is the lowest: no other thread that asks for real time waits.
const RealtimePriority = 1

// The programs that priority attaches.
const (
	PriorityProgram = "ol_priority_xdp" // to a NIC that threads poll
	TwoLanesProgram = "ol_prio_two_xdp" // to any other
	SyncProgram     = "ol_tunnel_in"
)

const (
	preempts = "the NIC's polls preempt bulk"
	ownCore  = preempts + ", each on a core of its own"
)

// Underlay is a NIC as priority finds it.
type Underlay struct {
	Target
	// Queues are its receive queues. A NIC that is switched to threads gets one each.
	Queues int
	// Unfit says why it is left as it is, "" if it is not.
	Unfit string
	// Attached tells that priority's program is there.
	Attached bool
	// Master: others receive for it, whose threads are not its own. It is polled as before.
	Master bool
	// Cost is what it costs to put a program there, "" if nothing.
	Cost string
	// Unread says why it cannot be told which threads poll it, "" if it can.
	Unread   string
	Threaded bool
	// GRO is the value of rx-gro, if the NIC has something that threads can poll only
	// with it or with an XDP program.
	GRO string
	// Threads poll it, by queue; none unless it is threaded.
	Threads []NAPIThread
}

// NAPIThread is a thread that polls a NIC.
type NAPIThread struct {
	ID    ThreadID
	Sched Sched
}

// PriorityInput is everything that priority's plan depends on.
type PriorityInput struct {
	NICs []Underlay
	// Cores are those that threads may be bound to.
	Cores []int
	// NoThreads: NICs are polled as before.
	NoThreads bool
	// NoSlices: the kernel knows none of a single thread.
	NoSlices bool
	// Realtime: threads run in real time, but for those on cores that are Flooded.
	Realtime bool
	Flooded  []int
	// Tunnels are those from which latency traffic may go straight to pods.
	Tunnels []Target
	// Lost are cores that are offline, or were since threads were bound to them:
	// a task that it finds there the kernel lets run anywhere from then on.
	Lost []int
	// Owned holds the settings that overlane has changed and not undone.
	Owned map[Setting]Owned
}

// FutureThreads are threads that the kernel makes in the course of the plan: what
// they are like before is not known.
type FutureThreads struct {
	Target
	// Count is a guess: one for each receive queue.
	Count  int    `json:"threads"`
	Want   string `json:"want"`
	Reason string `json:"reason"`
}

// Priority plans what priority does to underlays: its program, and that the NIC is
// polled by threads, each bound to a core. A softirq runs in the time of whatever it
// interrupts, bulk lanes among them, and so may keep these from getting on at all. A
// thread that moved from core to core would leave a flow's frames in two lanes. The
// programs come first: a virtual NIC has nothing that threads could poll before, and
// others make theirs anew.
func Priority(in PriorityInput) Plan {
	p := Plan{Attach: []Attachment{}, Steps: []Step{}, Future: []FutureThreads{}, Skipped: []Skip{}, ProgramsFirst: true}
	seats := in.seats()
	for _, nic := range in.NICs {
		if nic.Unfit != "" {
			p.skip(nic.Target, nic.Target.String(), nic.Unfit)
			continue
		}
		if !nic.Attached {
			program := PriorityProgram
			if in.NoThreads || nic.Master || in.softirq(nic) != "" {
				program = TwoLanesProgram
			}
			p.Attach = append(p.Attach, Attachment{Target: nic.Target, Program: program, Hook: "xdp (native)",
				Reason: Costs("tells latency frames from bulk, which makes way", nic.Cost)})
		}
		if in.NoThreads || nic.Master {
			continue
		}
		if why := in.softirq(nic); why != "" {
			p.skip(nic.Target, Threaded(nic.Target).String(), why)
			continue
		}
		if len(nic.Threads) == 0 {
			p.thread(nic, in)
			continue
		}
		for _, th := range nic.Threads {
			s := Thread(nic.Target, th.ID)
			if seat := seats[s]; seat.foreign != "" {
				p.skip(nic.Target, s.String(), seat.foreign)
			} else if !s.Same(seat.step.Was, seat.step.Want) {
				p.Steps = append(p.Steps, seat.step)
			}
		}
	}
	p.Attach = append(p.Attach, Sync(in.Tunnels)...)
	p.Steps = of(ByPriority, p.Steps)
	return p
}

// Sync are the programs of mode sync.
func Sync(tunnels []Target) (list []Attachment) {
	for _, t := range tunnels {
		list = append(list, Attachment{Target: t, Program: SyncProgram, Hook: "tcx ingress",
			Reason: "hands latency frames straight to the pods for which nothing is skipped by that"})
	}
	return list
}

func (p *Plan) skip(t Target, what, reason string) {
	p.Skipped = append(p.Skipped, Skip{What: what, Reason: reason, Target: t})
}

// Threaded returns the setting that has a device polled by threads.
func Threaded(t Target) Setting { return Setting{Target: t, Kind: SysfsAttr, Attr: "threaded"} }

// softirq says why no thread of ours polls a NIC, which is then polled in softirq, "" if one does.
func (in PriorityInput) softirq(nic Underlay) string {
	if _, touched := in.Owned[Threaded(nic.Target)]; touched && !nic.Threaded && nic.Unread == "" {
		return "left alone: another program has switched it off again"
	}
	return nic.Unread
}

// thread switches a NIC to threads, which come with that, or, where it is switched already, with the program.
func (p *Plan) thread(nic Underlay, in PriorityInput) {
	s := Threaded(nic.Target)
	if nic.GRO != "" && Requested(nic.GRO) == "off" {
		// Else no process could switch it back once the program is gone.
		p.Steps = append(p.Steps, Step{Setting: Setting{Target: nic.Target, Kind: EthtoolFeature, Attr: GRO},
			Was: nic.GRO, First: Requested(nic.GRO), Want: "on", Reason: "without GRO or an XDP program, a veth has nothing that threads could poll"})
	}
	if !nic.Threaded {
		p.Steps = append(p.Steps, Step{Setting: s, Was: "0", First: "0", Want: "1", Reason: preempts})
	}
	future := FutureThreads{Target: nic.Target, Count: nic.Queues, Want: fmt.Sprintf("nice %d", EagerNice), Reason: preempts}
	switch {
	case in.Realtime:
		future.Want = fmt.Sprintf("real time (fifo %d; nice %d in a flood)", RealtimePriority, EagerNice)
	case !in.NoSlices:
		future.Want += fmt.Sprintf(", slice %s", EagerSlice)
	}
	switch len(in.Cores) {
	case 0:
	case 1:
		future.Want += ", bound to " + coresText(in.Cores)
	default:
		future.Want += ", each bound to one of " + coresText(in.Cores)
		future.Reason = ownCore
	}
	p.Future = append(p.Future, future)
}

// seat is what becomes of a thread.
type seat struct {
	step    Step
	foreign string // why it is left as it is
	want    Sched
	free    bool // to be bound to any core
	now     int  // the core that it was bound to, -1 if none
}

// seats finds a core for each thread, over all NICs.
func (in PriorityInput) seats() map[Setting]seat {
	seats := map[Setting]seat{}
	var order []Setting // of those that are free
	var now []int
	taken := map[int]int{} // threads on a core that stay there
	for _, nic := range in.NICs {
		if nic.Unfit != "" {
			continue
		}
		for _, th := range nic.Threads {
			s := Thread(nic.Target, th.ID)
			seat := in.seat(s, th.Sched)
			seats[s] = seat
			switch {
			case seat.free:
				order, now = append(order, s), append(now, seat.now)
			case len(th.Sched.Cores) == 1:
				taken[th.Sched.Cores[0]]++
			}
		}
	}
	for i, core := range spread(now, taken, in.Cores) {
		seat := seats[order[i]]
		seat.want.Cores = []int{core}
		seat.want = in.calm(seat.want)
		seat.step.Want = seat.want.String()
		seats[order[i]] = seat
	}
	return seats
}

// seat decides about one thread but for its core.
func (in PriorityInput) seat(s Setting, is Sched) seat {
	st := seat{step: Step{Setting: s, Was: is.String(), First: is.String(), Reason: ownCore}, now: -1}
	first := is
	ours, touched := in.Owned[s]
	if touched {
		wrote, err := ParseSched(ours.Wrote)
		if f, e := ParseSched(ours.First); err == nil && e == nil {
			first = f
		} else {
			st.foreign = "left alone: what the journal says of it cannot be read"
			return st
		}
		st.step.First = first.String()
		switch {
		case s.Same(is.String(), wrote.String()):
			if len(wrote.Cores) == 1 {
				st.now = wrote.Cores[0]
			}
		case len(first.Cores) != 1 && in.unbound(is, wrote):
			st.step.Unbound = true
			st.step.Reason = fmt.Sprintf("%s went offline, and the kernel has let it run anywhere", coresText(wrote.Cores))
		default:
			st.foreign = fmt.Sprintf("left alone: changed by another program from %s to %s", wrote, is)
			return st
		}
	}
	// An operator that has set something else before knows why.
	st.want, st.free = first, len(first.Cores) != 1 && len(in.Cores) > 0
	if !st.free && len(first.Cores) != 1 {
		st.want.Cores = is.Cores
	}
	switch {
	case first.Policy == "other" && first.Nice == 0 && in.Realtime:
		st.want.Policy, st.want.Priority, st.want.Slice = "fifo", RealtimePriority, 0
	case first.Policy == "other" && first.Nice == 0:
		st.want = in.eager(st.want)
	case !st.free:
		st.foreign = fmt.Sprintf("left alone: another program has set %s", first)
	}
	if first.Policy == "other" {
		st.want = in.calm(st.want)
	}
	st.step.Want = st.want.String()
	return st
}

// eager is how a thread is scheduled that does not run in real time.
func (in PriorityInput) eager(s Sched) Sched {
	s.Policy, s.Priority, s.Nice = "other", 0, EagerNice
	if !in.NoSlices {
		s.Slice = EagerSlice
	}
	return s
}

// calm takes a thread out of real time whose core is flooded.
func (in PriorityInput) calm(s Sched) Sched {
	if s.Policy != "fifo" || len(s.Cores) != 1 || !slices.Contains(in.Flooded, s.Cores[0]) {
		return s
	}
	return in.eager(s)
}

// unbound tells that the kernel itself has let a thread run anywhere again: its core
// went offline. Another program would hardly have named that core among others, and
// have changed nothing but that.
func (in PriorityInput) unbound(is, wrote Sched) bool {
	if len(wrote.Cores) != 1 || len(is.Cores) == 1 || !slices.Contains(is.Cores, wrote.Cores[0]) || !slices.Contains(in.Lost, wrote.Cores[0]) {
		return false
	}
	is.Cores = wrote.Cores
	return is.String() == wrote.String()
}

// spread finds a core for each thread. One stays where it is as long as that is one
// of the cores and has no more than its share: a move costs.
func spread(now []int, taken map[int]int, cores []int) []int {
	if len(cores) == 0 || len(now) == 0 {
		return nil
	}
	load, total := map[int]int{}, len(now)
	for _, c := range cores {
		load[c] = taken[c]
		total += taken[c]
	}
	share := (total + len(cores) - 1) / len(cores)
	to := slices.Repeat([]int{-1}, len(now))
	for i, c := range now {
		if slices.Contains(cores, c) && load[c] < share {
			to[i] = c
			load[c]++
		}
	}
	for i := range to {
		if to[i] < 0 {
			to[i] = slices.MinFunc(cores, func(a, b int) int { return load[a] - load[b] })
			load[to[i]]++
		}
	}
	return to
}
