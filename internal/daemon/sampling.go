// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
)

// samplingLevel is how closely the daemon traces traffic. Tracing takes time from the cores that
// packets need, so a node that has none to speak of does not pay for it.
type samplingLevel int

const (
	// alert: polls are traced and tasks sampled, in short windows.
	alert samplingLevel = iota
	// calm: polls are traced, no core is about to be saturated.
	calm
	// asleep: no poll is traced; the kernel's counters tell when to wake up.
	asleep
)

func (l samplingLevel) window() time.Duration {
	if l == alert {
		return 100 * time.Millisecond
	}
	return 300 * time.Millisecond
}

const (
	// asleepBelow is how many packets a core may receive in a second while
	// the daemon does not trace. One packet of an overlay counts once per stage: not even
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
	traced := d.mechs.tracing()
	// The order guard of the program that all but priority share on a NIC lives on traces as well.
	traced.Always = traced.Always || d.places.Shared()
	if !traced.Windows && !traced.Always {
		return d.sensor.Nothing(now, d.cores), true, d.setSampling(asleep)
	}
	// Where no mechanism asks what polls do, a load for which there is nothing to do is traced now and then only.
	quiet, mayRest := d.isQuiet(now, traced.Always), !traced.Always && !traced.Steady
	if d.sampling == asleep {
		switch {
		case quiet:
			return d.sensor.Nothing(now, d.cores), true, nil
		case mayRest && d.idle.holds(now, d.softnet.Rate):
			in = d.idle.in
			in.Now, in.Configured = now, d.cores
			return in, true, nil
		}
		d.woken, d.idle = now, idleBackoff{}
		return in, false, d.setSampling(alert)
	}

	cores, err := d.dp.Cores()
	if err != nil {
		return in, false, err
	}
	receiving, err := d.softirqs.Read(now)
	if err != nil {
		d.log.Debug("lanes are chosen without what cores receive", "reason", err)
	}
	if in, ok = d.sensor.Read(now, cores, d.cores, receiving, d.came(cores), !d.steers()); !ok {
		return in, false, nil
	}
	if d.sampling == alert {
		if err := d.dp.SetBusy(busyPermille(cores, in)); err != nil {
			return in, false, err
		}
	}
	switch {
	case d.busy(in):
		d.idle = idleBackoff{}
		return in, true, d.setSampling(alert)
	case quiet && now.Sub(d.quiet) >= asleepAfter && now.Sub(d.woken) >= awakeFor,
		!quiet && mayRest && d.idle.seen(in, d.softnet.Rate):
		return in, true, d.setSampling(asleep)
	}
	return in, true, d.setSampling(calm)
}

// isQuiet tells whether the daemon need not trace: hardly a packet comes, and nothing
// is in place that lives on what is traced.
func (d *Daemon) isQuiet(now time.Time, always bool) bool {
	if always {
		d.quiet = now
		return false
	}
	comes, err := d.comes(now)
	if err != nil {
		d.log.Debug("stays awake", "reason", err)
	}
	if err != nil || comes {
		d.quiet = now
		return false
	}
	return true
}

// steers tells whether flows are where the daemon decides in each window that they are.
func (d *Daemon) steers() bool {
	return d.mechs.any(func(m mechanism.Mechanism) bool { return m.Steers() == mechanism.EachWindow })
}

// idleBackoff is about a load that was traced, and for which there is nothing to do. As long as it
// stays about the same it is traced again from time to time only: tracing polls costs an application
// that asks and answers over the overlay, one request after the other, some percent.
type idleBackoff struct {
	in    governor.Input // as last seen
	since time.Time      // there has been nothing to do
	until time.Time      // not traced before
	// least and most are the packets a second of the core that received most, since then.
	least, most float64
}

const (
	// idleAfter is how long there must be nothing to do, and backoffFor for how long it is not traced then.
	idleAfter, backoffFor = 700 * time.Millisecond, 10 * time.Second
	// changedLoad is by how much one differs for which there may be something.
	changedLoad = 1.5
)

