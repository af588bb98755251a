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

// Sockperf runs the field's own tool (under-load: mps messages a second, half
// of each round trip), as a cross-check of this package's probe.
func Sockperf(ctx context.Context, from, to Endpoint, mps, size int, length time.Duration, cores []int) (SockperfResult, error) {
	port := strconv.Itoa(sockperfPort)
	server, err := StartProcess(to.NS, cores, "sockperf", "server", "-i", to.Addr.String(), "-p", port)
	if err != nil {
		return SockperfResult{}, err
	}
	res, err := sockperfClient(ctx, from, to, mps, size, length, cores, server)
	return res, errors.Join(err, server.Stop(2*time.Second))
}

func sockperfClient(ctx context.Context, from, to Endpoint, mps, size int, length time.Duration, cores []int, server *Process) (SockperfResult, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ok := false; !ok; {
		select {
		case <-ctx.Done():
			return SockperfResult{}, ctx.Err()
		case <-server.Done():
			return SockperfResult{}, errors.New("sockperf server ended")
		case <-tick.C:
		}
		var err error
		if ok, err = Bound(to.NS, sockperfPort); err != nil {
			return SockperfResult{}, err
		}
	}
	client, err := StartProcess(from.NS, cores, "sockperf", "under-load", "-i", to.Addr.String(), "-p", strconv.Itoa(sockperfPort),
		"-m", strconv.Itoa(size), "-t", strconv.Itoa(int((length+time.Second-1)/time.Second)), "--mps", strconv.Itoa(mps), "--reply-every", "1")
	if err != nil {
		return SockperfResult{}, err
	}
	out, err := client.Wait(ctx)
	if err != nil {
		return SockperfResult{}, err
	}
	return parseSockperf(string(out))
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
