// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"

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
	before    []int
	mechanism string // the one that the variant is about; "": any
	// base is what it said when the stretch that is measured began, and last at the end of the last one;
	// sum is by how much its counts have grown in all of these.
	base, last control.Status
	sum        control.Counters
	joined     float64 // shares of packets in super-packets, a sum
	stretches  int
	active     int // of those, in which its mechanism was active
}

// starter changes the bed from the plain overlay to a variant.
type starter func(context.Context, *env, scenario) (session, error)

// with returns a variant's start: the daemon with settings for a mechanism. acted says what that did.
func with(mechanism, settings string, acted func(*daemon) map[string]float64) starter {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		d, err := e.startDaemon(ctx, settings)
		if err != nil {
			return session{}, err
		}
		return d.session(mechanism, acted), nil
	}
}

// session has the daemon watched while traffic is measured.
func (d *daemon) session(mechanism string, acted func(*daemon) map[string]float64) session {
	d.mechanism = mechanism
	d.env.threads, d.env.watch, d.env.look = d.lanes, d.watch, d.condition
	return session{acted: func() map[string]float64 { return acted(d) }, reason: d.reason, end: d.end}
}

// pipeline has a mode and a tier.
func pipeline(mode, tier string) starter {
	return with("pipeline", fmt.Sprintf("pipeline: %s\ntier: %s\n", mode, tier), (*daemon).acted)
}

// microflows splits flows. UDP may come in any order where the kernel cannot restore it: it would stay whole.
func microflows(mode, tier string) starter {
	return func(ctx context.Context, e *env, s scenario) (session, error) {
		order := config.OrderNone
		if probe.New().Feature(probe.BPFQdisc).State == probe.Supported {
			order = config.OrderExact
		}
		batch := ""
		if e.cfg.Batch != 0 {
			batch = fmt.Sprintf(", batch: %d", e.cfg.Batch)
		}
		settings := fmt.Sprintf("tier: %s\npipeline: off\nmicroflows: {mode: %s, udp-order: %s%s}\n", tier, mode, order, batch)
		return with("microflows", settings, (*daemon).cut)(ctx, e, s)
	}
}

// aggregate joins datagrams.
func aggregate(mode string) starter {
	return with("aggregate", fmt.Sprintf("pipeline: off\nmicroflows: {mode: off}\naggregate: %s\n", mode), (*daemon).aggregated)
}

// express hands frames straight to pods, and joins datagrams and spreads stages in modes.
func express(aggregate, pipeline string) starter {
	settings := fmt.Sprintf("pipeline: %s\nmicroflows: {mode: off}\nexpress: forced\naggregate: %s\n", pipeline, aggregate)
	return with("express", settings, (*daemon).expressed)
}

// skipping has bridges leave out unused hooks.
func skipping() starter {
	return with("bridge-netfilter", "pipeline: off\nmicroflows: {mode: off}\nbridge-netfilter: skip-unused\n",
		func(d *daemon) map[string]float64 {
			return map[string]float64{report.Acted: float64(d.active) / float64(max(d.stretches, 1))}
		})
}

// priority has the scenario's latency traffic as such, in a mode, the pipeline in one, and what more is to
// act. What it answers goes the other way, and is received by a host without a daemon.
func priority(mode, pipeline string, more ...string) starter {
	return func(ctx context.Context, e *env, s scenario) (session, error) {
		if err := e.bed.ReleaseNAPI(); err != nil {
			return session{}, err
		}
		acted := (*daemon).madeWay
		if s.alone {
			acted = func(d *daemon) map[string]float64 { return d.overtook(mode) }
		}
		settings := priorityConfig(mode, pipeline, s, e.overlay) + strings.Join(append(more, ""), "\n")
		return with("priority", settings, acted)(ctx, e, s)
	}
}

