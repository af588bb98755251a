// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// measurement is what is measured beside bulk.
type measurement func() (map[string]float64, error)

// span is what a measurement takes, after settling: its length, and what may
// come after it.
type span struct{ length, tail time.Duration }

// ledTo measures what has a fixed end once the daemon is steady.
func (e *env) ledTo(ctx context.Context, measure measurement) (map[string]float64, error) {
	if err := e.lead(ctx); err != nil {
		return nil, err
	}
	return measure()
}

// besideUDP measures beside UDP, and adds what became of the latter. It is the
// same in every variant, in packets per second: a share of what the plain overlay
// can take.
func (e *env) besideUDP(ctx context.Context, _ span, measure measurement) (_ map[string]float64, err error) {
	check, err := traffic.NewChecker(-1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, check.Close()) }()
	if err := e.listen(check); err != nil {
		return nil, err
	}
	// Else what is above saturation would queue up at the sender, which is not the
	// receive path, and be sent from the receiving core's softirqs.
	if err := e.bed.StopFlowControl(); err != nil {
		return nil, err
	}
	var flows []traffic.Flow
	for id := range e.cfg.Flows {
		flows = append(flows, e.flow(id))
	}
	rate := e.saturation * e.cfg.Load
	if rate == 0 {
		return e.ledTo(ctx, measure)
	}
	bulk, err := traffic.StartSegments(e.bed, traffic.SegmentConfig{Flows: flows, Size: e.cfg.Size, Rate: rate, Core: e.cores.Paced})
	if err != nil {
		return nil, err
	}
	before, start := bulk.Slept(), time.Now()
	values, merr := e.ledTo(ctx, measure)
	span := time.Since(start)
	slept := bulk.Slept() - before
	if err := errors.Join(merr, bulk.Stop()); err != nil {
		return nil, err
	}
	var total traffic.Verdict
	err = drained(ctx, bulk.Sent(), func() (uint64, error) {
		total, err = check.Total(len(flows))
		return total.Received, err
	})
	if err != nil {
		return nil, err
	}
	values[report.BulkKPPS] = float64(total.Received) / span.Seconds() / 1e3
	values["offered_kpps"] = rate / 1e3
	values[report.Reordered] = float64(total.Reordered)
	values[report.Duplicated] = float64(total.Duplicated)
	values[report.Dropped] = float64(bulk.Sent() - min(bulk.Sent(), total.Received))
	values[report.GeneratorIdle] = slept.Seconds() / span.Seconds()
	return values, nil
}

// besideTCP does the same with TCP at a share of what it can reach.
func (e *env) besideTCP(ctx context.Context, lasts span, measure measurement) (map[string]float64, error) {
	gbps := e.saturation * e.cfg.Load
	if gbps == 0 {
		return e.ledTo(ctx, measure)
	}
	if err := e.bed.CutEarly(); err != nil {
		return nil, err
	}
	if e.look != nil && !e.led {
		if err := e.tcpLead(ctx, e.tcpConfig(gbps)); err != nil {
			return nil, err
		}
	}
	from, to := e.endpoints(0)
	cfg := e.tcpConfig(gbps)
	cfg.Length, cfg.Tail = lasts.length, lasts.tail
	t, err := traffic.StartTCP(ctx, from, to, cfg)
	if err != nil {
		return nil, err
	}
	values, err := measure()
	if err != nil {
		t.Stop()
		return nil, err
	}
	res, err := t.Wait(ctx)
	if err != nil {
		return nil, err
	}
	values[report.BulkGbps] = res.Gbps
	values["offered_gbps"] = gbps
	return values, nil
}

// findUDPSaturation measures what the plain overlay delivers at most.
func findUDPSaturation(ctx context.Context, e *env) error {
	t, err := e.live(ctx, offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, length: time.Second})
	if err != nil {
		return err
	}
	e.saturation = t.kpps() * 1e3
	e.logf("saturation of the plain overlay: %.4g kpps", t.kpps())
	return nil
}

func findTCPSaturation(ctx context.Context, e *env) error {
	res, _, _, err := e.tcp(ctx, e.tcpConfig(0))
	if err != nil {
		return err
	}
	e.saturation = res.Gbps
	e.logf("saturation of the plain overlay: %.4g Gb/s", res.Gbps)
	return nil
}
