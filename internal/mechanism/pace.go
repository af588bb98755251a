// SPDX-License-Identifier: Apache-2.0

package mechanism

import "time"

// PolledFor is how long a core counts as one that polls NICs, after it did.
const PolledFor = time.Minute

// Pace bounds what it costs to follow a node on which something changes all the time. A full scan
// takes as long as there are pods, however little has changed since the last one, and events
// may come as fast as scans end.
type Pace struct {
	Scans uint64
	next  time.Time // no full scan of the node before
}

const (
	// ScanShare is the part of the daemon's time that full scans may take: a twentieth.
	ScanShare = 20
	// scanPause bounds how long that leaves the node alone, on a slow machine with many pods.
	scanPause = 3 * time.Second
)

// Scanned notes a full scan that began then and ends now.
func (p *Pace) Scanned(began time.Time) { p.Took(began, time.Since(began)) }

func (p *Pace) Took(began time.Time, so time.Duration) {
	p.Scans++
	p.next = began.Add(min(ScanShare*so, scanPause))
}

// Due tells whether the node may be scanned again.
func (p *Pace) Due(now time.Time) bool { return !now.Before(p.next) }

const (
	// checkShare is the part of the daemon's time that this may take, each time: 1/500.
	checkShare = 500
	// checkPause bounds how late it is seen, on a node with hundreds of pods.
	checkPause = 5 * time.Second
)

// Check paces full scans that no event asks for.
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
