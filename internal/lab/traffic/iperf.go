// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/overlane/overlane/internal/netns"
)

// TCP is a running iperf3 that sends from one place to another.
type TCP struct {
	server, client *Process
	omit           time.Duration
}

const iperfPort = 5201

// TCPResult is what iperf3 says about its run, without the beginning.
type TCPResult struct {
	Gbps  float64
	Bytes uint64 // received
	Span  time.Duration
}

// TCPConfig says what to send.
type TCPConfig struct {
	Streams int
	Omit    time.Duration // the beginning, which does not count
	Length  time.Duration // what comes after it
	Gbps    float64       // over all streams; 0: as much as it can
	Cores   []int         // where both programs run
}

// StartTCP starts connections that send for Omit + Length, in whole seconds.
// The client is at the receiving end, so that it reports what was received.
func StartTCP(ctx context.Context, from, to Endpoint, cfg TCPConfig) (*TCP, error) {
	cores := cfg.Cores
	port := strconv.Itoa(iperfPort)
	server, err := StartProcess(from.NS, cores, "iperf3", "-s", "-1", "-p", port, "-B", from.Addr.String())
	if err != nil {
		return nil, err
	}
	t := &TCP{server: server, omit: cfg.Omit}
	if err := t.listening(ctx, from.NS, netip.AddrPortFrom(from.Addr, iperfPort)); err != nil {
		return nil, errors.Join(err, server.Stop(time.Second))
	}
	argv := []string{"iperf3", "-c", from.Addr.String(), "-p", port, "-B", to.Addr.String(), "-R", "-J", "-i", "0.1",
		"-P", strconv.Itoa(cfg.Streams), "-t", strconv.Itoa(int((cfg.Omit + cfg.Length + time.Second - 1) / time.Second))}
	if cfg.Gbps > 0 {
		argv = append(argv, "-b", strconv.FormatInt(int64(cfg.Gbps*1e9/float64(cfg.Streams)), 10))
	}
	t.client, err = StartProcess(to.NS, cores, argv...)
	if err != nil {
		return nil, errors.Join(err, server.Stop(time.Second))
	}
	return t, nil
}

// listening waits until the server has its socket.
func (t *TCP) listening(ctx context.Context, ns *netns.Handle, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := Listens(ns, addr.Port())
		if ok || err != nil {
			return err
		}
		select {
		case <-t.server.Done():
			_, err := t.server.Wait(ctx)
			return errors.Join(errors.New("iperf3 server ended"), err)
		case <-ctx.Done():
			return fmt.Errorf("iperf3 does not listen on %s: %w", addr, ctx.Err())
		case <-tick.C:
		}
	}
}

// Wait returns the result when the run is over.
func (t *TCP) Wait(ctx context.Context) (TCPResult, error) {
	out, err := t.client.Wait(ctx)
	serr := t.server.Stop(2 * time.Second)
	if err != nil {
		return TCPResult{}, errors.Join(err, serr)
	}
	return parseIperf(out, t.omit)
}

// Stop ends the run early.
func (t *TCP) Stop() error {
	return errors.Join(t.client.kill(), t.server.kill())
}

func parseIperf(out []byte, omit time.Duration) (TCPResult, error) {
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
		if i.Sum.Start >= omit.Seconds() {
			r.Bytes += i.Sum.Bytes
			span += i.Sum.End - i.Sum.Start
		}
	}
	if span == 0 {
		return r, fmt.Errorf("iperf3 reports nothing after the first %s", omit)
	}
	r.Span = time.Duration(span * float64(time.Second))
	r.Gbps = float64(r.Bytes) * 8 / span / 1e9
	return r, nil
}
