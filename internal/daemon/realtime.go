// SPDX-License-Identifier: Apache-2.0

package daemon

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

// boundThreads are those that are bound by us.
func boundThreads(owned []apply.Entry) (list []thread) {
	for _, e := range owned {
		if e.Kind != plan.ThreadSched {
			continue
		}
		id, err := plan.ParseThread(e.Attr)
		s, failed := plan.ParseSched(e.Wrote)
		if err == nil && failed == nil && len(s.Cores) == 1 {
			list = append(list, thread{id.PID, s})
		}
	}
	return list
}

// stepRealtime takes one window: measure, decide, act.
func (d *Daemon) stepRealtime(now time.Time) error {
	if d.prio == nil || !d.prio.realtime.on {
		return nil
	}
	r := &d.prio.realtime
	flooded, why := r.gov.Step(now, r.polling(now, boundThreads(d.host.Entries())))
	r.why = why
	if slices.Equal(flooded, r.flooded) {
		return nil
	}
	if r.flooded = flooded; len(flooded) == 0 {
		d.log.Info("NICs' threads run in real time again")
	} else {
		d.log.Info("NICs' threads do not run in real time", "cores", flooded, "reason", why)
	}
	// First come the lanes, which are not to compete with them, or last.
	err := d.besideRealtime()
	if err = errors.Join(err, d.moveThreads()); err != nil {
		d.log.Warn("some of the NICs' threads stay as they are", "reason", err)
	}
	return nil
}

// refuseRealtime has threads scheduled by the fair scheduler from now on.
func (d *Daemon) refuseRealtime(reason error) {
	d.log.Warn("NICs' threads do not run in real time", "reason", reason)
	r := &d.prio.realtime
	r.on, r.why = false, "NICs' threads do not run in real time, see the log"
}

// besideRealtime has bulk lanes scheduled by how the NICs' threads on their cores are.
func (d *Daemon) besideRealtime() error {
	var cores []int
	for _, th := range boundThreads(d.host.Entries()) {
		if core := th.sched.Cores[0]; th.sched.Policy == "fifo" && !slices.Contains(d.prio.realtime.flooded, core) {
			cores = append(cores, core)
		}
	}
	return d.prio.dp.BesideRealtime(cores, eager)
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