// auto is the daemon as a user would start it, without a configuration file where that says nothing.
// Which of its mechanisms act is its own affair.
func auto(config string) starter {
	return func(ctx context.Context, e *env, _ scenario) (session, error) {
		if err := e.bed.ReleaseNAPI(); err != nil {
			return session{}, err
		}
		d, err := e.runDaemon(ctx, config)
		if err != nil {
			return session{}, err
		}
		return d.session("", (*daemon).anything), nil
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
	for {
		st, err := d.status(ctx)
		if err == nil && st.State == control.Running {
			return nil
		}
		select {
		case <-d.proc.Done():
			_, err := d.proc.Wait(ctx)
			return fmt.Errorf("the daemon ended at its start: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not run: %w (%v)", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
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
	st, err := d.status(ctx)
	if err != nil || begins {
		d.base = st
		return err
	}
	was, is := d.base.Counters, st.Counters
	sum, from, to := reflect.ValueOf(&d.sum).Elem(), reflect.ValueOf(was), reflect.ValueOf(is)
	for i := range sum.NumField() {
		if n := sum.Field(i); n.CanUint() {
			n.SetUint(n.Uint() + to.Field(i).Uint() - from.Field(i).Uint())
		}
	}
	acts := func(mechanism string) bool {
		return d.base.Mechanism(mechanism).State == control.Active && st.Mechanism(mechanism).State == control.Active
	}
	d.stretches++
	if acts(d.mechanism) {
		d.active++
	}
	if acts("aggregate") {
		d.joined += share(is.AggregatedPackets-was.AggregatedPackets, is.CountedPackets-was.CountedPackets)
	}
	d.last = st
	return nil
}

// reason is why the daemon did what it did, in its own words.
func (d *daemon) reason() string {
	if d.mechanism == "" {
		return reasons(d.last)
	}
	m := d.last.Mechanism(d.mechanism)
	if m.Name == "" {
		return ""
	}
	return string(m.State) + ", " + m.Reason
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

// share is a part of a whole, of which there may be none.
func share(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return min(float64(part)/float64(whole), 1)
}

// aggregated says which share of the packets crossed the overlay in super-packets while it was
// measured: none where it was not switched on from begin to end.
func (d *daemon) aggregated() map[string]float64 {
	return map[string]float64{report.Acted: d.joined / float64(max(d.stretches, 1))}
}

// expressed says which share of the packets went straight to the pods.
func (d *daemon) expressed() map[string]float64 {
	return map[string]float64{report.Acted: share(d.sum.ExpressPackets, max(d.sum.OverlayPackets, d.sum.ExpressPackets))}
}

// acted says which share of the packets was steered while it was measured.
func (d *daemon) acted() map[string]float64 {
	return map[string]float64{report.LaneChanges: float64(d.sum.LaneChanges), predicted: d.last.Mechanism(d.mechanism).Gain,
		report.Acted: share(d.sum.SteeredPackets, d.sum.OverlayPackets)}
}

// anything says on which share of the packets the mechanism acted that acted on most of them.
func (d *daemon) anything() map[string]float64 {
	v := d.acted()
	for _, one := range []map[string]float64{d.aggregated(), d.expressed(), d.cut(), d.madeWay()} {
		v[report.Acted] = max(v[report.Acted], one[report.Acted])
	}
	delete(v, predicted)
	return v
}

// cut says which share of the packets was of flows that were split while it was measured.
func (d *daemon) cut() map[string]float64 {
	return map[string]float64{report.Waited: float64(d.sum.MergeHeld), predicted: d.last.Mechanism(d.mechanism).Gain,
		report.Acted: share(d.sum.SplitPackets, d.sum.OverlayPackets)}
}

// madeWay says which share of bulk made way, to the lane or for good, while it was measured.
// What the lane had no room for has made way as well.
func (d *daemon) madeWay() map[string]float64 {
	return map[string]float64{report.Acted: share(d.sum.BulkLane+d.sum.Refused, d.sum.BulkPackets)}
}

// overtook says which share of the frames was treated as latency, where there was no
// bulk to make way: not sent to its lane, and in mode sync straight to the pod.
func (d *daemon) overtook(mode string) map[string]float64 {
	n := d.sum
	acted := share(n.LatencyPackets-min(n.LatencyHeld+n.LatencyExcess, n.LatencyPackets), n.LatencyPackets+n.BulkPackets)
	if mode == "sync" {
		acted *= share(n.ShortCut, n.ShortCut+n.Bridged)
	}
	return map[string]float64{report.Acted: acted}
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
	return processes(func(p procfs.Proc) bool {
		comm, err := p.Comm()
		return err == nil && strings.HasPrefix(comm, "cpumap/")
	})
}

// processes lists those of the machine that are wanted.
func processes(wanted func(procfs.Proc) bool) (pids []int, err error) {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for _, p := range procs {
		if wanted(p) {
			pids = append(pids, p.PID)
		}
	}
	return pids, nil
}
