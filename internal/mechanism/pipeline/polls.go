// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"maps"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
)

// polls remembers which cores poll NICs: a queue that nothing came to for a moment is a queue all the
// same, and its core none for a lane of the nic stage.
type polls struct {
	at    map[int]time.Time // cores, by when they last did
	last  time.Time         // window
	armed time.Time         // when lanes were last out
}

// lanesGone is after how long the lanes' own polls are over for certain.
const lanesGone = time.Second

// saw takes a window. Behind lanes nothing tells which core polls the NIC: what is known stays.
func (p *polls) saw(in governor.Input, armed bool) {
	since := in.Now.Sub(p.last)
	p.last = in.Now
	if armed {
		p.armed = in.Now
	}
	if p.at == nil {
		p.at = map[int]time.Time{}
	}
	if in.Now.Sub(p.armed) < lanesGone {
		for core := range p.at {
			p.at[core] = p.at[core].Add(since)
		}
		return
	}
	for _, core := range in.Pollers() {
		p.at[core] = in.Now
	}
	maps.DeleteFunc(p.at, func(_ int, last time.Time) bool { return in.Now.Sub(last) >= mechanism.PolledFor })
}

// lately are the cores that have polled NICs, sorted.
func (p *polls) lately() []int { return slices.Sorted(maps.Keys(p.at)) }
