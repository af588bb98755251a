// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strconv"
	"strings"
)

// Names of the metrics that the report treats in a special way. Every other
// name is recorded, compared and plotted by its suffix alone.
const (
	KPPS          = "kpps"           // thousand packets per second at the container's socket layer
	Gbps          = "gbps"           // 10^9 bits of payload per second
	RPS           = "rps"            // requests per second
	Min           = "min_us"         // microseconds
	Mean          = "mean_us"        // microseconds
	P50           = "p50_us"         // microseconds
	P99           = "p99_us"         // microseconds
	P999          = "p999_us"        // microseconds
	Longest       = "longest_us"     // microseconds, the longest stall
	Avg           = "avg_us"         // microseconds, mean over requests to a server
	RRP50         = "rr_p50_us"      // microseconds, there and back
	RRP99         = "rr_p99_us"      // microseconds, there and back
	RRP999        = "rr_p999_us"     // microseconds, there and back
	LossFreeKPPS  = "loss_free_kpps" // highest rate at which nothing is lost
	BulkKPPS      = "bulk_kpps"      // background traffic delivered beside a latency flow
	BulkGbps      = "bulk_gbps"      // the same of TCP
	CPUPerMpkt    = "cpu_s_per_mpkt" // CPU seconds per million packets delivered
	CPUPerGB      = "cpu_s_per_gb"   // CPU seconds per 10^9 bytes delivered
	CoreSpread    = "core_spread"    // standard deviation of the cores' loads, of which 1 is all of a core
	Reordered     = "reordered"      // packets later than a successor of their flow
	Duplicated    = "duplicated"     // packets seen more than once
	Dropped       = "dropped"        // packets offered and not delivered
	Lost          = "lost"           // probes that did not arrive, requests without an answer
	MissedSlots   = "missed_slots"   // requests that could not be sent before the next was due
	Retransmits   = "retransmits"    // TCP segments sent again
	OFO           = "ofo"            // TCP segments that entered the out-of-order queue
	SACKReorder   = "sack_reorder"   // times that a TCP sender was told of segments out of order
	Waited        = "waited"         // packets of split flows that came early where they are put in order
	Acted         = "acted"          // share 0..1 of packets that the mechanism touched
	LaneChanges   = "lane_changes"   // completed changes of a flow's lane
	Unread        = "unread"         // datagrams that the program's socket had no room for
	Settled       = "settled_s"      // seconds until the daemon's status was steady
	Placed        = "placed_s"       // seconds until the daemon's status was as it then stayed
	Unsteady      = "unsteady"       // 1: it was not by the time that it was waited for
	GeneratorIdle = "generator_idle" // share 0..1 of the generator's core left idle
)

// Limits below which a row is marked.
const (
	MinActed         = 0.5
	MinGeneratorIdle = 0.05
)

// loadOf begins the metrics of single cores.
const loadOf = "load_core_"

// LoadOf is the metric of the share 0..1 of its time that a core receives.
func LoadOf(core int) string { return loadOf + strconv.Itoa(core) }

// Direction says which way a metric improves.
type Direction int

const (
	Neutral Direction = iota // describes the run; neither way is better
	Higher
	Lower
)

// DirectionOf returns the direction of a metric by its name.
func DirectionOf(metric string) Direction {
	switch {
	case strings.HasPrefix(metric, "offered"), strings.HasPrefix(metric, loadOf):
		return Neutral
	case isCount(metric) && metric != LaneChanges && metric != Waited:
		return Lower
	case hasUnit(metric, "us", "ns", "ms"), strings.HasPrefix(metric, "cpu_"):
		return Lower
	case hasUnit(metric, "kpps", "mpps", "gbps", "mbps", "rps"):
		return Higher
	}
	return Neutral
}

func hasUnit(metric string, units ...string) bool {
	i := strings.LastIndexByte(metric, '_')
	return slices.Contains(units, metric[i+1:])
}

// isCount tells metrics that are counted events: summed, never averaged, and
// never the subject of a ratio, since the healthy value of most is zero.
func isCount(metric string) bool {
	return slices.Contains([]string{Reordered, Duplicated, Dropped, Unread, Retransmits, OFO, SACKReorder, Waited, LaneChanges, Lost, MissedSlots}, metric)
}

func hasRatio(metric string) bool { return DirectionOf(metric) != Neutral && !isCount(metric) }

// mainMetrics are those of scenarios by how their names begin; the first that fits counts.
var mainMetrics = []struct {
	begins  string
	metrics []string
}{
	{"udp-large", []string{KPPS, Gbps}},
	{"udp", []string{KPPS}},
	{"stages", []string{KPPS}},
	{"tcp", []string{Gbps}},
	{"latency-sweep", []string{Min, Mean, P99, BulkKPPS}},
	{"latency-busy", []string{P50, P99, P999, Longest, BulkKPPS}},
	{"latency-rr", []string{RRP50, RRP99, RRP999, BulkKPPS}},
	{"latency", []string{P50, P99, BulkKPPS}},
	{"streamline", []string{P50, P99, KPPS, LossFreeKPPS}},
	{"memcached", []string{RPS, Avg, P50, P99, P999, BulkKPPS}},
	{"web", []string{RPS, Avg, P50, P99, P999, BulkGbps}},
	{"", []string{RPS, KPPS, Gbps, P50, P99, BulkKPPS}},
}

// MainMetrics lists the metrics that a scenario is about, most important
// first. It names what a table can show; a series need not have them all.
func MainMetrics(scenario string) []string {
	for _, m := range mainMetrics {
		if strings.HasPrefix(scenario, m.begins) {
			return slices.Clone(m.metrics)
		}
	}
	return nil
}

// labels are the names that do not follow from a metric's.
var labels = map[string]string{
	Gbps: "Gb/s", RPS: "req/s", CPUPerMpkt: "CPU s/Mpkt", CPUPerGB: "CPU s/GB", OFO: "out of order", SACKReorder: "SACK reordering",
}

// label is a metric's name as people write it, with its unit.
func label(metric string) string {
	if l, ok := labels[metric]; ok {
		return l
	}
	if name, ok := strings.CutSuffix(metric, "_us"); ok {
		metric = name + " µs"
	} else if name, ok := strings.CutSuffix(metric, "_gbps"); ok {
		metric = name + " Gb/s"
	}
	return strings.ReplaceAll(metric, "_", " ")
}
