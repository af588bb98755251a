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

// us is a time in microseconds, as metrics have it.
func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// probe measures latency for a while, once all has settled.
func (e *env) probe(ctx context.Context, settle time.Duration) (map[string]float64, error) {
	from, to := e.endpoints(0)
	return e.probeFrom(ctx, from, to, e.cores.Sender, e.cores.Apps, settle, false)
}

// roundTrip does the same there and back.
func (e *env) roundTrip(ctx context.Context, settle time.Duration) (map[string]float64, error) {
	from, to := e.endpoints(0)
	return e.probeFrom(ctx, from, to, e.cores.Sender, e.cores.Apps, settle, true)
}

func (e *env) probeFrom(ctx context.Context, from, to traffic.Endpoint, sendOn, recvOn int, settle time.Duration, back bool) (map[string]float64, error) {
	atMost := settle + e.cfg.Length
	if e.look != nil {
		atMost += e.slowly(e.limit)
	}
	p, err := traffic.StartProbe(from, to, probeEvery, sendOn, recvOn, int(atMost/probeEvery)+1000, back)
	if err != nil {
		return nil, err
	}
	prefix := ""
	if back {
		prefix = "rr_"
	}
	werr := e.settled(ctx, settle, func() error { p.Begin(); return sleep(ctx, e.cfg.Length) })
	l, err := p.Stop()
	v := described(l, prefix)
	v[report.Lost] = float64(l.Sent - min(l.Sent, l.Received))
	return v, errors.Join(werr, err)
}

// described are latencies by metric, whose names may have a prefix.
func described(l traffic.Latencies, prefix string) map[string]float64 {
	return map[string]float64{prefix + report.Min: us(l.Min), prefix + report.Mean: us(l.Mean), prefix + report.P50: us(l.P50),
		prefix + report.P99: us(l.P99), prefix + report.P999: us(l.P999), prefix + report.Longest: us(l.Max)}
}

// settleFor is what a probe waits for at the series' load.
func (e *env) settleFor() time.Duration {
	if e.cfg.Load == 0 {
		return max(e.slowly(idleSettle), e.settle)
	}
	return e.settle
}

func measureIdleLatency(ctx context.Context, e *env) (map[string]float64, error) {
	return e.probe(ctx, e.slowly(idleSettle))
}

func measureUDPLatency(ctx context.Context, e *env) (map[string]float64, error) {
	return e.besideUDP(ctx, span{}, func() (map[string]float64, error) { return e.probe(ctx, e.settleFor()) })
}

// measureRoundTrip is a scenario of its own, not a metric beside the one-way
// latency: what answers would be in the way of the datagrams that are measured,
// on the same core of a small machine.
func measureRoundTrip(ctx context.Context, e *env) (map[string]float64, error) {
	return e.besideUDP(ctx, span{}, func() (map[string]float64, error) { return e.roundTrip(ctx, e.settleFor()) })
}

func measureTCPLatency(ctx context.Context, e *env) (map[string]float64, error) {
	return e.besideTCP(ctx, span{length: e.cfg.Length}, func() (map[string]float64, error) { return e.probe(ctx, e.settle) })
}
