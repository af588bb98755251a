// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/snmp"
)

// offer is what the live-frame generators are to send.
type offer struct {
	flows  int
	size   int
	mixed  []int // further sizes
	rates  traffic.Rates
	rate   float64 // packets per second over all; 0: as fast as it goes
	window int     // frames under way at most; 0: no limit
	batch  int
	length time.Duration
	// stamp has the time of each datagram of the first flow taken, from sending to
	// the socket layer.
	stamp bool
	// read has programs read what arrives: that is what counts as delivered.
	read bool
	// makeUp is how late frames are still sent; 0: the generator's.
	makeUp time.Duration
	// patience of the window with frames that do not arrive; 0: the generator's.
	patience time.Duration
}

// taken is what became of it.
type taken struct {
	span      time.Duration
	delivered uint64 // datagrams at the socket layer, or read by programs, in the span
	usage     traffic.Usage
	latency   traffic.Latencies // in the span, if datagrams are stamped
	idle      float64           // share of the generators' time that was not needed
	size      int
	// Over the whole run, with its beginning and end.
	total    traffic.Verdict
	read     uint64 // by programs
	accepted uint64 // datagrams that the wire took
	offered  uint64
}

func (t *taken) kpps() float64 { return float64(t.delivered) / t.span.Seconds() / 1e3 }
func (t *taken) gbps() float64 {
	return float64(t.delivered) * float64(t.size) * 8 / t.span.Seconds() / 1e9
}

var errNoneArrived = errors.New("none arrived while it was measured")

// abovePace is how much more a host network takes at a pace than from a generator without
// one, in most cases by far: what finds no place on the wire goes back to the generator's pool, by
// the lock that the receiving host needs for each frame that it frees.
const abovePace = 1.7

// A host network that takes more than a share of an offer may take more of a larger one. Steps are
// small, since of far too large an offer it takes less.
const (
	saturated  = 0.97
	offerStep  = 1.25
	mostOffers = 6
)

// findFlood looks for what even the host network cannot take, or just can, and so no variant.
// More keeps the generator's core from what else runs there.
func findFlood(ctx context.Context, e *env) error {
	e.overlay = false
	o := offer{flows: e.cfg.Flows, size: e.cfg.Size, mixed: e.mixed, rates: e.cfg.Rates, length: time.Second}
	t, err := e.live(ctx, o)
	if err != nil {
		return err
	}
	most := t.kpps()
	o.rate = abovePace * most * 1e3
	for range mostOffers {
		if t, err = e.live(ctx, o); err != nil {
			return err
		}
		most = max(most, t.kpps())
		if t.kpps()*1e3 < saturated*o.rate {
			break
		}
		o.rate *= offerStep
	}
	e.flood = e.cfg.Offer * most * 1e3
	e.logf("the host network takes %.4g kpps; offered: %.4g", most, e.flood/1e3)
	return nil
}

func measureFlood(ctx context.Context, e *env) (map[string]float64, error) {
	t, err := e.live(ctx, offer{flows: e.cfg.Flows, size: e.cfg.Size, mixed: e.mixed, rates: e.cfg.Rates, rate: e.flood, length: e.cfg.Length})
	if err != nil {
		return nil, err
	}
	return e.udpValues(t), nil
}

// measureRead counts what programs read.
func measureRead(ctx context.Context, e *env) (map[string]float64, error) {
	t, err := e.live(ctx, offer{flows: e.cfg.Flows, size: e.cfg.Size, rates: e.cfg.Rates, rate: e.flood, length: e.cfg.Length, read: true})
	if err != nil {
		return nil, err
	}
	v := e.udpValues(t)
	v[report.Unread] = float64(max(t.total.Received, t.read) - t.read)
	return v, nil
}

func (e *env) udpValues(t *taken) map[string]float64 {
	v := map[string]float64{
		report.KPPS:          t.kpps(),
		report.Reordered:     float64(t.total.Reordered),
		report.Duplicated:    float64(t.total.Duplicated),
		report.Dropped:       float64(max(t.accepted, t.total.Received) - t.total.Received),
		report.GeneratorIdle: t.idle,
	}
	maps.Copy(v, e.coreLoads(t.usage.Loads(t.span)))
	if t.delivered > 0 {
		v[report.CPUPerMpkt] = t.usage.Busy().Seconds()/float64(t.delivered)*1e6 - e.checkerNS/1e3
	}
	return v
}

// coreLoads are those of the cores that have a part in receiving, of all cores'.
func (e *env) coreLoads(all []float64) map[string]float64 {
	v := map[string]float64{}
	for _, core := range slices.Concat(e.cores.NIC, e.cores.Steer, e.cores.Servers) {
		if core < len(all) {
			v[report.LoadOf(core)] = all[core]
		}
	}
	return v
}

// goals are where flows may end.
func (e *env) goals() (list []traffic.Endpoint) {
	n := 1
	if e.overlay {
		n = e.bed.Pods
	}
	for i := range n {
		_, at := e.endpoints(i)
		list = append(list, at)
	}
	return list
}

