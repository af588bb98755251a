// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"time"

	"github.com/overlane/overlane/internal/lab/report"
)

// window keeps the wire's ring of 256 frames from overflowing, so that large
// datagrams are not lost for the sake of one of their fragments.
const window = 192

// measureLarge lets as many frames be under way as the wire holds: a datagram
// of many fragments is gone when one of them is, and above saturation none
// would arrive.
func measureLarge(ctx context.Context, e *env) (map[string]float64, error) {
	t, err := e.live(ctx, offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, length: e.cfg.Length, window: window, batch: 16})
	if err != nil {
		return nil, err
	}
	v := e.udpValues(t)
	v[report.Gbps] = t.gbps()
	return v, nil
}

// measureOverload offers the multiples of a variant's own saturation, one
// after the other, and says which share of the delivery at saturation is kept.
// The offer that saturates is looked for once in a series; what it delivers is
// measured in each round.
func measureOverload(ctx context.Context, e *env) (map[string]float64, error) {
	o := offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, length: e.cfg.Length, batch: 16}
	rate, ok := e.offers[e.variant]
	if !ok {
		var err error
		if rate, err = e.findSaturation(ctx, o); err != nil {
			return nil, err
		}
		e.logf("saturation of %s: %.4g kpps offered", e.variant, rate/1e3)
		e.offers[e.variant] = rate
	}
	values := map[string]float64{"offered_kpps": rate / 1e3}
	for _, times := range []float64{1, 2, 4} {
		o.rate = rate * times
		t, err := e.live(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("at %g times saturation: %w", times, err)
		}
		one := e.udpValues(t)
		if times == 1 {
			for _, m := range []string{report.KPPS, report.CPUPerMpkt, report.Dropped} {
				values[m] = one[m]
			}
		} else {
			values[fmt.Sprintf("x%g_kpps", times)] = t.kpps()
			values[fmt.Sprintf("kept_x%g", times)] = t.kpps() / values[report.KPPS]
		}
		values[report.Reordered] += one[report.Reordered]
		values[report.Duplicated] += one[report.Duplicated]
		values[report.GeneratorIdle] = t.idle // at the highest offer
	}
	return values, nil
}

// findSaturation raises the offer until delivery has not followed twice in a
// row, and returns the offer that gave most.
func (e *env) findSaturation(ctx context.Context, o offer) (float64, error) {
	o.length, o.window = max(e.cfg.Length/4, 250*time.Millisecond), window
	t, err := e.live(ctx, o) // no more than can be delivered
	if err != nil {
		return 0, err
	}
	most, best := 0.0, 0.0 // a pace costs its own time: none without one compares
	o.window, o.rate = 0, t.kpps()*1e3
	for vain := 0; vain < 2; o.rate *= 1.25 {
		if t, err = e.live(ctx, o); err != nil {
			return 0, err
		}
		vain++
		if t.kpps() > 1.02*most {
			most, best, vain = t.kpps(), o.rate, 0
		}
	}
	return best, nil
}
