// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"time"
)

// SockperfResult is what sockperf measured: one-way latency, as half of a
// round trip.
type SockperfResult struct{ P50, P99 time.Duration }

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
	return program{ns: at.NS, cores: []int{core}, policy: urgent}.serve(ctx, Bound, sockperfPort,
		"sockperf", "server", "-i", at.Addr.String(), "-p", strconv.Itoa(sockperfPort))
}

func sockperfClient(ctx context.Context, from, to Endpoint, mode string, mps, size int, length time.Duration, core int) ([]byte, error) {
	return program{ns: from.NS, cores: []int{core}, policy: urgent}.output(ctx, "sockperf", mode, "-i", to.Addr.String(), "-p", strconv.Itoa(sockperfPort),
		"-m", strconv.Itoa(size), "-t", strconv.Itoa(int((length+time.Second-1)/time.Second)), "--mps", strconv.Itoa(mps))
}

var sockperfQ = regexp.MustCompile(`(?m)---> percentile ([0-9.]+) = +([0-9.]+)`)

func parseSockperf(out string) (r SockperfResult, err error) {
	for _, q := range sockperfQ.FindAllStringSubmatch(out, -1) {
		us, _ := strconv.ParseFloat(q[2], 64)
		took := time.Duration(us * float64(time.Microsecond))
		switch q[1] {
		case "50.000":
			r.P50 = took
		case "99.000":
			r.P99 = took
		}
	}
	if r.P50 == 0 || r.P99 == 0 {
		return r, errors.New("read sockperf's report: no percentiles in it")
	}
	return r, nil
}
