// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"errors"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
)

// Options are what the operator has asked for.
type Options struct {
	// Rules name flows; without any it is off, but for Auto and OnDemand.
	Rules []rules.Rule
	// Tier is the pipeline's: its XDP program and priority's are for the same place.
	Tier governor.Tier
	// NoGuard says why the order guard does not hold on this node, nil where it does.
	NoGuard error

	// Off: rules are kept, and do nothing.
	Off bool
	// No is why they do nothing though they are not switched off; nil: they do.
	No error
	// Sync: latency traffic goes from the tunnels straight to the pods, where it may.
	Sync bool
	// Auto: flows that no rule fits are latency as long as they are small and sparse.
	Auto bool
	// OnDemand: the same while there are no rules, where a trial shows that it pays.
	OnDemand bool
	// NoThreads: NICs are polled as before, and latency has a lane of its own.
	NoThreads bool
	// Fair: threads that poll NICs never run in real time.
	Fair bool
	// BulkShare is how much of a core's time latency leaves to bulk, from 0 to 1.
	BulkShare float64
}

// What a flow may send in a tenth of a second, at most, to be sparse by itself: what
// two thousand small requests a second come to.
const (
	sparseFrames = 200
	sparseBytes  = 64 << 10
)

// tuning is what the kernel side goes by.
func (p *Priority) tuning() datapath.PriorityTuning {
	t := bulkTuning
	t.LatencyShare = 1 - p.opts.BulkShare
	if p.opts.Auto || p.demand.on {
		t.SparseFrames, t.SparseBytes = sparseFrames, sparseBytes
	}
	if p.demand.on && !p.demand.trial.On() {
		t.Window = 0 // bulk does not make way
	}
	return t
}

// bulkTuning: latency traffic that pauses for longer than the window finds bulk on
// the stock path again. The lane's room is what a TCP window needs: with 512 frames each
// connection lost some again and again; what is in it waits some milliseconds at most.
var bulkTuning = datapath.PriorityTuning{Window: 50 * time.Millisecond, Room: 2000}

// eager is how the latency class's threads are scheduled.
var eager = datapath.LaneSched{Nice: plan.EagerNice, Slice: plan.EagerSlice}

// prioritises tells whether priority acts without a trial, with so many rules.
func (o Options) prioritises(rules int) bool {
	return !o.Off && o.No == nil && (rules > 0 || o.Auto)
}

// mayTry tells whether priority may come to a NIC for a trial: order is guarded, and its place there is free.
func (o Options) mayTry() bool { return o.NoGuard == nil && o.Tier != governor.XDP }

// ErrTierXDP says that two mechanisms want the NIC's XDP hook.
var ErrTierXDP = errors.New("priority and the pipeline's tier xdp cannot be combined: set \"tier: tc\", or \"priority: {mode: off}\"")

// Fits tells whether it can be had beside the pipeline's tier: ErrTierXDP.
func (o Options) Fits() error {
	if o.Tier == governor.XDP && o.prioritises(len(o.Rules)) {
		return ErrTierXDP
	}
	return nil
}