// listen lets a checker take what arrives.
func (e *env) listen(c *traffic.Checker) error {
	var errs []error
	for _, at := range e.goals() {
		errs = append(errs, c.Listen(at.NS, netip.AddrPortFrom(at.Addr, traffic.Port)))
	}
	return errors.Join(errs...)
}

// countArrivals lets generators with a window see what reached its goal.
func (e *env) countArrivals(c *traffic.Checker) error {
	dev := e.bed.Receiver().Wire
	if e.overlay {
		dev = bed.PodDev
	}
	for _, at := range e.goals() {
		ifindex, err := bed.Ifindex(at.NS, dev)
		if err != nil {
			return fmt.Errorf("count arrivals: %w", err)
		}
		if err := c.CountArrivals(at.NS, ifindex); err != nil {
			return err
		}
	}
	return nil
}

// readers are programs, one for each place where flows end.
type readers []*traffic.Reader

// read lets programs take what arrives, on the applications' cores.
func (e *env) read(c *traffic.Checker) (rs readers, err error) {
	for i, at := range e.goals() {
		r, err := c.Read(at.NS, netip.AddrPortFrom(at.Addr, traffic.Port), e.cores.Servers[i%len(e.cores.Servers)])
		if err != nil {
			return nil, errors.Join(err, rs.stop())
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func (rs readers) taken() (sum uint64) {
	for _, r := range rs {
		sum += r.Taken()
	}
	return sum
}

func (rs readers) stop() error {
	var errs []error
	for _, r := range rs {
		errs = append(errs, r.Stop())
	}
	return errors.Join(errs...)
}

// udpTaken reads the kernel's own count at the receiving socket layers.
func (e *env) udpTaken() (sum uint64, err error) {
	for _, at := range e.goals() {
		c, err := snmp.Read(at.NS)
		if err != nil {
			return 0, err
		}
		sum += c.UDPTaken()
	}
	return sum, nil
}

func (e *env) flow(id int) traffic.Flow {
	return traffic.NewFlow(e.bed, id, id%e.bed.Pods, e.overlay, e.bed.IPv6 && e.overlay, e.round)
}

// live sends for a while and measures the middle of it.
func (e *env) live(ctx context.Context, o offer) (_ *taken, err error) {
	timed := -1
	if o.stamp {
		timed = 0
	}
	check, err := traffic.NewChecker(timed)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, check.Close()) }()
	var programs readers
	if o.read {
		if programs, err = e.read(check); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, programs.stop()) }()
	} else if err := e.listen(check); err != nil {
		return nil, err
	}
	if o.window > 0 {
		if err := e.countArrivals(check); err != nil {
			return nil, err
		}
	}
	wire0, err := e.bed.WireStats()
	if err != nil {
		return nil, err
	}
	gens, err := e.startLive(o, check)
	if err != nil {
		return nil, err
	}
	running := gens
	defer func() {
		_, serr := running.stop()
		err = errors.Join(err, serr)
	}()

	if err := e.become(ctx, e.settle, gens.wait); err != nil {
		return nil, err
	}
	// Lanes of the nic stage are threads that the daemon makes once there is traffic.
	if err := e.countThreads(); err != nil {
		return nil, err
	}
	var a, z sample
	var early, late traffic.Histogram
	err = e.window(ctx, func() (err error) {
		if o.stamp {
			if early, err = check.Times(); err != nil {
				return err
			}
		}
		if a, err = e.sample(gens, programs); err != nil {
			return err
		}
		if err = e.profile(func() error { return gens.wait(ctx, o.length) }); err != nil {
			return err
		}
		if z, err = e.sample(gens, programs); err == nil && o.stamp {
			late, err = check.Times()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	running = nil
	sent, err := gens.stop()
	if err != nil {
		return nil, err
	}
	var total traffic.Verdict
	err = drained(ctx, sent.Datagrams, func() (uint64, error) {
		total, err = check.Total(o.flows)
		if o.read {
			return programs.taken(), err
		}
		return total.Received, err
	})
	if err != nil {
		return nil, err
	}
	wire1, err := e.bed.WireStats()
	if err != nil {
		return nil, err
	}
	frags := uint64(gens[0].Frags())
	t := &taken{span: z.at.Sub(a.at), delivered: z.taken - a.taken, usage: z.usage.Since(a.usage), size: gens[0].Size(),
		total: total, read: programs.taken(), accepted: (wire1.RxPackets - wire0.RxPackets) / frags, offered: sent.Datagrams}
	t.idle = e.idle(&a, &z, t.span, len(gens))
	if t.delivered == 0 {
		return nil, fmt.Errorf("of %d datagrams sent, %d were taken by the wire and %w", t.offered, t.accepted, errNoneArrived)
	}
	if o.stamp {
		if t.latency, err = late.Since(early).Latencies(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// drained waits until as many have arrived as were sent, or nothing more arrives.
func drained(ctx context.Context, sent uint64, arrived func() (uint64, error)) error {
	const looks = 20 // as long as a busy machine may keep a core from its work
	last := uint64(0)
	for quiet := 0; quiet < looks; {
		n, err := arrived()
		if err != nil || n >= sent {
			return err
		}
		if quiet++; n != last {
			last, quiet = n, 0
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
