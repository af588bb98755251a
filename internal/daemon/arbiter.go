// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/aggregate"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// arbiter is the node as mechanisms borrow it (their Host), and what they ask of each other: which of two that
// exclude each other has the NICs, the lanes or the flows.
type arbiter struct {
	*host.Host
	d *Daemon
}

// Awake is mechanism.Host's.
func (a arbiter) Awake(now time.Time) (bool, error) { return a.d.isAwake(now) }

// Places are those for XDP programs.
func (a arbiter) Places() *xdp.Places { return a.d.places }

// Trials run one at a time.
func (a arbiter) Trials() *trial.Trials { return a.d.trials }

// Cookie is that of the NICs' namespace.
func (a arbiter) Cookie() uint64 { return a.d.cookie }

// Cores are those that flows may be steered to, sorted.
func (a arbiter) Cores() []int { return a.d.cores }

// BacklogDrops are what the backlogs have dropped since the daemon started.
func (a arbiter) BacklogDrops() (map[int]uint64, error) { return a.d.backlogs.Drops() }

// Window is how long a window is.
func (a arbiter) Window() time.Duration { return a.d.sampling.window() }

// Offline tells cores that poll no more.
func (a arbiter) Offline(core int) bool { return a.d.isOffline(core) }

// Meanwhile is to be called while it is waited for the kernel.
func (a arbiter) Meanwhile() { a.d.meanwhile() }

// graceTimeout bounds the wait for packets that were on their way before something changed.
const graceTimeout = 500 * time.Millisecond

// Passed waits until every core has handled what was in its hands when it was called. datapath.ErrFlowsOut: some have
// not in half a second.
func (a arbiter) Passed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, graceTimeout)
	defer cancel()
	return a.d.dp.Passed(ctx, a.d.isOffline, a.d.meanwhile)
}

// RulesChanged has the log tell of a mechanism's rules.
func (a arbiter) RulesChanged(by plan.Owner, was, now []rules.Rule) { a.Changes.Rules(by, was, now) }

// Rate is how many packets a second come out of tunnels.
func (a arbiter) Rate(now time.Time) (float64, error) {
	rate, _, err := a.d.overlay(now)
	return rate, err
}

// Traces tells whether polls are traced.
func (a arbiter) Traces() bool { return a.d.sampling != asleep }

// Busiest are the tunnels that have received most lately.
func (a arbiter) Busiest(most int, stays func(node.DevKey) bool) []node.Tunnel {
	return a.d.tunnels.Busiest(a.Snapshot().Tunnels, most, stays)
}

// BeginCensus counts what flows bring out of the tunnels that may be steered, for a while.
func (a arbiter) BeginCensus() (datapath.FlowCounts, error) {
	none := func(node.DevKey) bool { return false }
	return a.Host.BeginCensus(a.Busiest(datapath.MaxTunnels, none))
}

// Relearn has what stages cost learned anew. Behind lanes it cannot be.
func (a arbiter) Relearn() {
	if !a.PipelineArmed() {
		a.d.sensor.Relearn()
	}
}

// LoadAggregation loads the program that counts what comes out of tunnels.
func (a arbiter) LoadAggregation() (aggregate.Program, error) { return a.d.dp.LoadAggregation() }

// LoadClock starts what tells what receiving costs.
func (a arbiter) LoadClock() (aggregate.Clock, error) { return a.d.dp.LoadClock() }

// SetApart gives packets in priority's lanes numbers.
func (a arbiter) SetApart(on bool) (fresh bool, err error) { return a.d.dp.SetApart(on) }

// SkipsTunnels tells whether frames go straight to pods, which no tunnel sees.
func (a arbiter) SkipsTunnels() bool { return a.d.mechs.express.HasPaths() }

// Express tells of a pod that its packets come straight from the NIC.
func (a arbiter) Express(p node.Pod) bool { return a.d.mechs.express.Claims(p) }

// StopExpress has frames take no path that priority's program knows.
func (a arbiter) StopExpress(ctx context.Context) error {
	_, err := a.d.mechs.express.Stop(ctx)
	return err
}

// HasLanes tells whether priority's lanes may hold packets.
func (a arbiter) HasLanes() bool { return a.d.mechs.priority.InPlace() }

// PriorityOnNIC tells whether priority's program is on an underlay.
func (a arbiter) PriorityOnNIC() bool { return a.d.mechs.priority.OnNIC() }

// PriorityCores are those on which latency traffic may be.
func (a arbiter) PriorityCores() []int { return a.d.mechs.priority.Pollers() }

// PriorityCounters count since the daemon started.
func (a arbiter) PriorityCounters() (datapath.PriorityCounters, error) {
	return a.d.mechs.priority.Counters()
}

// PipelineArmed tells whether the pipeline is in place, Split whether it cuts flows into micro-flows.
func (a arbiter) PipelineArmed() bool { return a.d.mechs.pipeline.Armed() }

// Split is true while flows are cut into micro-flows.
func (a arbiter) Split() bool { return a.d.mechs.pipeline.Split() }

// Aggregation is what was decided of it last.
func (a arbiter) Aggregation() governor.State { return a.d.mechs.aggregate.State() }

// AggregationMode is what the operator asks of it.
func (a arbiter) AggregationMode() governor.Mode { return a.d.opts.Aggregate }

// Joined is how many datagrams a second aggregation joins.
func (a arbiter) Joined() float64 { return a.d.mechs.aggregate.Joined() }

// ClearNICs has the other mechanisms leave the NICs' places for XDP programs, and the lanes, for priority. Where
// priority's program is on a NIC micro-flows do not come back.
func (a arbiter) ClearNICs(ctx context.Context) error {
	if err := a.d.mechs.pipeline.Recall(ctx, mechanism.DrainFor); err != nil {
		return fmt.Errorf("take the pipeline off, which comes back once it is known where latency traffic is: %w", err)
	}
	if err := a.StopExpress(ctx); err != nil {
		return err
	}
	return a.d.places.ReleaseAll(xdp.Pipeline, xdp.Microflows, xdp.Express)
}
