// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
)

// crossRate is what sockperf's client can send on a slow core, too.
const crossRate = 50e3

// measureCrossCheck sets the lab's own tools against sockperf, the field's: the
// probe's latency against its ping-pong at the same rate, and what a packet of
// the live-frame generator costs the wire's core against what one of sockperf's
// costs. (The paced generator sends bursts, which cost less.) A round trip goes
// both ways, so the probe does too: there before sockperf, back after it.
func measureCrossCheck(ctx context.Context, e *env) (map[string]float64, error) {
	values, err := e.probe(ctx, e.settle)
	if err != nil {
		return nil, err
	}
	from, to := e.endpoints(0)
	there := values[report.P50]
	lat, err := traffic.Sockperf(ctx, from, to, int(time.Second/probeEvery), datagram.StampedSize, e.cfg.Length, e.cores.Sender, e.cores.Apps)
	if err != nil {
		return nil, err
	}
	values["sockperf_p50_us"], values["sockperf_p99_us"] = us(lat.P50), us(lat.P99)
	back, err := e.probeFrom(ctx, to, from, e.cores.Apps, e.cores.Sender, e.settle, false)
	if err != nil {
		return nil, err
	}
	values["back_p50_us"] = back[report.P50]
	values["p50_to_sockperf"] = (there + back[report.P50]) / 2 / values["sockperf_p50_us"]

	theirs, err := e.costOf(func() error {
		return traffic.SockperfStream(ctx, from, to, crossRate, e.cfg.Size, e.cfg.Length, e.cores.Sender, e.cores.Apps)
	})
	if err != nil {
		return nil, err
	}
	live, err := e.costOf(func() error {
		_, err := e.live(ctx, offer{flows: 1, size: e.cfg.Size, rate: crossRate, batch: 1, length: e.cfg.Length})
		return err
	})
	if err != nil {
		return nil, err
	}
	values["sockperf_packet_us"], values["live_packet_us"] = theirs, live
	values["packet_to_sockperf"] = live / theirs
	return values, nil
}

// costOf is the time that the wire's core spends for each packet, in us.
func (e *env) costOf(run func() error) (float64, error) {
	if err := e.countThreads(); err != nil {
		return 0, err
	}
	wire0, err := e.bed.WireStats()
	if err != nil {
		return 0, err
	}
	used, _, err := e.used(run)
	if err != nil {
		return 0, err
	}
	wire1, err := e.bed.WireStats()
	if err != nil || wire1.RxPackets == wire0.RxPackets {
		return 0, errors.Join(err, errors.New("no packet crossed the wire"))
	}
	return us(used.Cores[e.cores.NIC[0]]) / float64(wire1.RxPackets-wire0.RxPackets), nil
}
