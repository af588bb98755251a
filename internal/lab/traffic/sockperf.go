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
	out, err := sockperf(ctx, from, to, "ping-pong", mps, size, length, sendOn, recvOn)
	if err != nil {
		return SockperfResult{}, err
	}
	return parseSockperf(string(out))
}

// SockperfStream sends mps messages a second one way, as sockperf does it.
func SockperfStream(ctx context.Context, from, to Endpoint, mps, size int, length time.Duration, sendOn, recvOn int) error {
	_, err := sockperf(ctx, from, to, "throughput", mps, size, length, sendOn, recvOn)
	return err
}

// sockperf runs a server, and a client in a mode, and returns what the client printed.
func sockperf(ctx context.Context, from, to Endpoint, mode string, mps, size int, length time.Duration, sendOn, recvOn int) ([]byte, error) {
	at := []string{"-i", to.Addr.String(), "-p", strconv.Itoa(sockperfPort)}
	server, err := program{ns: to.NS, cores: []int{recvOn}, policy: urgent}.serve(ctx, Bound, sockperfPort, append([]string{"sockperf", "server"}, at...)...)
	if err != nil {
		return nil, err
	}
	out, err := program{ns: from.NS, cores: []int{sendOn}, policy: urgent}.output(ctx, append([]string{"sockperf", mode,
		"-m", strconv.Itoa(size), "-t", strconv.Itoa(wholeSeconds(length)), "--mps", strconv.Itoa(mps)}, at...)...)
	return out, errors.Join(err, server.Stop(Ends))
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