// seen takes a window in which there was nothing to do, and tells whether that is enough.
func (l *idleBackoff) seen(in governor.Input, rate float64) bool {
	if math.IsInf(rate, 1) {
		return false
	}
	if l.since.IsZero() {
		l.since, l.least, l.most = in.Now, rate, rate
	}
	l.in, l.until = in, in.Now.Add(backoffFor)
	l.least, l.most = min(l.least, rate), max(l.most, rate)
	return in.Now.Sub(l.since) >= idleAfter
}

// holds tells whether it is still the same, as far as the kernel's counters tell.
func (l *idleBackoff) holds(now time.Time, rate float64) bool {
	return !now.Before(l.in.Now) && now.Before(l.until) && rate < changedLoad*l.most && rate > l.least/changedLoad
}

// calmAfter is how long hardly a packet must have come before what acts by settings and paths is
// taken off.
const calmAfter = time.Minute

// isAwake tells whether packets come, or came lately.
func (d *Daemon) isAwake(now time.Time) (bool, error) {
	comes, err := d.comes(now)
	if err != nil {
		return false, err
	}
	if comes && !math.IsInf(d.softnet.Rate, 1) {
		d.lively = now
	}
	return now.Sub(d.lively) < calmAfter, nil
}

// busy tells whether there is something to decide soon.
func (d *Daemon) busy(in governor.Input) bool {
	return d.trials.Trying() != nil || d.mechs.any(func(m mechanism.Mechanism) bool { return m.Busy(in) })
}

// setSampling sets the level from now on.
func (d *Daemon) setSampling(l samplingLevel) error {
	if l == d.sampling {
		return nil
	}
	if d.sampling == asleep || l == asleep {
		d.sensor.Forget()
	}
	d.sampling = l
	// Which tasks need the cores matters once a mechanism asks for them.
	return errors.Join(d.dp.Watch(l != asleep), d.dp.Sample(l == alert))
}

// came are the frames that NICs have received, since the first call: by overlane's XDP programs, where there are such,
// since drivers may count none of those that these send on; or else by the NICs' own count.
func (d *Daemon) came(cores []datapath.Core) uint64 {
	plain := node.Snapshot{Underlays: slices.DeleteFunc(slices.Clone(d.host.Snapshot().Underlays), d.places.On)}
	n := d.received.Read(d.scanner, plain.Receivers())
	for _, c := range cores {
		n += c.Came
	}
	return n
}

func busyPermille(cores []datapath.Core, in governor.Input) []uint16 {
	busy := make([]uint16, len(cores))
	for cpu, c := range in.Cores {
		busy[cpu] = uint16(1000 * min(c.Tasks+c.Saturated, 1))
	}
	return busy
}

// overlay is the rate of the overlay's packets, in all tunnels; false: it is not known yet.
func (d *Daemon) overlay(now time.Time) (rate float64, known bool, err error) {
	var express uint64
	if d.mechs.express.Acts() {
		c, err := d.dp.Counters()
		if err != nil {
			return 0, false, err
		}
		express = c.Express
	}
	rate, known = d.tunnels.Read(now, d.scanner, d.host.Snapshot().Tunnels, express)
	return rate, known, nil
}

// comes tells whether packets come fast, and the overlay's are among them: for what else the node
// receives there is nothing to do.
func (d *Daemon) comes(now time.Time) (bool, error) {
	all, err := d.softnet.Read(now)
	if err != nil {
		return false, err
	}
	overlay, known, err := d.overlay(now)
	return all >= d.opts.AsleepBelow && (!known || overlay >= d.opts.AsleepBelow/overlayPart), err
}

// overlayPart is the part of what wakes the daemon that the overlay has to have. Packets that GRO has
// joined count once: of TCP at a gigabit a second there may be two thousand.
const overlayPart = 10
