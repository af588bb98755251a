// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/report"
)

const (
	// settle is what traffic gets at least to reach a steady state before it is measured.
	settle = time.Second
	// idleSettle is what an idle node gets: there is nothing to judge, but a daemon needs longer to find
	// that it is idle.
	idleSettle = 2 * settle
	// lookEvery is how often a daemon is asked meanwhile.
	lookEvery = 250 * time.Millisecond
	// A daemon is steady when its status has been the same for calmFor, and settleLimit is how long that
	// is waited for. One that judges whether mechanisms pay tries them one after the other: from the end
	// of a trial to the next it is five seconds at least.
	calmFor, settleLimit = 1500 * time.Millisecond, 10 * time.Second
	judgedFor, judgedBy  = 6 * time.Second, 30 * time.Second
)

// slowly is a time for a machine that is as slow as the series' configuration says.
func (e *env) slowly(d time.Duration) time.Duration { return time.Duration(float64(d) * e.cfg.Slow) }

// condition is what of a daemon's status has to stay as it is.
type condition struct {
	trying string // what it tries out, or why it is not known; empty: nothing
	is     string // states of mechanisms, lanes, verdicts
}

// conditionOf is a status' condition.
func conditionOf(st control.Status) condition {
	var c condition
	var is []string
	for _, m := range st.Mechanisms {
		is = append(is, fmt.Sprintf("%s %s since %s", m.Name, m.State, m.Since))
		if m.Trying {
			c.trying = m.Name + " is on trial, or its programs are being loaded"
		}
	}
	for _, l := range st.Lanes {
		is = append(is, fmt.Sprintf("%s on core %d", l.Stage, l.Core))
	}
	for _, t := range st.Trials {
		is = append(is, fmt.Sprintf("%s was %s at %s", t.Mechanism, t.Verdict, t.At))
	}
	for _, w := range st.Express {
		if w.Open {
			is = append(is, fmt.Sprintf("an express path from %s by %s to %s of %d", w.NIC, w.Tunnel, w.Pod, w.Netns))
		}
	}
	c.is = strings.Join(is, ", ")
	return c
}

// settling decides when a daemon has settled, by what it is seen to be at times since the traffic began.
type settling struct {
	least, calm, limit time.Duration
	since              time.Duration // it is as it is
	last               condition
	looked             bool
}

// look takes a condition, and tells whether that is the end; unsteady says why it should not be.
func (s *settling) look(at time.Duration, c condition) (over bool, unsteady string) {
	if !s.looked || c != s.last || c.trying != "" {
		s.last, s.since, s.looked = c, at, true
	}
	switch {
	case at < s.least:
		return false, ""
	case at-s.since >= s.calm:
		return true, ""
	case at < s.limit:
		return false, ""
	case c.trying != "":
		return true, c.trying
	}
	return true, fmt.Sprintf("its status changed %.1f s before", (at - s.since).Seconds())
}

// become lets traffic become steady: for a time, and where a daemon runs until its status is. wait lets
// the traffic go on.
func (e *env) become(ctx context.Context, least time.Duration, wait func(context.Context, time.Duration) error) error {
	if e.look == nil {
		return wait(ctx, least)
	}
	s := settling{least: least, calm: e.slowly(e.calm), limit: max(least, e.slowly(e.limit))}
	if e.led {
		s.limit = least
	}
	for start := time.Now(); ; {
		at := time.Since(start)
		c, err := e.look(ctx)
		if err != nil {
			return err
		}
		over, unsteady := s.look(at, c)
		if over {
			e.settledIn(at, s.since, unsteady)
			return nil
		}
		if err := wait(ctx, min(e.slowly(lookEvery), max(s.limit-at, time.Millisecond))); err != nil {
			return err
		}
	}
}

// settledIn notes how long it took, and since when it was so, for the row.
func (e *env) settledIn(took, since time.Duration, unsteady string) {
	if e.settling == nil {
		return
	}
	if !e.led {
		e.settling[report.Settled], e.settling[report.Placed] = took.Seconds(), since.Seconds()
	}
	e.settling[report.Unsteady] += 0
	if unsteady != "" {
		e.settling[report.Unsteady] = 1
		if said := fmt.Sprintf("not steady after %.0f s: %s", took.Seconds(), unsteady); !slices.Contains(e.unsteady, said) {
			e.unsteady = append(e.unsteady, said)
		}
	}
}

// lead lets a daemon become steady with traffic before that begins whose end is fixed when it starts: that
// gets as long again, and a second. Without a daemon, nothing happens.
func (e *env) lead(ctx context.Context) error {
	if e.look == nil || e.led {
		return nil
	}
	start := time.Now()
	if err := e.become(ctx, e.settle, sleep); err != nil {
		return err
	}
	e.settle, e.led = time.Since(start)+e.slowly(settle), true
	return nil
}
