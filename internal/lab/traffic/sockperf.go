// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// SockperfResult is what sockperf measured: one-way latency, as half of a
// round trip.
type SockperfResult struct {
	Mean, P50, P99 time.Duration
	Sent, Received uint64
}

const sockperfPort = 11111

// Sockperf runs the field's own tool (ping-pong: half of each of mps round trips
// a second), as a cross-check of this package's probe. Its client spins between
// messages, so the server should be on another core; under-load mode would need
// a third.
func Sockperf(ctx context.Context, from, to Endpoint, mps, size int, length time.Duration, sendOn, recvOn int) (SockperfResult, error) {
	server, err := startSockperf(ctx, to, recvOn)
	if err != nil {
		return SockperfResult{}, err
	}
	out, err := sockperfClient(ctx, from, to, "ping-pong", mps, size, length, sendOn)
	if err := errors.Join(err, server.Stop(ends)); err != nil {
		return SockperfResult{}, err
	}
	return parseSockperf(string(out))
}

// SockperfStream sends mps messages a second one way, as sockperf does it.
func SockperfStream(ctx context.Context, from, to Endpoint, mps, size int, length time.Duration, sendOn, recvOn int) error {
	server, err := startSockperf(ctx, to, recvOn)
	if err != nil {
		return err
	}
	_, err = sockperfClient(ctx, from, to, "throughput", mps, size, length, sendOn)
	return errors.Join(err, server.Stop(ends))
}

func startSockperf(ctx context.Context, at Endpoint, core int) (*Process, error) {
	server, err := startProcess(at.NS, []int{core}, urgent, "sockperf", "server", "-i", at.Addr.String(), "-p", strconv.Itoa(sockperfPort))
	if err != nil {
		return nil, err
	}
	if err := server.awaitSocket(ctx, func() (bool, error) { return Bound(at.NS, sockperfPort) }); err != nil {
		return nil, errors.Join(err, server.kill())
	}
	return server, nil
}

func sockperfClient(ctx context.Context, from, to Endpoint, mode string, mps, size int, length time.Duration, core int) ([]byte, error) {
	client, err := startProcess(from.NS, []int{core}, urgent, "sockperf", mode, "-i", to.Addr.String(), "-p", strconv.Itoa(sockperfPort),
		"-m", strconv.Itoa(size), "-t", strconv.Itoa(int((length+time.Second-1)/time.Second)), "--mps", strconv.Itoa(mps))
	if err != nil {
		return nil, err
	}
	return client.Wait(ctx)
}

var (
	sockperfMean  = regexp.MustCompile(`(?m)Summary: Latency is ([0-9.]+) usec`)
	sockperfQ     = regexp.MustCompile(`(?m)---> percentile ([0-9.]+) = +([0-9.]+)`)
	sockperfCount = regexp.MustCompile(`SentMessages=([0-9]+); ReceivedMessages=([0-9]+)`)
)

func parseSockperf(out string) (SockperfResult, error) {
	var r SockperfResult
	us := func(s string) time.Duration {
		f, _ := strconv.ParseFloat(s, 64)
		return time.Duration(f * float64(time.Microsecond))
	}
	m := sockperfMean.FindStringSubmatch(out)
	if m == nil {
		return r, errors.New("read sockperf's report: no latency in it")
	}
	r.Mean = us(m[1])
	for _, q := range sockperfQ.FindAllStringSubmatch(out, -1) {
		switch q[1] {
		case "50.000":
			r.P50 = us(q[2])
		case "99.000":
			r.P99 = us(q[2])
		}
	}
	if c := sockperfCount.FindStringSubmatch(out); c != nil {
		r.Sent, _ = strconv.ParseUint(c[1], 10, 64)
		r.Received, _ = strconv.ParseUint(c[2], 10, 64)
	}
	if r.P50 == 0 || r.P99 == 0 {
		return r, fmt.Errorf("read sockperf's report: no percentiles in it")
	}
	return r, nil
}
