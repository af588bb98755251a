// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/printable"
	"github.com/overlane/overlane/internal/snmp"
)

// service is where a scenario's latency traffic goes, for a test that wants to treat
// it apart.
type service struct {
	name  string
	proto string
	port  uint16
}

var (
	probeService     = service{"probe", "udp", traffic.ProbePort}
	memcachedService = service{"memcached", "tcp", traffic.MemcachedPort}
	webService       = service{"web", "tcp", traffic.WebPort}
)

// application is a real server in the receiver's pod, with its clients.
type application struct {
	service
	start func(ctx context.Context, from, at traffic.Endpoint, cfg traffic.ServerConfig) (*traffic.Process, error)
	talk  func(client int) traffic.Dialogue
	// flood asks as fast as it is answered, and returns requests per second. It
	// takes up to slack longer than it was told.
	flood func(ctx context.Context, from, at traffic.Endpoint, f traffic.Flood) (float64, error)
	slack time.Duration
	// beside runs a measurement of some length beside the scenario's bulk.
	beside func(e *env, ctx context.Context, lasts span, measure measurement) (map[string]float64, error)
}

var memcached = application{service: memcachedService, start: traffic.StartMemcached, talk: traffic.MemcachedDialogue,
	flood: traffic.FloodMemcached, slack: 2 * time.Second, beside: (*env).besideUDP}

var web = application{service: webService, talk: traffic.WebDialogue, flood: traffic.FloodWeb, slack: time.Second, beside: (*env).besideTCP,
	start: func(ctx context.Context, _, at traffic.Endpoint, cfg traffic.ServerConfig) (*traffic.Process, error) {
		return traffic.StartNginx(ctx, at, cfg)
	}}

// clients are points at numbers of connections, each alone and under bulk.
func clients(counts ...int) (list []point) {
	for _, n := range counts {
		one := printable.Plural(n, "client")
		list = append(list,
			point{one + " alone", func(c *Config) { c.clients, c.Load = n, 0 }},
			point{one + " under bulk", func(c *Config) { c.clients = n }})
	}
	return list
}

// measure asks at a constant rate first, for latencies, and then as fast as it is
// answered, for requests per second: a loop that is closed has few requests to
// answer when the path is slow, and its latencies say little.
func (a *application) measure(ctx context.Context, e *env) (map[string]float64, error) {
	// At a constant rate the server is urgent, as the probe is: on a machine with
	// few cores it would have to wait for the one that it shares with the
	// generator, and that would be most of the figure. At full speed it competes
	// as it does on any node.
	values, err := a.serving(ctx, e, true, span{length: e.cfg.Length, tail: time.Second}, a.atRate)
	if err != nil {
		return nil, err
	}
	full, err := a.serving(ctx, e, false, span{length: e.wholeSeconds(), tail: a.slack}, a.atFullSpeed)
	if err != nil {
		return nil, err
	}
	for metric, x := range full {
		switch metric {
		case report.RPS:
			values[metric] = x
		case report.Reordered, report.Duplicated, report.Dropped:
			values[metric] += x
		case "offered_kpps", "offered_gbps": // the same again
		default: // of the bulk
			values["rps_"+metric] = x
		}
	}
	return values, nil
}

// serving runs a measurement with a server of its own.
func (a *application) serving(ctx context.Context, e *env, urgent bool, lasts span,
	measure func(context.Context, *env, traffic.Endpoint, traffic.Endpoint) (map[string]float64, error)) (_ map[string]float64, err error) {
	dir, err := os.MkdirTemp(e.bed.Dir(), a.name)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", a.name, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	from, at := e.endpoints(0)
	server, err := a.start(ctx, from, at, traffic.ServerConfig{Cores: e.cores.Servers, Urgent: urgent, Dir: dir})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop(traffic.Ends)) }()
	return a.beside(e, ctx, lasts, func() (map[string]float64, error) { return measure(ctx, e, from, at) })
}

// between is the time between two requests of one of n clients: the probe's rate,
// but in all no more than a small machine can answer beside bulk. Above that, it
// would be the queue of requests that is measured.
func between(n int) time.Duration { return max(probeEvery, time.Duration(n)*time.Second/2000) }

func (a *application) atRate(ctx context.Context, e *env, from, at traffic.Endpoint) (map[string]float64, error) {
	resent, err := e.resent()
	if err != nil {
		return nil, err
	}
	c, err := traffic.StartClients(from, netip.AddrPortFrom(at.Addr, a.port), a.talk, traffic.ClientsConfig{
		Count: e.cfg.clients, Every: between(e.cfg.clients), Skip: e.settle, Length: e.cfg.Length, Core: e.cores.Sender})
	if err != nil {
		return nil, err
	}
	if err := e.settled(ctx, e.settle, func() error { return sleep(ctx, e.cfg.Length) }); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	l, err := c.Wait()
	if err != nil {
		return nil, err
	}
	again, err := e.resent()
	if err != nil {
		return nil, err
	}
	return map[string]float64{report.Retransmits: float64(again - resent), report.Avg: us(l.Mean), report.Min: us(l.Min), report.P50: us(l.P50), report.P99: us(l.P99), report.P999: us(l.P999),
		report.Longest: us(l.Max), report.Lost: float64(l.Sent - l.Received), report.MissedSlots: float64(l.Missed)}, nil
}

// resent counts segments, of either end, that were sent again: a reader that waits for
// one waits for a timer of 200 ms, not for the receive path.
func (e *env) resent() (uint64, error) {
	a, b, err := e.counters()
	return snmp.Sum(a.Tcp.RetransSegs, b.Tcp.RetransSegs), err
}

func (a *application) atFullSpeed(ctx context.Context, e *env, from, at traffic.Endpoint) (map[string]float64, error) {
	var rps float64
	err := e.settled(ctx, e.settle, func() (err error) {
		rps, err = a.flood(ctx, from, at, traffic.Flood{Clients: e.cfg.clients, Length: e.wholeSeconds(), Core: e.cores.Sender})
		return err
	})
	return map[string]float64{report.RPS: rps}, err
}

// wholeSeconds is the length of a measurement by programs that know no other.
func (e *env) wholeSeconds() time.Duration {
	return (e.cfg.Length + time.Second - 1).Truncate(time.Second)
}

// settled lets traffic become steady and then runs what is measured.
func (e *env) settled(ctx context.Context, settle time.Duration, f func() error) error {
	if err := e.become(ctx, settle, sleep); err != nil {
		return err
	}
	return e.window(ctx, f)
}
