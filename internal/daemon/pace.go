// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"github.com/overlane/overlane/internal/mechanism"
)

// pace bounds what it costs to follow a node on which something changes all the time. A look
// takes as long as there are pods, however little has changed since the last one, and events
// may come as fast as looks end.
type pace struct {
	scans uint64
	next  time.Time // no look at the node before
}

const (
	// lookShare is the part of the daemon's time that looking may take: a twentieth.
	lookShare = 20
	// lookPause bounds how long that leaves the node alone, on a slow machine with many pods.
	lookPause = 3 * time.Second
)

// looked notes a look that began then and ends now.
func (p *pace) looked(began time.Time) { p.took(began, time.Since(began)) }

func (p *pace) took(began time.Time, so time.Duration) {
	p.scans++
	p.next = began.Add(min(lookShare*so, lookPause))
}

// due tells whether the node may be looked at again.
func (p *pace) due(now time.Time) bool { return !now.Before(p.next) }

// news are the events of the node, which wait for as long as the last look is to be made up for:
// until the window then under way ends.
func (d *Daemon) news() <-chan struct{} {
	if !d.pace.due(time.Now()) {
		return nil
	}
	return d.scanner.Events()
}

const (
	// checkShare is the part of the daemon's time that this may take, each time: 1/500.
	checkShare = 500
	// checkPause bounds how late it is seen, on a node with hundreds of pods.
	checkPause = 5 * time.Second
)

// check paces looks that no event asks for.
type check struct{ next time.Time }

// made notes one that began then and ends now.
func (c *check) made(began time.Time) { c.took(began, time.Since(began)) }

func (c *check) took(began time.Time, so time.Duration) {
	c.next = began.Add(min(max(mechanism.CheckEvery, checkShare*so), checkPause))
}

// due tells whether it is time for the next.
func (c *check) due(now time.Time) bool { return !now.Before(c.next) }

// again has the next come at once.
func (c *check) again() { c.next = time.Time{} }
