// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"sync/atomic"
	"time"
)

// pace is when the requests of one client are due: a schedule that is known
// before, and that no answer moves. A client that measured from when it came to
// send would leave out just the requests that had to wait, since it waits for an
// answer before it asks again (coordinated omission).
type pace struct {
	first    uint64 // when slot 0 is due
	every    uint64
	slots    int
	skip     int    // slots of the beginning, which do not count
	patience uint64 // with what is still to be answered after the last slot
}

func (p *pace) due(slot int) uint64 { return p.first + uint64(slot)*p.every }

// until is when the client gives up.
func (p *pace) until() uint64 { return p.due(p.slots) + p.patience }

// account is what became of the slots that count.
type account struct {
	// took is, for each slot, the time from when its request was due until its
	// answer was there; without one, its age at the end.
	took []time.Duration
	// missed slots were over before their request could be sent.
	missed int
	// open ones never got an answer.
	open int
}

// clock is the time that a pace is kept by.
type clock interface {
	now() uint64
	sleepUntil(uint64)
}

type monotonicClock struct{}

func (monotonicClock) now() uint64           { return monotonic() }
func (monotonicClock) sleepUntil(due uint64) { sleepUntil(due) }

// keep sends the request of each slot when it is due, or as soon as the one
// before is answered. exchange tells whether an answer came before the client
// gives up.
func (p *pace) keep(c clock, stop *atomic.Bool, exchange func(slot int) (bool, error)) (a account, err error) {
	slot := 0
	for ; slot < p.slots; slot++ {
		due := p.due(slot)
		c.sleepUntil(due)
		sent := c.now()
		if stop.Load() || sent >= p.until() {
			break
		}
		if slot >= p.skip && sent-due >= p.every {
			a.missed++
		}
		answered, err := exchange(slot)
		if err != nil {
			return a, err
		}
		if !answered {
			break
		}
		if slot >= p.skip {
			a.took = append(a.took, time.Duration(c.now()-due))
		}
	}
	// To leave them out would make a server that stands still a fast one.
	end := c.now()
	for slot = max(slot, p.skip); slot < p.slots && p.due(slot) < end; slot++ {
		a.took = append(a.took, time.Duration(end-p.due(slot)))
		a.open++
	}
	return a, nil
}
