// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

const probeEvery = time.Millisecond

// probe measures latency for a while, once all has settled.
func (e *env) probe(ctx context.Context, recvOn int, settle time.Duration) (map[string]float64, error) {
	from, to := e.endpoints(0)
	return e.probeFrom(ctx, from, to, e.cores.Apps, recvOn, settle)
}

func (e *env) probeFrom(ctx context.Context, from, to traffic.Endpoint, sendOn, recvOn int, settle time.Duration) (map[string]float64, error) {
	p, err := traffic.StartProbe(from, to, probeEvery, sendOn, recvOn, int((settle+e.cfg.Length)/probeEvery)+1000)
	if err != nil {
		return nil, err
	}
	werr := sleep(ctx, settle)
	if werr == nil {
		werr = e.window(ctx, func() error { return sleep(ctx, e.cfg.Length) })
	}
	l, err := p.Stop(int(settle / probeEvery))
	if err := errors.Join(werr, err); err != nil {
		return nil, err
	}
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return map[string]float64{report.Min: us(l.Min), report.Mean: us(l.Mean), report.P50: us(l.P50), report.P99: us(l.P99), report.P999: us(l.P999),
		report.Longest: us(l.Max), "lost": float64(l.Sent - min(l.Sent, l.Received))}, nil
}

func measureIdleLatency(ctx context.Context, e *env) (map[string]float64, error) {
	// A daemon needs longer to find that the node is idle.
	return e.probe(ctx, e.cores.Apps, 2*e.settle)
}

// measureUDPLatency sends the same background, in packets per second, in every
// variant: a share of what the plain overlay can take.
func measureUDPLatency(ctx context.Context, e *env) (_ map[string]float64, err error) {
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
		return measureIdleLatency(ctx, e)
	}
	bulk, err := traffic.StartSegments(e.bed, traffic.SegmentConfig{Flows: flows, Size: e.cfg.Size, Rate: rate, Core: e.cores.Apps})
	if err != nil {
		return nil, err
	}
	before, start := bulk.Slept(), time.Now()
	values, perr := e.probe(ctx, e.cores.Apps, e.settle)
	span := time.Since(start)
	slept := bulk.Slept() - before
	if err := errors.Join(perr, bulk.Stop(), e.drained(ctx)); err != nil {
		return nil, err
	}
	total, err := check.Total(len(flows))
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

// measureTCPLatency does the same with TCP at a share of what it can reach.
func measureTCPLatency(ctx context.Context, e *env) (map[string]float64, error) {
	from, to := e.endpoints(0)
	t, err := traffic.StartTCP(ctx, from, to, e.tcpConfig(e.saturation*e.cfg.Load))
	if err != nil {
		return nil, err
	}
	values, err := e.probe(ctx, e.cores.Apps, e.settle)
	if err != nil {
		return nil, errors.Join(err, t.Stop())
	}
	res, err := t.Wait(ctx)
	if err != nil {
		return nil, err
	}
	values["bulk_gbps"] = res.Gbps
	values["offered_gbps"] = e.saturation * e.cfg.Load
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
	res, _, _, err := e.tcp(ctx, 0)
	if err != nil {
		return err
	}
	e.saturation = res.Gbps
	e.logf("saturation of the plain overlay: %.4g Gb/s", res.Gbps)
	return nil
}
