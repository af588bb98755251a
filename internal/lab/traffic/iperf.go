// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// TCP is a running iperf3 that sends from one place to another.
type TCP struct {
	server, client *Process
	cfg            TCPConfig
}

const iperfPort = 5201

// TCPResult is what iperf3 says about its run, without the beginning.
type TCPResult struct {
	Gbps  float64
	Bytes uint64 // received
}

// TCPConfig says what to send.
type TCPConfig struct {
	Streams int
	Omit    time.Duration // the beginning, which does not count
	Length  time.Duration // what comes after it
	Tail    time.Duration // and the end, which does not count either
	Gbps    float64       // over all streams; 0: as much as it can
	Write   int           // bytes that are written, and read, at a time; 0: as iperf3 has it
	SendOn  []int         // where the program at the sending end runs
	RecvOn  []int
}

// StartTCP starts connections that send for Omit + Length + Tail, in whole
// seconds.
// The client is at the receiving end, so that it reports what was received.
func StartTCP(ctx context.Context, from, to Endpoint, cfg TCPConfig) (*TCP, error) {
	port := strconv.Itoa(iperfPort)
	server, err := program{ns: from.NS, cores: cfg.SendOn}.serve(ctx, Listens, iperfPort, "iperf3", "-s", "-1", "-p", port, "-B", from.Addr.String())
	if err != nil {
		return nil, err
	}
	t := &TCP{server: server, cfg: cfg}
	argv := []string{"iperf3", "-c", from.Addr.String(), "-p", port, "-B", to.Addr.String(), "-R", "-J", "-i", "0.1",
		"-P", strconv.Itoa(cfg.Streams), "-t", strconv.Itoa(wholeSeconds(cfg.Omit + cfg.Length + cfg.Tail))}
	if cfg.Gbps > 0 {
		argv = append(argv, "-b", strconv.FormatInt(int64(cfg.Gbps*1e9/float64(cfg.Streams)), 10))
	}
	if cfg.Write > 0 {
		argv = append(argv, "-l", strconv.Itoa(cfg.Write))
	}
	t.client, err = StartProcess(to.NS, cfg.RecvOn, argv...)
	if err != nil {
		return nil, errors.Join(err, server.Stop(Ends))
	}
	return t, nil
}

// Wait returns the result when the run is over.
func (t *TCP) Wait(ctx context.Context) (TCPResult, error) {
	out, err := t.client.Wait(ctx)
	serr := t.server.Stop(Ends)
	if err != nil {
		return TCPResult{}, errors.Join(err, serr)
	}
	return parseIperf(out, t.cfg)
}

// Stop ends the run early.
func (t *TCP) Stop() {
	t.client.kill()
	t.server.kill()
}

func parseIperf(out []byte, cfg TCPConfig) (TCPResult, error) {
	var doc struct {
		Error     string
		Intervals []struct {
			Sum struct {
				Start, End float64
				Bytes      uint64
			}
		}
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return TCPResult{}, fmt.Errorf("read iperf3's report: %w", err)
	}
	if doc.Error != "" {
		return TCPResult{}, fmt.Errorf("iperf3: %s", doc.Error)
	}
	var r TCPResult
	var span float64
	for _, i := range doc.Intervals {
		// Without a tail, what was added for whole seconds is as good as the rest.
		tail := cfg.Tail > 0 && i.Sum.Start >= (cfg.Omit+cfg.Length).Seconds()
		if i.Sum.Start >= cfg.Omit.Seconds() && !tail {
			r.Bytes += i.Sum.Bytes
			span += i.Sum.End - i.Sum.Start
		}
	}
	if span == 0 {
		return r, fmt.Errorf("iperf3 reports nothing after the first %s", cfg.Omit)
	}
	r.Gbps = float64(r.Bytes) * 8 / span / 1e9
	return r, nil
}
