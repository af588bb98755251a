// SPDX-License-Identifier: Apache-2.0

// Package measure shows what the daemon knows to Prometheus. It reads at scrape
// time only, from the same status that people see.
package measure

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlane/overlane/internal/control"
)

// metric is one row of the table of what is exported.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(kind prometheus.ValueType, name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("overlane_"+name, help, labels, nil), kind}
}

// What is exported. No label grows with flows or pods.
var (
	buildInfo    = newMetric(prometheus.GaugeValue, "build_info", "1, with the version", "version")
	overlay      = newMetric(prometheus.CounterValue, "observed_overlay_packets_total", "overlay packets that were counted; while the node is quiet, or has nothing to do for long, they are not")
	steered      = newMetric(prometheus.CounterValue, "steered_packets_total", "overlay packets that were sent to a lane")
	split        = newMetric(prometheus.CounterValue, "split_packets_total", "packets of flows that were split into micro-flows when they came")
	microflows   = newMetric(prometheus.CounterValue, "microflows_total", "micro-flows that these were cut into")
	merge        = newMetric(prometheus.CounterValue, "merge_packets_total", "packets of split flows at the merge points, by what became of them", "outcome")
	mergeWaiting = newMetric(prometheus.GaugeValue, "merge_waiting_packets", "packets of split flows that wait at merge points")
	mergeWaits   = newMetric(prometheus.CounterValue, "merge_waits_ended_total", "times that packets did not get what they waited for", "reason")
	express      = newMetric(prometheus.CounterValue, "express_packets_total", "frames that went from a NIC straight to a pod")
	expressLeft  = newMetric(prometheus.CounterValue, "express_left_total", "times that a flow left that way before it was seen to be empty")
	expressDrops = newMetric(prometheus.CounterValue, "express_drops_total", "frames that found no room at the pod")
	aggregated   = newMetric(prometheus.CounterValue, "aggregated_packets_total", "datagrams that crossed the overlay in super-packets")
	supers       = newMetric(prometheus.CounterValue, "super_packets_total", "super-packets that these were joined to")
	lanePackets  = newMetric(prometheus.CounterValue, "lane_packets_total", "packets sent to a lane", "stage", "core")
	laneChanges  = newMetric(prometheus.CounterValue, "lane_changes_total", "changes of lane that the order guard let pass")
	laneHeld     = newMetric(prometheus.CounterValue, "lane_changes_held_total", "polls in which a change of lane had to wait for the old lane to drain")
	laneRefused  = newMetric(prometheus.CounterValue, "lane_refused_packets_total", "packets dropped for their flow to leave a full lane")
	stock        = newMetric(prometheus.CounterValue, "stock_path_packets_total", "packets that took the stock path because they were not understood", "reason")
	mechanism    = newMetric(prometheus.GaugeValue, "mechanism_active", "1 while the mechanism acts, else 0; overlane status says why", "mechanism")
	stageCost    = newMetric(prometheus.GaugeValue, "stage_cost_seconds", "measured time of one packet in a stage, once it was measured", "stage")
	scans        = newMetric(prometheus.CounterValue, "scans_total", "looks at the node after something on it had changed, or might have")
)

var all = []metric{buildInfo, overlay, steered, split, microflows, merge, mergeWaiting, mergeWaits, express, expressLeft, expressDrops, aggregated, supers, lanePackets, laneChanges, laneHeld, laneRefused, stock, mechanism, stageCost, scans}

// Collector exports a status.
type Collector struct{ status Status }

// NewCollector returns a collector that asks status each time.
func NewCollector(status Status) *Collector { return &Collector{status} }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	st, err := c.status(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(buildInfo.desc, err)
		return
	}
	put := func(m metric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
	}
	put(buildInfo, 1, st.Version)
	put(overlay, float64(st.Counters.OverlayPackets))
	put(steered, float64(st.Counters.SteeredPackets))
	n := st.Counters
	put(split, float64(n.SplitPackets))
	put(microflows, float64(n.Microflows))
	put(merge, float64(n.MergePassed), "passed")
	put(merge, float64(n.MergeHeld), "held")
	put(merge, float64(n.MergeUnwatched), "unwatched")
	put(merge, float64(n.MergeRefused), "refused")
	put(merge, float64(n.MergeNoRoom), "no_room")
	put(merge, float64(n.MergeDropped), "dropped")
	put(mergeWaiting, float64(n.MergeWaiting))
	put(mergeWaits, float64(n.MergeGaps), "lost")
	put(mergeWaits, float64(n.MergeExpired), "limit")
	put(aggregated, float64(n.AggregatedPackets))
	put(express, float64(n.ExpressPackets))
	put(expressLeft, float64(n.ExpressLeft))
	put(expressDrops, float64(n.ExpressDrops))
	put(supers, float64(n.SuperPackets))
	put(laneChanges, float64(st.Counters.LaneChanges))
	put(laneHeld, float64(st.Counters.LaneChangesHeld))
	put(laneRefused, float64(st.Counters.LaneRefused))
	put(scans, float64(n.Scans))
	for _, l := range st.Lanes {
		put(lanePackets, float64(l.Packets), l.Stage, strconv.Itoa(l.Core))
	}
	for reason, n := range st.Counters.Unparsed {
		put(stock, float64(n), reason)
	}
	for _, m := range st.Mechanisms {
		active := 0.0
		if m.State == control.Active {
			active = 1
		}
		put(mechanism, active, m.Name)
	}
	for _, s := range st.StageCosts {
		if s.NsPerPacket != nil {
			put(stageCost, *s.NsPerPacket/1e9, s.Stage)
		}
	}
}
