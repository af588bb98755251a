// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"

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
func measureOverload(ctx context.Context, e *env) (map[string]float64, error) {
	o := offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, length: e.cfg.Length, batch: 16}
	closed := o
	closed.window, closed.length = window, e.cfg.Length/2
	sat, err := e.live(ctx, closed)
	if err != nil {
		return nil, err
	}
	var values map[string]float64
	var base float64
	for _, times := range []float64{1, 2, 4} {
		o.rate = sat.kpps() * 1e3 * times
		t, err := e.live(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("at %g times saturation: %w", times, err)
		}
		if times == 1 {
			values, base = e.udpValues(t), t.kpps()
			values["offered_kpps"] = o.rate / 1e3
			continue
		}
		values[fmt.Sprintf("x%g_kpps", times)] = t.kpps()
		values[fmt.Sprintf("kept_x%g", times)] = t.kpps() / base
		values[report.Reordered] += float64(t.total.Reordered)
		values[report.Duplicated] += float64(t.total.Duplicated)
		values[report.GeneratorIdle] = t.idle // at the highest offer
	}
	return values, nil
}
