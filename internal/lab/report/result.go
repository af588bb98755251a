// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
)

// Number is a float64 whose NaN stands for a missing value; it is null in JSON.
type Number float64

// Missing reports whether there is no value.
func (n Number) Missing() bool { return math.IsNaN(float64(n)) }

func (n Number) MarshalJSON() ([]byte, error) {
	if n.Missing() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Number(nan)
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// Machine is where a series ran.
type Machine struct {
	Kernel string `json:"kernel"` // release, as uname -r prints it
	Cores  int    `json:"cores"`
	Roles  string `json:"roles,omitempty"` // which of them does what
}

// Meta describes a series. All but Baseline is known before its first round.
type Meta struct {
	Scenario   string  `json:"scenario"`
	NIC        string  `json:"nic"`                    // how the wire's receive end polls: thread or softirq
	NAPI       string  `json:"napi,omitempty"`         // how its threads are scheduled: "nice -20" or "fifo 1"
	Awake      bool    `json:"awake,omitempty"`        // the machine's cores were kept from halting
	NoRealTime bool    `json:"no_real_time,omitempty"` // the kernel let no probe be real-time: each may wait for its core
	Machine    Machine `json:"machine"`
	Rounds     int     `json:"rounds"`            // as announced; one that never comes is missing
	Seconds    float64 `json:"seconds"`           // per round and variant
	Command    string  `json:"command,omitempty"` // what to type to get this series again
	Baseline   string  `json:"baseline"`
}

// Result is a finished series of one scenario, as written to result.json.
type Result struct {
	Meta
	Variants []Variant `json:"variants"`
	Ratios   []Ratio   `json:"ratios"`

	// The bootstrap's fixed parameters, so that the file explains itself.
	Seed      uint64 `json:"bootstrap_seed"`
	Resamples int    `json:"bootstrap_resamples"`
}

// Variant is one way to run the scenario.
type Variant struct {
	Name    string            `json:"name"`
	Metrics map[string]Metric `json:"metrics"`

	// NotRun: no round was even tried; Notes say why.
	NotRun bool `json:"not_run,omitempty"`

	// GeneratorBound: in the median round the generator had less than
	// MinGeneratorIdle of its core left, so the figure may be its limit.
	GeneratorBound bool `json:"generator_bound,omitempty"`

	// Abstained: a mechanism that is not shown to have acted on at least
	// MinActed of the packets in the median round.
	Abstained bool `json:"abstained,omitempty"`

	// Unsteady: in some rounds it was measured while the daemon's status still changed.
	Unsteady bool `json:"unsteady,omitempty"`

	Notes []string `json:"notes,omitempty"`
}

// median is that of a metric, and missing where there is no value.
func (v Variant) median(metric string) Number {
	if m, ok := v.Metrics[metric]; ok {
		return m.Median
	}
	return Number(nan)
}

// Metric is the series of one metric of one variant.
type Metric struct {
	Median  Number   `json:"median"`
	Min     Number   `json:"min"`
	Max     Number   `json:"max"`
	Runs    []Number `json:"runs"` // by round; missing ones are NaN
	Missing int      `json:"missing,omitempty"`
}

func newMetric(runs []Number) Metric {
	xs := present(runs)
	m := Metric{Median: Number(Median(xs)), Min: Number(nan), Max: Number(nan), Runs: runs, Missing: len(runs) - len(xs)}
	if len(xs) > 0 {
		m.Min, m.Max = Number(xs[0]), Number(xs[len(xs)-1])
	}
	return m
}

// Spread is (max - min) / median, or NaN where the median is zero.
func (m Metric) Spread() Number {
	if m.Median == 0 {
		return Number(nan)
	}
	return (m.Max - m.Min) / m.Median
}

// Sum adds the rounds that have a value.
func (m Metric) Sum() float64 {
	var sum float64
	for _, x := range present(m.Runs) {
		sum += x
	}
	return sum
}

// Ratio compares a metric of two variants round by round.
type Ratio struct {
	Variant string    `json:"variant"`
	Metric  string    `json:"metric"`
	Vs      string    `json:"vs"`
	Median  Number    `json:"median"`
	CI95    [2]Number `json:"ci95"`
	Pairs   int       `json:"pairs"`             // rounds that both have
	Missing int       `json:"missing,omitempty"` // rounds dropped for want of either value
	Runs    []Number  `json:"runs"`              // by round

	// Carried over from the two variants, since they decide what the ratio is worth.
	GeneratorBound bool `json:"generator_bound,omitempty"`
	Abstained      bool `json:"abstained,omitempty"`
}

// Variant returns a variant by its name.
func (r Result) Variant(name string) (Variant, bool) {
	i := slices.IndexFunc(r.Variants, func(v Variant) bool { return v.Name == name })
	if i < 0 {
		return Variant{}, false
	}
	return r.Variants[i], true
}

// Ratio returns the comparison of a variant with the baseline.
func (r Result) Ratio(variant, metric string) (Ratio, bool) {
	i := slices.IndexFunc(r.Ratios, func(q Ratio) bool {
		return q.Variant == variant && q.Metric == metric && q.Vs == r.Baseline
	})
	if i < 0 {
		return Ratio{}, false
	}
	return r.Ratios[i], true
}

// Main lists the scenario's main metrics that at least one variant has.
func (r Result) Main() []string {
	return slices.DeleteFunc(MainMetrics(r.Scenario), func(m string) bool { return len(r.medians(m)) == 0 })
}

// medians are those of all variants that have one.
func (r Result) medians(metric string) (list []float64) {
	for _, v := range r.Variants {
		if x := v.median(metric); !x.Missing() {
			list = append(list, float64(x))
		}
	}
	return list
}

// JSON writes the result as one line, so that several in a row are a stream.
func (r Result) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write result of %s: %w", r.Scenario, err)
	}
	return nil
}
