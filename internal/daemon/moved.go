// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/governor"
)

// movedPolls tells when a NIC has come to be polled on a core that takes work of a lane, as
// when irqbalance or an administrator moves an interrupt: what was to be spread is on one core
// again.
type movedPolls struct {
	at    []int     // the cores that polled when the pipeline was put in place
	since time.Time // when it was first seen to be otherwise; zero: it is not
	acted time.Time // when the pipeline was taken off for it
}

const (
	// movedFor is how long it must be so: who moves interrupts may move several, or back.
	movedFor = 2 * time.Second
	// movedAgain is the least time from one placement for it to the next. irqbalance looks
	// every 10 s.
	movedAgain = 30 * time.Second
)

// look takes a window, and returns the core for which the pipeline is to be placed anew, if
// it is.
func (m *movedPolls) look(now time.Time, polls, lanes []int) (core int, anew bool) {
	i := slices.IndexFunc(polls, func(c int) bool { return slices.Contains(lanes, c) && !slices.Contains(m.at, c) })
	if i < 0 {
		m.since = time.Time{}
		return 0, false
	}
	if m.since.IsZero() {
		m.since = now
	}
	if now.Sub(m.since) < movedFor || !m.acted.IsZero() && now.Sub(m.acted) < movedAgain {
		return 0, false
	}
	m.since, m.acted = time.Time{}, now
	return polls[i], true
}

// followPolls has the pipeline taken off, its flows at home, where the NIC is polled on one of
// its cores since. It is placed anew then, by what polls now.
func (d *Daemon) followPolls(in governor.Input) {
	// Behind lanes of the nic stage the tunnels' polls tell where these are, not which core polls the NIC.
	if !d.pipe.armed || d.pipe.layout.Split || len(d.pipe.layout.NIC) > 0 || d.evict {
		d.moved.since = time.Time{}
		return
	}
	if core, anew := d.moved.look(in.Now, pollers(in), d.pipe.layout.Cores()); anew {
		d.log.Info("pipeline is placed anew", "reason", fmt.Sprintf("the NIC is polled on core %d since, which takes work of its own", core))
		d.evict = true
	}
}
