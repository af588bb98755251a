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
	// scanPause bounds how long that leaves the node alone: a new pod is not served before. A scan of more than half a
	// second takes more than its share for that.
	scanPause = 10 * time.Second
)

// Scanned notes a full scan that began then and ends now.
func (p *Pace) Scanned(began time.Time) {
	now := time.Now()
	p.Took(now, now.Sub(began))
}

// Took notes one that has ended then. The pause counts from there: of one that counted from the beginning, a long
// scan would leave nothing.
func (p *Pace) Took(ended time.Time, so time.Duration) {
	p.Scans++
	p.next = ended.Add(min(ScanShare*so, scanPause))
}

// Due tells whether the node may be scanned again.
func (p *Pace) Due(now time.Time) bool { return !now.Before(p.next) }

const (
	// checkShare is the part of the daemon's time that this may take, each time: 1/500.
	checkShare = 500
	// checkPause bounds how late a foreign program is seen, on a node with hundreds of pods. A check of more than 10 ms
	// takes more than its share for that.
	checkPause = 5 * time.Second
)

// Check paces full scans that no event asks for.
type Check struct{ next time.Time }

// Made notes one that began then and ends now.
func (c *Check) Made(began time.Time) {
	now := time.Now()
	c.Took(now, now.Sub(began))
}

// Took notes one that has ended then.
func (c *Check) Took(ended time.Time, so time.Duration) {
	c.next = ended.Add(min(max(CheckEvery, checkShare*so), checkPause))
}

// Due tells whether it is time for the next.
func (c *Check) Due(now time.Time) bool { return !now.Before(c.next) }

// Again has the next come at once.
func (c *Check) Again() { c.next = time.Time{} }
