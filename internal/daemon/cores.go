// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/node"
)

// pollOnline follows cores that go offline and come back: a core that is gone
// takes no work, like one that has left the configured set.
func (d *Daemon) pollOnline(now time.Time) error {
	if now.Sub(d.polled) < mechanism.CheckEvery {
		return nil
	}
	d.polled = now
	online, err := d.opts.Online()
	if err != nil {
		d.log.Warn("online cores could not be read, will be repeated", "reason", err)
		return nil
	}
	returns, err := d.dp.Returns()
	if err != nil {
		return err
	}
	d.pollApart()
	if d.sawCores(online, returns) {
		err = d.dp.Resample(d.opts.Spared...)
	}
	return errors.Join(err, d.useCores())
}

// sawCores tells mechanisms of cores that have gone offline since the last poll, also of those that are back since,
// and returns whether tasks are to be sampled anew. The numbers of returns tell the latter.
func (d *Daemon) sawCores(online []int, returns []uint32) (anew bool) {
	for core, n := range returns {
		back := n != d.returns[core]
		anew = anew || back
		if !back && (d.isOffline(core) || slices.Contains(online, core)) {
			continue
		}
		for _, m := range d.mechs.all {
			m.CoreLost(core)
		}
	}
	anew = anew || !slices.Equal(online, d.online)
	d.online, d.returns = online, returns
	return anew
}

// pollNICs has mechanisms come or go where RPS or RFS of a NIC was switched off or on, or its senders' checksums, and go
// where their programs can read nothing of its frames.
func (d *Daemon) pollNICs(ctx context.Context, now time.Time) error {
	if !d.nics.Due(now) {
		return nil
	}
	began := time.Now()
	changed := slices.ContainsFunc(d.host.Snapshot().Underlays, func(u node.Underlay) bool {
		return d.scanner.Moves(u) != u.Moves || d.scanner.Unfinished(u) != u.Unfinished
	})
	left, unfinished, err := d.sawOfFrames()
	d.nics.Made(began)
	switch {
	case err != nil:
		return err
	case changed || unfinished:
		d.rescan(ctx)
	case left:
		return d.mechs.each(func(m mechanism.Mechanism) error { return m.Rescanned(ctx) })
	}
	return nil
}

// sawOfFrames takes programs off NICs of whose frames they can read nothing (left), and takes note of NICs by which frames
// came whose senders had left the checksum to the receiver. What was seen of one whose program has gone is forgotten.
func (d *Daemon) sawOfFrames() (left, unfinished bool, err error) {
	headless, err := d.dp.Headless()
	if err == nil {
		left, err = d.places.SawHeadless(headless)
	}
	partial, e := d.dp.Unfinished()
	return left, d.places.SawUnfinished(partial), errors.Join(err, e)
}

// pollApart reads which cores containers have for themselves. If they cannot be read, they stay what they were.
func (d *Daemon) pollApart() {
	apart, err := d.opts.Apart()
	if err == nil {
		d.apart, d.apartWhy = apart, ""
	} else if why := err.Error(); why != d.apartWhy {
		d.apartWhy = why // said once
		d.log.Warn("cores that containers have for themselves could not be read", "reason", why)
	}
}

// isOffline tells a core that has left, at the last poll.
func (d *Daemon) isOffline(core int) bool {
	return !slices.Contains(d.online, core)
}

// useCores has the mechanisms use what is configured and online, and what no container has for itself.
func (d *Daemon) useCores() error {
	cores := slices.DeleteFunc(slices.Clone(d.opts.Cores), func(c int) bool {
		return d.isOffline(c) || slices.Contains(d.apart, c)
	})
	if slices.Equal(cores, d.cores) {
		return nil
	}
	if d.cores != nil {
		d.log.Info("cores to steer to have changed", "were", d.cores, "are", cores)
	}
	d.cores = cores
	return d.mechs.each(func(m mechanism.Mechanism) error { return m.CoresChanged() })
}
