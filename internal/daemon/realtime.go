// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/plan"
)

// realtime is how the threads that poll NICs are scheduled, by who else wants their cores.
type realtime struct {
	gov     governor.Realtime
	on      bool
	reason  string
	failed  bool // somebody does not let us
	looked  time.Time
	ran     map[int]time.Duration // by thread, at the last look
	counted time.Time
	user    map[int]uint64 // ticks of programs by core, when they were counted
	tasks   float64        // the most that programs had of one of the cores
}

// threadCores are the threads that are bound by us, and their cores.
func threadCores(owned []apply.Entry) map[int]int {
	at := map[int]int{}
	for _, e := range owned {
		if e.Kind != plan.ThreadSched {
			continue
		}
		id, err := plan.ParseThread(e.Attr)
		s, failed := plan.ParseSched(e.Wrote)
		if err == nil && failed == nil && len(s.Cores) == 1 {
			at[id.PID] = s.Cores[0]
		}
	}
	return at
}

// stepRealtime takes one window: look, decide, act.
func (d *Daemon) stepRealtime(now time.Time) error {
	if d.prio == nil || d.prio.realtime.failed || d.opts.Priority.Fair {
		return nil
	}
	r, threads := &d.prio.realtime, threadCores(d.locked.Entries())
	if len(threads) == 0 {
		return nil
	}
	if err := r.count(now, threads); err != nil {
		return err
	}
	on, reason := r.gov.Step(now, governor.RealtimeWindow{Tasks: r.tasks, Polling: r.polling(now, threads)})
	r.reason = reason
	if on == r.on {
		return nil
	}
	r.on = on
	if err := d.reseat(); err != nil {
		d.log.Warn("the NICs' threads stay as they are", "reason", err)
		r.on, r.reason, r.failed = false, "", true
		return d.prio.dp.BesideRealtime(d.cores, false, eager)
	}
	if on {
		d.log.Info("NICs' threads run in real time", "reason", reason)
	} else {
		d.log.Info("NICs' threads run no longer in real time")
	}
	return nil
}

// reseat has the threads of NICs and of bulk lanes scheduled as they are to be now. Those of the
// lanes are eager only while those of the NICs preempt them all the same.
func (d *Daemon) reseat() error {
	on := d.prio.realtime.on
	lanes := func() error { return d.prio.dp.BesideRealtime(d.cores, on, eager) }
	if !on {
		return errors.Join(lanes(), d.moveThreads())
	}
	if err := d.moveThreads(); err != nil {
		return err
	}
	return lanes()
}

// polling is the largest share of a core that one of the threads took since the last look.
func (r *realtime) polling(now time.Time, threads map[int]int) (most float64) {
	since, ran := now.Sub(r.looked), map[int]time.Duration{}
	for pid := range threads {
		var ts unix.Timespec
		// The thread's own clock (include/linux/posix-timers.h): a system call instead of a file.
		if unix.ClockGettime(int32(^pid<<3|6), &ts) != nil {
			continue // it has ended
		}
		ran[pid] = time.Duration(ts.Nano())
		if was, ok := r.ran[pid]; ok && since > 0 {
			most = max(most, float64(ran[pid]-was)/float64(since))
		}
	}
	r.looked, r.ran = now, ran
	return most
}

// userTick is the unit of /proc/stat, whatever the kernel's own tick is.
const userTick = time.Second / 100

// count looks once in a while how much programs have of the cores. They are told from the
// kernel's threads by the time that they spend on their own code.
func (r *realtime) count(now time.Time, threads map[int]int) error {
	since := now.Sub(r.counted)
	if since < checkEvery {
		return nil
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return err
	}
	user, err := userTicks(text)
	if err != nil {
		return err
	}
	r.tasks = 0
	for _, core := range threads {
		if was, ok := r.user[core]; ok {
			r.tasks = max(r.tasks, float64(time.Duration(user[core]-was)*userTick)/float64(since))
		}
	}
	r.counted, r.user = now, user
	return nil
}

// userTicks reads the time that each core has spent on programs, of any nice value.
func userTicks(stat []byte) (map[int]uint64, error) {
	ticks := map[int]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(stat)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		name, isCore := "", false
		if len(fields) > 2 {
			name, isCore = strings.CutPrefix(fields[0], "cpu")
		}
		if !isCore || name == "" {
			continue
		}
		core, err := strconv.Atoi(name)
		user, e := strconv.ParseUint(fields[1], 10, 64)
		nice, f := strconv.ParseUint(fields[2], 10, 64)
		if err := errors.Join(err, e, f); err != nil {
			return nil, fmt.Errorf("read /proc/stat: %w", err)
		}
		ticks[core] = user + nice
	}
	return ticks, nil
}
