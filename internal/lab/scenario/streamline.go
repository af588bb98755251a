// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// flowService is where the checked flows go.
var flowService = service{"flow", "udp", traffic.Port}

// steady is the share of saturation of a flow that is all there is.
const steady = 0.75

// lateFrames is how long the generator may be kept from sending and still send what
// was due meanwhile: a heap of frames queues behind itself, which is not the path.
const lateFrames = 100 * time.Microsecond

// measureStreamline measures the latency of a flow by its own datagrams, with nothing
// beside it, and then the highest rate at which it loses none.
func measureStreamline(ctx context.Context, e *env) (map[string]float64, error) {
	o := offer{flows: e.cfg.Flows, size: e.cfg.Size, rate: e.saturation * e.cfg.Load, length: e.cfg.Length, batch: 16,
		stamp: true, makeUp: lateFrames}
	t, err := e.live(ctx, o)
	if err != nil {
		return nil, err
	}
	v := e.udpValues(t)
	v["offered_kpps"] = o.rate / 1e3
	maps.Copy(v, described(t.latency, ""))
	free, err := e.findLossFree(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("find the highest rate without loss: %w", err)
	}
	v[report.LossFreeKPPS] = free
	return v, nil
}

// findLossFree searches between nothing and what cannot be delivered, to 2 %, and
// returns what was delivered at the highest rate without loss, in kpps.
func (e *env) findLossFree(ctx context.Context, o offer) (float64, error) {
	probe := *e
	// The path is warm, and what it does in a search is not what a variant acts on.
	probe.settle, probe.watch, probe.look = min(e.settle, 100*time.Millisecond), nil, nil
	o.length, o.stamp, o.window, o.rate = max(e.cfg.Length/8, 150*time.Millisecond), false, window, 0
	t, err := probe.live(ctx, o) // no more than can be delivered
	if err != nil {
		return 0, err
	}
	o.window = 0
	best := 0.0
	_, err = bisect(0, 1.25*t.kpps()*1e3, 0.02, func(rate float64) (bool, error) {
		o.rate = rate
		// What else runs on the machine can only add loss: one try without any will do.
		for lossy, idle := 0, 0; lossy < tries && idle < 2*tries; {
			t, err := probe.live(ctx, o)
			switch {
			case errors.Is(err, errNoneArrived):
				idle++
			case err != nil:
				return false, err
			case t.offered != t.total.Received:
				lossy++
			case t.kpps()*1e3 < 0.95*rate: // the generator was kept from sending: this shows nothing
				idle++
			default:
				best = max(best, t.kpps())
				return true, nil
			}
		}
		return false, nil
	})
	return best, err
}

const tries = 5

// bisect finds the highest x between lo, which is good, and hi, which is taken for
// bad, up to a share of hi.
func bisect(lo, hi, share float64, good func(float64) (bool, error)) (float64, error) {
	for limit := share * hi; hi-lo > limit; {
		mid := (lo + hi) / 2
		ok, err := good(mid)
		if err != nil {
			return lo, err
		}
		if ok {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, nil
}
