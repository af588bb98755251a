// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/plan"
)

// realtime is where the threads that poll NICs run in real time.
type realtime struct {
	gov     governor.Realtime
	on      bool   // but on the cores that are flooded
	flooded []int  // these
	why     string // not
	polled  time.Time
	ran     map[int]time.Duration // by thread, at the last poll
}

// thread is one that polls a NIC, as we have it scheduled.
type thread struct {
	pid   int
	sched plan.Sched
}

// boundThreads are those that priority has bound.
func boundThreads(journal []apply.Entry) (list []thread) {
	for _, e := range journal {
		id, err := plan.ParseThread(e.Attr)
		s, failed := plan.ParseSched(e.Wrote)
		if e.By == plan.ByPriority && err == nil && failed == nil && len(s.Cores) == 1 {
			list = append(list, thread{id.PID, s})
		}
	}
	return list
}

// stepRealtime takes one window: measure, decide, act.
func (p *Priority) stepRealtime(now time.Time) error {
	if p.placed == nil || !p.placed.realtime.on {
		return nil
	}
	r := &p.placed.realtime
	flooded, why := r.gov.Step(now, r.polling(now, boundThreads(p.host.Entries())))
	r.why = why
	if slices.Equal(flooded, r.flooded) {
		return nil
	}
	if r.flooded = flooded; len(flooded) == 0 {
		p.host.Log().Info("NICs' threads run in real time again")
	} else {
		p.host.Log().Info("NICs' threads do not run in real time", "cores", flooded, "reason", why)
	}
	// First come the lanes, which are not to compete with them, or last.
	err := p.besideRealtime()
	if err = errors.Join(err, p.moveThreads()); err != nil {
		p.host.Log().Warn("some of the NICs' threads stay as they are", "reason", err)
	}
	return nil
}

// refuseRealtime has threads scheduled by the fair scheduler from now on.
func (p *Priority) refuseRealtime(reason error) {
	p.host.Log().Warn("NICs' threads do not run in real time", "reason", reason)
	r := &p.placed.realtime
	r.on, r.why = false, "NICs' threads do not run in real time, see the log"
}

// besideRealtime has bulk lanes scheduled by how the NICs' threads on their cores are.
func (p *Priority) besideRealtime() error {
	var cores []int
	for _, th := range boundThreads(p.host.Entries()) {
		if core := th.sched.Cores[0]; th.sched.Policy == "fifo" && !slices.Contains(p.placed.realtime.flooded, core) {
			cores = append(cores, core)
		}
	}
	return p.placed.dp.BesideRealtime(cores, eager)
}

// polling is the share of each core that threads took since the last poll.
func (r *realtime) polling(now time.Time, threads []thread) map[int]float64 {
	since, ran, took := now.Sub(r.polled), map[int]time.Duration{}, map[int]float64{}
	for _, th := range threads {
		var ts unix.Timespec
		// The thread's own clock (include/linux/posix-timers.h): a system call instead of a file.
		if unix.ClockGettime(int32(^th.pid<<3|6), &ts) != nil {
			continue // it has ended
		}
		ran[th.pid] = time.Duration(ts.Nano())
		if was, ok := r.ran[th.pid]; ok && since > 0 {
			took[th.sched.Cores[0]] += float64(ran[th.pid]-was) / float64(since)
		}
	}
	r.polled, r.ran = now, ran
	return took
}
