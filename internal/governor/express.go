// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"fmt"
	"time"
)

// Express tells when a program on the NICs that hands frames straight to pods is worth a trial: a core
// is short of time, and what comes out of the tunnels is datagrams for a good part, which alone take
// that path. What is delivered without it is measured first, for the trial to be held against. And it
// tells when the program has to go: hardly a frame takes that path any more. The decision is Parked
// while it is looked what there is, Active where the program is to be on the NICs. The zero value is ready.
type Express struct {
	inForce
	short time.Time     // since when a core has been short of time
	pause time.Time     // no census before
	rest  time.Duration // how long the last pause was that followed from being idle
	begun time.Time     // of the census, then of what is measured
	idle  time.Time     // since when hardly a frame takes that path
	sum   ExpressWindow // of the stretch that is looked at
	from  time.Time     // when that began
	after bool          // the census: now it is measured
}

// ExpressWindow is what was seen since the last step.
type ExpressWindow struct {
	// Saturated is the largest share of a core's time in saturated polls of overlay packets.
	Saturated float64
	// Paths is how many paths frames could take.
	Paths int
	// Unsettled: another mechanism is about to change what is delivered without.
	Unsettled bool
	// Overlay are the frames for tunnels, Straight those of them that went straight to pods.
	Overlay, Straight uint64
}

const (
	// ExpressFrom is how many datagrams a second are worth a trial, expressShare of all packets.
	expressFrom  = 10_000
	expressShare = 0.1
	// Hardly a frame takes that path: fewer than expressLeast in a second, or than expressRarely of
	// all. For expressIdle, and the program goes.
	expressLeast  = 1000
	expressRarely = 0.05
	expressIdle   = 10 * time.Second
	// It is looked again after expressPause, and twice as long each time that it was in vain, up to
	// holdsMost.
	expressPause = holdsFirst
	// MeasuredFor is how long it is measured what is delivered without it.
	measuredFor = time.Second
	// opensWithin is how long the paths may take to be open.
	opensWithin = 5 * time.Second
)

// Step takes a window.
func (x *Express) Step(now time.Time, w ExpressWindow) Decision {
	if x.pause.Sub(now) > holdsMost {
		x.pause = now // the clock jumped back
	}
	long := lasts(&x.short, now, w.Saturated >= shortFrom && !w.Unsettled, shortFor)
	switch x.last.State {
	case Active:
		x.judge(now, w)
	case Parked:
	default:
		switch {
		case now.Before(x.pause):
		case w.Paths == 0:
			x.decide(now, Standby, "no express path is open")
		case w.Unsettled:
			x.decide(now, Standby, "another mechanism is about to show what it gains")
		case x.short.IsZero():
			x.decide(now, Standby, "no core is short of time")
		case !long:
			x.decide(now, Standby, "a core has just become short of time")
		default:
			x.begun, x.after = now, false
			x.decide(now, Parked, "it is looked whether datagrams come out of the tunnels")
		}
	}
	return x.last
}

// Counting tells that a census is to be under way, Over that it has lasted long enough, or what is
// measured after it has.
func (x *Express) Counting() bool { return x.last.State == Parked && !x.after }

// Over tells that.
func (x *Express) Over(now time.Time) bool {
	if x.after {
		return now.Sub(x.begun) >= measuredFor
	}
	return now.Sub(x.begun) >= CensusFor
}

// Counted takes a census: of so many packets that came out of tunnels so many were datagrams.
func (x *Express) Counted(now time.Time, packets, datagrams uint64) Decision {
	took := now.Sub(x.begun)
	rate, share := float64(datagrams)/took.Seconds(), float64(datagrams)/float64(max(packets, 1))
	switch {
	case rate < expressFrom:
		x.stop(now, expressPause, fmt.Sprintf("fewer than %d datagrams a second come out of the tunnels, and other packets take the full path", expressFrom))
	case share < expressShare:
		x.stop(now, expressPause, fmt.Sprintf("%.0f %% of the tunnels' packets are datagrams, and others take the full path", share*100))
	default:
		x.begun, x.after = now, true
		x.decide(now, Parked, "it is measured how much comes without")
	}
	return x.last
}

// Measured says that it is known what is delivered without.
func (x *Express) Measured(now time.Time) Decision {
	x.idle, x.from, x.sum = time.Time{}, now, ExpressWindow{}
	x.decide(now, Active, "its program is on the NICs for a trial")
	return x.last
}

// judge looks whether frames go straight to pods, second by second.
func (x *Express) judge(now time.Time, w ExpressWindow) {
	x.sum.Overlay += w.Overlay
	x.sum.Straight += w.Straight
	took := now.Sub(x.from)
	if took < 0 {
		x.from, x.sum = now, ExpressWindow{}
		return
	}
	if took < time.Second {
		return
	}
	rate, share := float64(x.sum.Straight)/took.Seconds(), float64(x.sum.Straight)/float64(max(x.sum.Overlay, 1))
	began := x.from
	x.from, x.sum = now, ExpressWindow{}
	if rate >= expressLeast && share >= expressRarely {
		x.idle = time.Time{}
		return
	}
	if x.idle.IsZero() || now.Before(x.idle) {
		x.idle = began
	}
	if now.Sub(x.idle) < expressIdle {
		return
	}
	if now.Sub(x.last.Since) > holdsMost {
		x.rest = 0
	}
	x.rest = min(max(2*x.rest, expressPause), holdsMost)
	x.stop(now, x.rest, fmt.Sprintf("hardly a frame went straight to a pod for %v (%.0f a second, %.0f %% of the tunnels')", expressIdle, rate, share*100))
}

// Late tells that the paths have not been opened although they should be.
func (x *Express) Late(now time.Time) bool { return now.Sub(x.last.Since) >= opensWithin }

// Refuse ends it for a while.
func (x *Express) Refuse(now time.Time, why string) {
	x.pause = now.Add(expressPause)
	x.decide(now, Standby, why)
}

// Again ends it for it to be looked at from the beginning.
func (x *Express) Again(now time.Time, why string) {
	x.pause, x.short = time.Time{}, time.Time{}
	x.decide(now, Standby, why)
}

func (x *Express) stop(now time.Time, pause time.Duration, why string) {
	x.pause = now.Add(pause)
	x.decide(now, Standby, fmt.Sprintf("%s; looked at again after %v", why, pause))
}
