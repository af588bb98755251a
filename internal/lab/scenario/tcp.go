// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"maps"
	"math"

	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/snmp"
)

// endpoints of traffic that programs send: the first pod of each host, or the
// hosts themselves.
func (e *env) endpoints(n int) (from, to traffic.Endpoint) {
	tx, rx := e.bed.Sender(), e.bed.Receiver()
	if !e.overlay {
		return traffic.Endpoint{NS: tx.NS, Addr: tx.IP}, traffic.Endpoint{NS: rx.NS, Addr: rx.IP}
	}
	n %= e.bed.Pods
	from = traffic.Endpoint{NS: tx.Pods[n].NS, Addr: tx.Pods[n].IP4}
	to = traffic.Endpoint{NS: rx.Pods[n].NS, Addr: rx.Pods[n].IP4}
	if e.bed.IPv6 {
		from.Addr, to.Addr = tx.Pods[n].IP6, rx.Pods[n].IP6
	}
	return from, to
}

// counters are those of both ends of traffic that programs send.
func (e *env) counters() (a, b snmp.Counters, err error) {
	from, to := e.endpoints(0)
	if a, err = snmp.Read(from.NS); err == nil {
		b, err = snmp.Read(to.NS)
	}
	return a, b, err
}

// tcpCounters are what both ends say about TCP so far, by metric.
func (e *env) tcpCounters() (map[string]uint64, error) {
	a, b, err := e.counters()
	return map[string]uint64{
		report.Retransmits: snmp.Sum(a.Tcp.RetransSegs), report.OFO: snmp.Sum(b.TcpExt.TCPOFOQueue), report.SACKReorder: snmp.Sum(a.TcpExt.TCPSACKReorder),
	}, err
}

func measureTCP(ctx context.Context, e *env) (map[string]float64, error) {
	cfg := e.tcpConfig(0)
	cfg.Write = e.cfg.Size
	res, loads, values, err := e.tcp(ctx, cfg)
	if err != nil {
		return nil, err
	}
	values[report.Gbps] = res.Gbps
	values[report.CoreSpread] = deviation(loads)
	maps.Copy(values, e.coreLoads(loads))
	if res.Gbps > 0 {
		values[report.CPUPerGB] = sum(loads) / (res.Gbps / 8)
	}
	return values, nil
}

func sum(list []float64) (total float64) {
	for _, x := range list {
		total += x
	}
	return total
}

// deviation is the standard deviation.
func deviation(list []float64) float64 {
	mean, squares := sum(list)/float64(len(list)), 0.0
	for _, x := range list {
		squares += (x - mean) * (x - mean)
	}
	return math.Sqrt(squares / float64(len(list)))
}

// tcpLead has a variant act before a connection begins that is measured: what attaches a program
// to a NIC while a connection sends all it can has the receiver's buffer grow to its limit, and
// buffers do not shrink.
func (e *env) tcpLead(ctx context.Context, cfg traffic.TCPConfig) error {
	from, to := e.endpoints(0)
	cfg.Omit, cfg.Length, cfg.Tail = 0, e.settle, 0
	if e.look != nil {
		cfg.Length = max(e.settle, e.slowly(e.limit)) + e.slowly(settle)
	}
	t, err := traffic.StartTCP(ctx, from, to, cfg)
	if err != nil {
		return err
	}
	if e.look != nil {
		defer t.Stop()
		return e.lead(ctx)
	}
	_, err = t.Wait(ctx)
	return err
}

// tcp runs connections for a while. loads are CPU seconds per second of each core: softirqs
// of both hosts, since TCP's acknowledgements keep the sender's busy too. values are what both ends
// count meanwhile.
func (e *env) tcp(ctx context.Context, cfg traffic.TCPConfig) (res traffic.TCPResult, loads []float64, values map[string]float64, err error) {
	if err := e.bed.CutEarly(); err != nil {
		return res, nil, nil, err
	}
	if err := e.tcpLead(ctx, cfg); err != nil {
		return res, nil, nil, err
	}
	cfg.Omit = e.settle
	from, to := e.endpoints(0)
	t, err := traffic.StartTCP(ctx, from, to, cfg)
	if err != nil {
		return res, nil, nil, err
	}
	if loads, values, err = e.tcpWindow(ctx); err != nil {
		t.Stop()
		return res, nil, nil, err
	}
	res, err = t.Wait(ctx)
	return res, loads, values, err
}

func (e *env) tcpConfig(gbps float64) traffic.TCPConfig {
	return traffic.TCPConfig{Streams: e.cfg.Flows, Omit: e.settle, Length: e.cfg.Length, Gbps: gbps,
		SendOn: []int{e.cores.Sender}, RecvOn: []int{e.cores.Apps}}
}

// tcpWindow waits until the traffic is steady, and returns what comes after: CPU seconds per second of each
// core, and what both ends count.
func (e *env) tcpWindow(ctx context.Context) (loads []float64, values map[string]float64, err error) {
	if err := e.become(ctx, e.settle, sleep); err != nil {
		return nil, nil, err
	}
	if err := e.countThreads(); err != nil {
		return nil, nil, err
	}
	err = e.window(ctx, func() error {
		was, err := e.tcpCounters()
		if err != nil {
			return err
		}
		used, span, err := e.used(func() error {
			return e.profile(func() error { return sleep(ctx, e.cfg.Length) })
		})
		if err != nil {
			return err
		}
		loads = used.Loads(span)
		is, err := e.tcpCounters()
		values = map[string]float64{}
		for name, n := range is {
			values[name] = float64(n - was[name])
		}
		return err
	})
	return loads, values, err
}
