// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/probe"
)

const (
	// startPatience is how long a daemon may take until it runs.
	startPatience = 15 * time.Second
	stopPatience  = 10 * time.Second
	// answerPatience is how long it may take to answer.
	answerPatience = 5 * time.Second
)

// predicted is the gain that the daemon predicts of one flow that saturates a core.
const predicted = "predicted_gain"

// daemon is the product, running in the receiving host as a user would run it.
type daemon struct {
	env   *env
	proc  *traffic.Process
	state string
	// lanes that were on the machine before belong to another program.
	before []int
	// base is what it said when the stretch that is measured began; steered,
	// overlay and changes are the sums over all of these.
	base                      control.Status
	steered, overlay, changes uint64
	split, waited             uint64
	bulk, madeRoom            uint64
	latency, late             uint64
	straight, bridged         uint64
	express                   uint64
	joined                    float64 // shares of packets in super-packets, a sum
	stretches                 int
	active                    int    // of those, in which its mechanism was active
	mechanism                 string // the one that the variant is about
	reason                    string // its own, at the end of the last stretch
	predicted                 float64
}

// pipeline returns a variant's start: the daemon with a mode and a tier.
func pipeline(mode, tier string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		d, err := e.startDaemon(ctx, fmt.Sprintf("pipeline: %s\ntier: %s\n", mode, tier))
		if err != nil {
			return session{}, err
		}
		d.mechanism = "pipeline"
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		return session{acted: d.acted, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// microflows returns a variant's start: the daemon that splits flows and does nothing else.
// UDP may come in any order where the kernel cannot restore it: it would stay whole.
func microflows(mode, tier string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		order := config.OrderNone
		if probe.New().Feature(probe.BPFQdisc).State == probe.Supported {
			order = config.OrderExact
		}
		batch := ""
		if e.cfg.Batch != 0 {
			batch = fmt.Sprintf(", batch: %d", e.cfg.Batch)
		}
		d, err := e.startDaemon(ctx, fmt.Sprintf("tier: %s\npipeline: off\nmicroflows: {mode: %s, udp-order: %s%s}\n", tier, mode, order, batch))
		if err != nil {
			return session{}, err
		}
		d.mechanism = "microflows"
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		return session{acted: d.cut, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// aggregate returns a variant's start: the daemon that joins datagrams and does nothing else.
func aggregate(mode string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		d, err := e.startDaemon(ctx, fmt.Sprintf("pipeline: off\nmicroflows: {mode: off}\naggregate: %s\n", mode))
		if err != nil {
			return session{}, err
		}
		d.mechanism = "aggregate"
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		return session{acted: d.aggregated, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// express returns a variant's start: the daemon that hands frames straight to pods, and joins
// datagrams and spreads stages in modes.
func express(aggregate, pipeline string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		d, err := e.startDaemon(ctx, fmt.Sprintf("pipeline: %s\nmicroflows: {mode: off}\nexpress: forced\naggregate: %s\n", pipeline, aggregate))
		if err != nil {
			return session{}, err
		}
		d.mechanism = "express"
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		return session{acted: d.expressed, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// startSkipping has bridges leave out unused hooks.
func startSkipping(ctx context.Context, e *env, _ scenario) (session, error) {
	d, err := e.startDaemon(ctx, "pipeline: off\nmicroflows: {mode: off}\nbridge-netfilter: skip-unused\n")
	if err != nil {
		return session{}, err
	}
	d.mechanism = "bridge-netfilter"
	e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
	acted := func() map[string]float64 {
		return map[string]float64{report.Acted: float64(d.active) / float64(max(d.stretches, 1))}
	}
	return session{acted: acted, reason: func() string { return d.reason }, end: d.end}, nil
}

// priority returns a variant's start: the daemon with the scenario's latency
// traffic as such, in a mode, the pipeline in one, and what more is to act. What it answers goes the other way, and is received
// by a host without a daemon.
func priority(mode, pipeline string, more ...string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, s scenario) (session, error) {
		if err := e.bed.ReleaseNAPI(); err != nil {
			return session{}, err
		}
		d, err := e.startDaemon(ctx, priorityConfig(mode, pipeline, s, e.overlay)+strings.Join(append(more, ""), "\n"))
		if err != nil {
			return session{}, err
		}
		d.mechanism = "priority"
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		acted := d.madeWay
		if s.alone {
			acted = func() map[string]float64 { return d.overtook(mode) }
		}
		return session{acted: acted, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// auto returns a variant's start: the daemon as a user would start it, without a configuration file
// where that says nothing. Which of its mechanisms act is its own affair.
func auto(config string) func(context.Context, *env, scenario) (session, error) {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		if err := e.bed.ReleaseNAPI(); err != nil {
			return session{}, err
		}
		d, err := e.runDaemon(ctx, config)
		if err != nil {
			return session{}, err
		}
		e.threads, e.watch, e.look = d.lanes, d.watch, d.condition
		return session{acted: d.anything, reason: func() string { return d.reason }, end: d.end}, nil
	}
}

// priorityConfig names a scenario's latency traffic, in the overlay or outside; none:
// the probe's. Where there is no bulk, it leaves it the least that can be set: a flow that
// needs most of a core would else have used up its share, and be bulk.
func priorityConfig(mode, pipeline string, s scenario, overlay bool) string {
	flow, share := s.latency, ""
	if s.alone {
		share = "bulk-share: 1%, "
	}
	if flow == (service{}) {
		flow = probeService
	}
	network := "host"
	if overlay {
		network = "overlay"
	}
	return fmt.Sprintf("pipeline: %s\npriority: {mode: %s, %srules: [{name: %s, proto: %s, port: %d, network: %s}]}\n", pipeline, mode, share, flow.name, flow.proto, flow.port, network)
}

// startDaemon runs the daemon on the wire and the lab's cores, with one mechanism.
func (e *env) startDaemon(ctx context.Context, settings string) (*daemon, error) {
	if !strings.Contains(settings, "aggregate:") {
		settings += "aggregate: off\n" // one mechanism at a time
	}
	if !strings.Contains(settings, "priority:") {
		settings += "priority: {mode: off}\n"
	}
	return e.runDaemon(ctx, fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\n%s", e.bed.Receiver().Wire, config.CPUList(e.cores.Steer), settings))
}

// runDaemon runs the daemon in the receiving host; without a configuration there is no file.
func (e *env) runDaemon(ctx context.Context, settings string) (*daemon, error) {
	dir, err := os.MkdirTemp(e.bed.Dir(), "daemon")
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	d := &daemon{env: e, state: filepath.Join(dir, "state")}
	node := e.cores.Node()
	if node != nil && !strings.Contains(settings, "cores:") {
		// Left to itself it would take those of the sending host as well.
		settings = fmt.Sprintf("cores: %s\n%s", config.CPUList(e.cores.Steer), settings)
	}
	args := []string{e.cfg.Binary, "run", "--state-dir", d.state}
	if settings != "" {
		file := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
			return nil, fmt.Errorf("start daemon: %w", err)
		}
		args = append(args, "--config", file)
	}
	if d.before, err = cpumapThreads(); err != nil {
		return nil, err
	}
	d.proc, err = traffic.StartProcess(e.bed.Receiver().NS, node, args...)
	if err != nil {
		return nil, err
	}
	if err := d.running(ctx); err != nil {
		select {
		case <-d.proc.Done():
			return nil, err // which has its last words already
		default:
			return nil, errors.Join(err, d.end())
		}
	}
	return d, nil
}

// condition is what it is to stay with. One that does not answer now is not steady.
func (d *daemon) condition(ctx context.Context) (condition, error) {
	st, err := d.status(ctx)
	if err == nil {
		return conditionOf(st), nil
	}
	select {
	case <-d.proc.Done():
		return condition{}, errors.Join(errors.New("the daemon has ended"), err)
	case <-ctx.Done():
		return condition{}, ctx.Err()
	default:
		return condition{trying: "it does not answer: " + err.Error()}, nil
	}
}

// running waits until the daemon says so.
func (d *daemon) running(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.env.slowly(startPatience))
	defer cancel()
	var last error
	for {
		select {
		case <-d.proc.Done():
			_, err := d.proc.Wait(ctx)
			return fmt.Errorf("the daemon ended at its start: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not run: %w (%v)", ctx.Err(), last)
		default:
		}
		var c control.Status
		if c, last = d.status(ctx); last == nil && c.State == control.Running {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("the daemon does not run: %w (%v)", err, last)
		}
	}
}

func (d *daemon) status(ctx context.Context) (st control.Status, err error) {
	cookie, err := d.env.bed.Receiver().NS.Cookie()
	if err != nil {
		return st, err
	}
	path, err := control.SocketPath(d.state, cookie)
	if err != nil {
		return st, err
	}
	c, err := control.Dial(path)
	if err != nil {
		return st, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.env.slowly(answerPatience))
	defer cancel()
	st, err = c.Status(ctx)
	return st, errors.Join(err, c.Close())
}

// watch adds up what the daemon did in the stretches that were measured.
func (d *daemon) watch(ctx context.Context, begins bool) error {
	c, err := d.status(ctx)
	if err != nil || begins {
		d.base = c
		return err
	}
	d.steered += c.Counters.SteeredPackets - d.base.Counters.SteeredPackets
	d.split += c.Counters.SplitPackets - d.base.Counters.SplitPackets
	d.waited += c.Counters.MergeHeld - d.base.Counters.MergeHeld
	d.bulk += c.Counters.BulkPackets - d.base.Counters.BulkPackets
	// What the lane had no room for has made way as well.
	d.madeRoom += c.Counters.BulkLane + c.Counters.Refused - d.base.Counters.BulkLane - d.base.Counters.Refused
	d.latency += c.Counters.LatencyPackets - d.base.Counters.LatencyPackets
	d.late += c.Counters.LatencyHeld + c.Counters.LatencyExcess - d.base.Counters.LatencyHeld - d.base.Counters.LatencyExcess
	d.straight += c.Counters.ShortCut - d.base.Counters.ShortCut
	d.bridged += c.Counters.Bridged - d.base.Counters.Bridged
	d.overlay += c.Counters.OverlayPackets - d.base.Counters.OverlayPackets
	d.express += c.Counters.ExpressPackets - d.base.Counters.ExpressPackets
	d.changes += c.Counters.LaneChanges - d.base.Counters.LaneChanges
	d.stretches++
	if active(c, d.mechanism) && active(d.base, d.mechanism) {
		d.active++
	}
	if n := c.Counters.CountedPackets - d.base.Counters.CountedPackets; n > 0 && active(c, "aggregate") && active(d.base, "aggregate") {
		d.joined += float64(c.Counters.AggregatedPackets-d.base.Counters.AggregatedPackets) / float64(n)
	}
	if d.mechanism == "" {
		d.reason = reasons(c)
	}
	for _, m := range c.Mechanisms {
		if m.Name == d.mechanism {
			d.reason, d.predicted = string(m.State)+", "+m.Reason, m.Gain
		}
	}
	return nil
}

// reasons are those of all that acts, or else of the first that does not, and what trials showed.
func reasons(c control.Status) string {
	var list []string
	for _, m := range c.Mechanisms {
		if m.State == control.Active {
			list = append(list, m.Name+": "+m.Reason)
		}
	}
	if len(list) == 0 && len(c.Mechanisms) > 0 {
		list = append(list, "nothing acts: "+c.Mechanisms[0].Name+", "+c.Mechanisms[0].Reason)
	}
	for _, t := range c.Trials {
		said := fmt.Sprintf("trial of %s: %s", t.Mechanism, t.Verdict)
		if t.Pairs > 0 {
			said += fmt.Sprintf(", packets %.2f, wait %.2f times in %d pairs", measured(t.Packets), measured(t.Wait), t.Pairs)
		} else {
			said += ": no two windows could be compared"
		}
		list = append(list, said)
	}
	return strings.Join(list, "; ")
}

// measured is a number that the daemon has measured, or 0.
func measured(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}

// active tells whether a mechanism acts.
func active(c control.Status, name string) bool {
	for _, m := range c.Mechanisms {
		if m.Name == name {
			return m.State == control.Active
		}
	}
	return false
}

// aggregated says which share of the packets crossed the overlay in super-packets while it was
// measured: none where it was not switched on from begin to end.
func (d *daemon) aggregated() map[string]float64 {
	return map[string]float64{report.Acted: d.joined / float64(max(d.stretches, 1))}
}

// expressed says which share of the packets went straight to the pods.
func (d *daemon) expressed() map[string]float64 {
	return map[string]float64{report.Acted: float64(d.express) / float64(max(d.overlay, d.express, 1))}
}

// acted says which share of the packets was steered while it was measured.
func (d *daemon) acted() map[string]float64 {
	v := map[string]float64{report.LaneChanges: float64(d.changes), report.Acted: 0, predicted: d.predicted}
	if d.overlay > 0 {
		v[report.Acted] = min(float64(d.steered)/float64(d.overlay), 1)
	}
	return v
}

// anything says on which share of the packets the mechanism acted that acted on most of them.
func (d *daemon) anything() map[string]float64 {
	v := d.acted()
	for _, share := range []map[string]float64{d.aggregated(), d.expressed(), d.cut(), d.madeWay()} {
		v[report.Acted] = max(v[report.Acted], share[report.Acted])
	}
	delete(v, predicted)
	return v
}

// cut says which share of the packets was of flows that were split while it was measured.
func (d *daemon) cut() map[string]float64 {
	v := map[string]float64{report.Acted: 0, report.Waited: float64(d.waited), predicted: d.predicted}
	if d.overlay > 0 {
		v[report.Acted] = min(float64(d.split)/float64(d.overlay), 1)
	}
	return v
}

// madeWay says which share of bulk made way, to the lane or for good, while it was measured.
func (d *daemon) madeWay() map[string]float64 {
	v := map[string]float64{report.Acted: 0}
	if d.bulk > 0 {
		v[report.Acted] = min(float64(d.madeRoom)/float64(d.bulk), 1)
	}
	return v
}

// overtook says which share of the frames was treated as latency, where there was no
// bulk to make way: not sent to its lane, and in mode sync straight to the pod.
func (d *daemon) overtook(mode string) map[string]float64 {
	v := map[string]float64{report.Acted: 0}
	if all := d.latency + d.bulk; all > 0 {
		v[report.Acted] = float64(d.latency-min(d.late, d.latency)) / float64(all)
	}
	if all := d.straight + d.bridged; mode == "sync" && all > 0 {
		v[report.Acted] *= float64(d.straight) / float64(all)
	} else if mode == "sync" {
		v[report.Acted] = 0
	}
	return v
}

func (d *daemon) end() error {
	if d.env.cfg.DaemonLog {
		defer func() { d.env.logf("what the daemon logged:\n%s", d.proc.Logged()) }()
	}
	if err := d.proc.Stop(d.env.slowly(stopPatience)); err != nil {
		return fmt.Errorf("end the daemon: %w", err)
	}
	return os.RemoveAll(filepath.Dir(d.state))
}

// lanes are the kernel threads that the daemon brought into being.
func (d *daemon) lanes() ([]int, error) {
	now, err := cpumapThreads()
	return slices.DeleteFunc(now, func(pid int) bool { return slices.Contains(d.before, pid) }), err
}

// cpumapThreads lists the machine's cpumap lanes.
func cpumapThreads() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
		if err == nil && strings.HasPrefix(string(comm), "cpumap/") {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
