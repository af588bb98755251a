// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"math"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

// heed is how closely the daemon looks. Looking takes time from the cores that
// packets need, so nobody pays for it on a node that has none to speak of.
type heed int

const (
	// alert: polls are traced and tasks sampled, in short windows.
	alert heed = iota
	// calm: polls are traced, no core is about to be saturated.
	calm
	// asleep: nothing of ours runs with any packet; the kernel's counters tell
	// when to wake up.
	asleep
)

func (h heed) window() time.Duration {
	if h == alert {
		return 100 * time.Millisecond
	}
	return 300 * time.Millisecond
}

const (
	// calmBelow is up to which part of the share of time in saturated polls
	// that asks for help nobody is about to ask.
	calmBelow = 0.8
	// asleepBelow is how many packets a core may receive in a second while
	// nobody looks. One packet of an overlay counts once per stage: not even
	// slow cores are saturated by so few.
	asleepBelow = 10000
	// asleepAfter is for how long it must be so, awakeFor how long the daemon
	// is awake at least: waking up and falling asleep rewrite kernel code.
	asleepAfter = time.Second
	awakeFor    = 10 * time.Second
)

// measure makes the window that ends now. Without one, and without an error, it
// returns false.
func (d *Daemon) measure(now time.Time) (in governor.Input, ok bool, err error) {
	if !d.wants(governor.Auto) && !d.wants(governor.Forced) && d.noDemand() != "" && !d.pipe.armed && len(d.pipe.xdp) == 0 && d.expr.judges == nil {
		return d.sensor.nothing(now, d.cores), true, d.pay(asleep)
	}
	quiet := d.isQuiet(now)
	if d.heed == asleep {
		if quiet {
			return d.sensor.nothing(now, d.cores), true, nil
		}
		d.woken = now
		return in, false, d.pay(alert)
	}

	cores, err := d.dp.Cores()
	if err != nil {
		return in, false, err
	}
	if in, ok = d.sensor.read(now, cores, d.cores, !d.pipe.steering); !ok {
		return in, false, nil
	}
	if d.heed == alert {
		if err := d.dp.SetBusy(busyPermille(cores, in)); err != nil {
			return in, false, err
		}
	}
	next := alert
	if !d.busy(in) {
		next = calm
		// The order guard of the express path lives on what is traced.
		if quiet && d.expr.judges == nil && now.Sub(d.quiet) >= asleepAfter && now.Sub(d.woken) >= awakeFor {
			next = asleep
		}
	}
	return in, true, d.pay(next)
}

// isQuiet tells whether nobody needs to look: hardly a packet comes, and nothing
// is in place that lives on what is traced.
func (d *Daemon) isQuiet(now time.Time) bool {
	if d.pipe.armed || len(d.pipe.xdp) > 0 || d.wants(governor.Forced) {
		d.quiet = now
		return false
	}
	rate, err := d.softnet.read(now)
	if err != nil {
		d.log.Debug("stays awake", "reason", err)
	}
	if err != nil || rate >= d.opts.AsleepBelow {
		d.quiet = now
		return false
	}
	return true
}

// calmAfter is how long hardly a packet must have come before what acts by settings and ways is
// taken off.
const calmAfter = time.Minute

// isAwake tells whether packets come, or came lately.
func (d *Daemon) isAwake(now time.Time) (bool, error) {
	rate, err := d.softnet.read(now)
	if err != nil {
		return false, err
	}
	if rate >= d.opts.AsleepBelow && !math.IsInf(rate, 1) {
		d.lively = now
	}
	return now.Sub(d.lively) < calmAfter, nil
}

// wants tells whether something that is measured for has that mode.
func (d *Daemon) wants(m governor.Mode) bool {
	_, no := d.noMicroflows()
	return d.opts.Mode == m || no == "" && d.opts.Microflows.Mode == m
}

// busy tells whether there is something to decide soon.
func (d *Daemon) busy(in governor.Input) bool {
	if d.pipe.armed || d.wants(governor.Forced) || d.trying() != nil {
		return true
	}
	if d.useless {
		return false // whoever is saturated could not be helped
	}
	for _, c := range in.Cores {
		if c.Saturated > calmBelow*d.opts.Limits.Saturated {
			return true
		}
	}
	return false
}

// pay heed from now on.
func (d *Daemon) pay(h heed) error {
	if h == d.heed {
		return nil
	}
	if d.heed == asleep {
		d.sensor.forget()
	}
	d.heed = h
	// Who else needs the cores matters once somebody asks for them.
	return errors.Join(d.dp.Watch(h != asleep), d.dp.Sample(h == alert))
}

func busyPermille(cores []datapath.Core, in governor.Input) []uint16 {
	busy := make([]uint16, len(cores))
	for cpu, c := range in.Cores {
		busy[cpu] = uint16(1000 * min(c.Tasks+c.Saturated, 1))
	}
	return busy
}
