// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Meta describes a series before its first round.
type Meta struct {
	Scenario   string
	NIC        string // thread or softirq
	NAPI       string // how the NIC's threads are scheduled; none: not said
	Awake      bool   // cores did not halt
	NoRealTime bool   // the kernel let no probe be real-time: each may wait for its core
	Kernel     string // release, as uname -r prints it
	Cores      int
	Roles      string  // which of them does what; none: not said
	Rounds     int     // as announced; a round that never comes is missing
	Seconds    float64 // per round and variant
	Command    string  // what to type to get this series again
	Baseline   string  // default Overlay
}

// Recorder collects a series. It is not safe for concurrent use.
type Recorder struct {
	meta   Meta
	order  []string
	rows   map[string]map[int]map[string]float64
	notes  map[string][]string
	rounds int
}

// New starts a series.
func New(meta Meta) *Recorder {
	if meta.Baseline == "" {
		meta.Baseline = Overlay
	}
	return &Recorder{
		meta:   meta,
		rows:   make(map[string]map[int]map[string]float64),
		notes:  make(map[string][]string),
		rounds: meta.Rounds,
	}
}

func (r *Recorder) know(variant string) {
	if !slices.Contains(r.order, variant) {
		r.order = append(r.order, variant)
	}
}

// Add records what a variant gave in a round. Rounds count from 0. A nil map
// says that the variant was tried and failed; NaN or an infinite value says so
// of one metric. A value that is given twice keeps the first and leaves a note:
// no measurement is replaced by a later, nicer one.
//
// Variants appear in the report in the order in which they are first named.
func (r *Recorder) Add(variant string, round int, values map[string]float64) {
	r.know(variant)
	if round < 0 {
		r.Note(variant, fmt.Sprintf("values of round %d ignored: rounds count from 0", round))
		return
	}
	r.rounds = max(r.rounds, round+1)
	rows := r.rows[variant]
	if rows == nil {
		rows = make(map[int]map[string]float64)
		r.rows[variant] = rows
	}
	row := rows[round]
	if row == nil {
		row = make(map[string]float64, len(values))
		rows[round] = row
	}
	for _, metric := range slices.Sorted(maps.Keys(values)) {
		if _, twice := row[metric]; twice {
			r.Note(variant, fmt.Sprintf("%s of round %d was given twice; the first value is kept", metric, round+1))
			continue
		}
		x := values[metric]
		if math.IsInf(x, 0) {
			x = nan
		}
		row[metric] = x
	}
}

// Note attaches a remark to a variant: why it was not run, failed or abstained.
// The same remark twice is one.
func (r *Recorder) Note(variant, text string) {
	r.know(variant)
	if !slices.Contains(r.notes[variant], text) {
		r.notes[variant] = append(r.notes[variant], text)
	}
}

// Finish computes the figures of what was recorded so far.
func (r *Recorder) Finish() Result {
	m := r.meta
	res := Result{
		Scenario:   m.Scenario,
		NIC:        m.NIC,
		NAPI:       m.NAPI,
		Awake:      m.Awake,
		NoRealTime: m.NoRealTime,
		Machine:    Machine{Kernel: m.Kernel, Cores: m.Cores, Roles: m.Roles},
		Rounds:     r.rounds,
		Seconds:    m.Seconds,
		Command:    m.Command,
		Baseline:   m.Baseline,
		Variants:   []Variant{},
		Ratios:     []Ratio{},
		Seed:       Seed,
		Resamples:  Resamples,
	}
	names := r.metricNames()
	for _, name := range r.order {
		res.Variants = append(res.Variants, r.variant(name, names))
	}
	for _, v := range res.Variants {
		for _, vs := range references(v.Name, m.Baseline, r.order) {
			ref, _ := res.Variant(vs)
			res.Ratios = append(res.Ratios, compare(v, ref)...)
		}
	}
	return res
}

// metricNames lists what any variant reported.
func (r *Recorder) metricNames() []string {
	names := make(map[string]bool)
	for _, rows := range r.rows {
		for _, row := range rows {
			for metric := range row {
				names[metric] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (r *Recorder) variant(name string, metrics []string) Variant {
	rows := r.rows[name]
	v := Variant{Name: name, Metrics: make(map[string]Metric), Notes: slices.Clone(r.notes[name]), NotRun: len(rows) == 0}
	if v.NotRun {
		return v
	}
	for _, metric := range metrics {
		// A main metric that others have is owed by every variant that was run.
		owed := slices.Contains(MainMetrics(r.meta.Scenario), metric)
		runs := make([]Number, r.rounds)
		for i := range runs {
			x, ok := rows[i][metric]
			if !ok {
				x = nan
			}
			owed = owed || ok
			runs[i] = Number(x)
		}
		if owed {
			v.Metrics[metric] = newMetric(runs)
		}
	}
	v.judge()
	return v
}

// compare returns the ratios of all metrics that both variants have.
func compare(v, ref Variant) []Ratio {
	var ratios []Ratio
	for _, metric := range slices.Sorted(maps.Keys(v.Metrics)) {
		base, ok := ref.Metrics[metric]
		if !ok || !hasRatio(metric) {
			continue
		}
		runs, usable := pair(v.Metrics[metric].Runs, base.Runs)
		lo, hi := bootstrap(usable)
		ratios = append(ratios, Ratio{
			Variant: v.Name, Metric: metric, Vs: ref.Name,
			Median: Number(median(usable)), CI95: [2]Number{Number(lo), Number(hi)},
			Pairs: len(usable), Missing: len(runs) - len(usable), Runs: runs,
			GeneratorBound: v.GeneratorBound || ref.GeneratorBound,
			Abstained:      v.Abstained,
		})
	}
	return ratios
}
