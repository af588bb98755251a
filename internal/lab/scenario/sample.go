// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// sample is what all counters say at one moment.
type sample struct {
	at    time.Time
	taken uint64
	usage traffic.Usage
	sent  traffic.Sent
	wire  bed.WireStats
}

// Where programs read, what they have read counts.
func (e *env) sample(g generators, programs readers) (s sample, err error) {
	if s.sent, err = g.sent(); err != nil {
		return s, err
	}
	if s.wire, err = e.bed.WireStats(); err != nil {
		return s, err
	}
	if s.usage, err = e.clock.Read(); err != nil {
		return s, err
	}
	if s.taken = programs.taken(); programs == nil {
		s.taken, err = e.udpTaken()
	}
	s.at = time.Now()
	return s, err
}

// countThreads tells the clock which kernel threads receive packets.
func (e *env) countThreads() error {
	tids, err := e.bed.NAPIThreads()
	if err != nil {
		return err
	}
	if e.threads != nil {
		more, err := e.threads()
		if err != nil {
			return err
		}
		tids = append(tids, more...)
	}
	return e.clock.SetThreads(tids)
}

// used says what of the machine's cores was used while something ran, and how long that took.
func (e *env) used(run func() error) (u traffic.Usage, span time.Duration, err error) {
	start := time.Now()
	before, err := e.clock.Read()
	if err == nil {
		err = run()
	}
	if err != nil {
		return u, 0, err
	}
	after, err := e.clock.Read()
	return after.Since(before), time.Since(start), err
}

// idle is the share of the generators' time that they did not need: waiting
// for their pace, sending what the full wire refused, or standing aside while
// the wire was polled on their own core. What other programs took of their
// cores is none of it: a generator that does not get to run offers too little.
func (e *env) idle(a, z *sample, span time.Duration, gens int) float64 {
	used := z.usage.Since(a.usage)
	waited := min((z.sent.Waited-a.sent.Waited).Seconds()/span.Seconds()/float64(gens), 1)
	spare := 0.0
	if frames := z.sent.Frames - a.sent.Frames; frames > 0 {
		spare = float64(z.wire.RxDropped-a.wire.RxDropped) / float64(frames)
	}
	if e.bed.NIC == bed.Softirq {
		spare = max(spare, e.share(used.Cores, span, gens))
	}
	return max(waited+(1-waited)*min(spare, 1)-e.share(used.Foreign, span, gens), 0)
}

// share is how much of the generators' cores was used for something.
func (e *env) share(cores []time.Duration, span time.Duration, gens int) float64 {
	var sum time.Duration
	for _, core := range e.cores.Gen[:gens] {
		sum += cores[core]
	}
	return sum.Seconds() / span.Seconds() / float64(gens)
}
