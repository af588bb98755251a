// SPDX-License-Identifier: Apache-2.0

package report

import (
	"maps"
	"math"
	"slices"
)

// Recorder collects a series. It is not safe for concurrent use.
type Recorder struct {
	meta  Meta
	order []string
	rows  map[string]map[int]map[string]float64
	notes map[string][]string
}

// New starts a series, whose baseline is the plain overlay.
func New(meta Meta) *Recorder {
	meta.Baseline = Overlay
	return &Recorder{meta: meta, rows: make(map[string]map[int]map[string]float64), notes: make(map[string][]string)}
}

func (r *Recorder) know(variant string) {
	if !slices.Contains(r.order, variant) {
		r.order = append(r.order, variant)
	}
}

// Add records what a variant gave in a round, once. Rounds count from 0. A nil map
// says that the variant was tried and failed; NaN or an infinite value says so
// of one metric.
//
// Variants appear in the report in the order in which they are first named.
func (r *Recorder) Add(variant string, round int, values map[string]float64) {
	r.know(variant)
	if r.rows[variant] == nil {
		r.rows[variant] = make(map[int]map[string]float64)
	}
	r.rows[variant][round] = values
	r.meta.Rounds = max(r.meta.Rounds, round+1)
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
	res := Result{Meta: r.meta, Variants: []Variant{}, Ratios: []Ratio{}, Seed: Seed, Resamples: Resamples}
	reported := make(map[string]float64) // by any variant
	for _, rows := range r.rows {
		for _, row := range rows {
			maps.Copy(reported, row)
		}
	}
	for _, name := range r.order {
		res.Variants = append(res.Variants, r.variant(name, reported))
	}
	for _, v := range res.Variants {
		for _, vs := range references(v.Name, res.Baseline, r.order) {
			ref, _ := res.Variant(vs)
			res.Ratios = append(res.Ratios, compare(v, ref)...)
		}
	}
	return res
}

func (r *Recorder) variant(name string, metrics map[string]float64) Variant {
	rows := r.rows[name]
	v := Variant{Name: name, Metrics: make(map[string]Metric), Notes: slices.Clone(r.notes[name]), NotRun: len(rows) == 0}
	if v.NotRun {
		return v
	}
	for metric := range metrics {
		// A main metric that others have is owed by every variant that was run.
		owed := slices.Contains(MainMetrics(r.meta.Scenario), metric)
		runs := make([]Number, r.meta.Rounds)
		for i := range runs {
			x, ok := rows[i][metric]
			if !ok || math.IsInf(x, 0) {
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
			Median: Number(Median(usable)), CI95: [2]Number{Number(lo), Number(hi)},
			Pairs: len(usable), Missing: len(runs) - len(usable), Runs: runs,
			GeneratorBound: v.GeneratorBound || ref.GeneratorBound,
			Abstained:      v.Abstained,
		})
	}
	return ratios
}
