// SPDX-License-Identifier: Apache-2.0

package mechanism

import "time"

// Pace bounds what it costs to follow a node on which something changes all the time. A look
// takes as long as there are pods, however little has changed since the last one, and events
// may come as fast as looks end.
type Pace struct {
	Looks uint64
	next  time.Time // no look at the node before
}

const (
	// LookShare is the part of the daemon's time that looking may take: a twentieth.
	LookShare = 20
	// lookPause bounds how long that leaves the node alone, on a slow machine with many pods.
	lookPause = 3 * time.Second
)

// Looked notes a look that began then and ends now.
func (p *Pace) Looked(began time.Time) { p.Took(began, time.Since(began)) }

func (p *Pace) Took(began time.Time, so time.Duration) {
	p.Looks++
	p.next = began.Add(min(LookShare*so, lookPause))
}

// Due tells whether the node may be looked at again.
func (p *Pace) Due(now time.Time) bool { return !now.Before(p.next) }

const (
	// checkShare is the part of the daemon's time that this may take, each time: 1/500.
	checkShare = 500
	// checkPause bounds how late it is seen, on a node with hundreds of pods.
	checkPause = 5 * time.Second
)

// Check paces looks that no event asks for.
type Check struct{ next time.Time }

// Made notes one that began then and ends now.
func (c *Check) Made(began time.Time) { c.Took(began, time.Since(began)) }

func (c *Check) Took(began time.Time, so time.Duration) {
	c.next = began.Add(min(max(CheckEvery, checkShare*so), checkPause))
}

// Due tells whether it is time for the next.
func (c *Check) Due(now time.Time) bool { return !now.Before(c.next) }

// Again has the next come at once.
func (c *Check) Again() { c.next = time.Time{} }
