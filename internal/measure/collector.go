// SPDX-License-Identifier: Apache-2.0

// Package measure shows what the daemon knows to Prometheus. It reads at scrape
// time only, from the same status that people see.
package measure

import (
	"context"
	"reflect"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/overlane/overlane/internal/control"
)

// metric is what is exported under one name. No label grows with flows or pods.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(name, help string, labels ...string) metric {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	return metric{prometheus.NewDesc("overlane_"+name, help, labels, nil), kind}
}

// What a status has beside its counters.
var (
	buildInfo   = newMetric("build_info", "1, with the version", "version")
	lanePackets = newMetric("lane_packets_total", "packets sent to a lane", "stage", "core")
	laneDrops   = newMetric("lane_core_drops_total", "packets that a lane's core dropped before it handled them; tunnel and pod lanes are its backlog, which they share with each other and with other traffic", "stage", "core")
	mechanism   = newMetric("mechanism_active", "1 while the mechanism acts, else 0; overlane status says why", "mechanism")
	stageCost   = newMetric("stage_cost_seconds", "measured time of one packet in a stage, once it was measured", "stage")
)

// counter is a field of control.Counters, and what exports it.
type counter struct {
	metric
	field  int
	values []string // of its labels; none where they are a map's keys
}

var counters = countersOf(reflect.TypeFor[control.Counters]())

// countersOf reads the tags of the table: a metric's name, and its labels as NAME=VALUE; a map's label has
// no value.
func countersOf(table reflect.Type) (all []counter) {
	known := map[string]metric{}
	for i := range table.NumField() {
		tag := table.Field(i).Tag
		name, labels, _ := strings.Cut(tag.Get("metric"), ",")
		c := counter{field: i}
		var names []string
		for label := range strings.SplitSeq(labels, ",") {
			name, value, fixed := strings.Cut(label, "=")
			if name != "" {
				names = append(names, name)
			}
			if fixed {
				c.values = append(c.values, value)
			}
		}
		if _, ok := known[name]; !ok {
			known[name] = newMetric(name, tag.Get("help"), names...)
		}
		c.metric = known[name]
		all = append(all, c)
	}
	return all
}

// Collector exports the status that it asks for each time.
type Collector struct{ status Status }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range []metric{buildInfo, lanePackets, laneDrops, mechanism, stageCost} {
		ch <- m.desc
	}
	for _, n := range counters {
		ch <- n.desc
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
	values := reflect.ValueOf(st.Counters)
	for _, n := range counters {
		switch v := values.Field(n.field).Interface().(type) {
		case uint64:
			put(n.metric, float64(v), n.values...)
		case map[string]uint64:
			for key, v := range v {
				put(n.metric, float64(v), key)
			}
		}
	}
	for _, l := range st.Lanes {
		core := strconv.Itoa(l.Core)
		put(lanePackets, float64(l.Packets), l.Stage, core)
		put(laneDrops, float64(l.Drops), l.Stage, core)
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
