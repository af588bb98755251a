// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/printable"
)

func (r Result) notes(w io.Writer) {
	names := 0
	for _, v := range r.Variants {
		if len(v.Notes) > 0 {
			names = max(names, width(v.Name))
		}
	}
	if names == 0 {
		return
	}
	fmt.Fprintln(w, "\nnotes")
	for _, v := range r.Variants {
		name := v.Name
		for _, note := range v.Notes {
			for _, line := range printable.Wrap(note, pageWidth-names-4) {
				fmt.Fprintf(w, "  %-*s  %s\n", names, name, line)
				name = "" // stands beside the first line only
			}
		}
	}
}

// idle is the generator's idle share per variant, for a reader that asks
// whether the path or the generator was the limit.
func (r Result) idle() string {
	var parts []string
	for _, v := range r.Variants {
		if x := v.median(GeneratorIdle); !x.Missing() {
			parts = append(parts, v.Name+" "+percent(float64(x)))
		}
	}
	return strings.Join(parts, ", ")
}

// loaded are the cores that receive for a tenth of their time or more per variant, the busiest first, for a
// reader that asks which core is the limit.
func (r Result) loaded() string {
	var parts []string
	for _, v := range r.Variants {
		type load struct {
			core  string
			share float64
		}
		var loads []load
		for name, m := range v.Metrics {
			if core, ok := strings.CutPrefix(name, loadOf); ok && m.Median >= 0.1 {
				loads = append(loads, load{core, float64(m.Median)})
			}
		}
		slices.SortFunc(loads, func(a, b load) int {
			return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.core, b.core))
		})
		text := v.Name
		for _, l := range loads {
			text += fmt.Sprintf(" %s: %s", l.core, percent(l.share))
		}
		if len(loads) > 0 {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, ", ")
}

func (r Result) legend(w io.Writer) {
	fmt.Fprintln(w)
	say := func(text string) {
		for _, line := range printable.Wrap(text, pageWidth-4) {
			fmt.Fprintln(w, line)
		}
	}
	if idle := r.idle(); idle != "" {
		say("Generator idle, median: " + idle + ".")
	}
	if loaded := r.loaded(); loaded != "" {
		say("Cores that receive, by their load, median: " + loaded + ".")
	}
	for _, text := range r.method() {
		say(text)
	}
	if caution := r.caution(); caution != "" {
		say(caution)
	}
}

// method says how the figures came about.
func (r Result) method() []string {
	text := []string{fmt.Sprintf("Ratios: median of the ratios within each round, 95%% bootstrap interval (%d resamples, seed %d).", r.Resamples, r.Seed)}
	var signs, sums []string
	if r.Rounds >= minPairs {
		signs = append(signs, "+ better, - worse, no sign: the interval holds 1.")
	}
	for _, c := range r.costs() {
		if isCount(c.metric) {
			sums = append(sums, strings.ReplaceAll(c.metric, "_", " "))
		}
	}
	if len(sums) > 0 {
		signs = append(signs, "Sums over all rounds: "+strings.Join(sums, ", ")+".")
	}
	if len(signs) > 0 {
		text = append(text, strings.Join(signs, " "))
	}
	return text
}

// caution says what keeps figures of the series from counting, or nothing.
func (r Result) caution() string {
	if r.Rounds < MinRounds {
		return fmt.Sprintf("%s: a first look. A figure counts from %d rounds, none missing.", printable.Plural(r.Rounds, "round"), MinRounds)
	}
	var short []string
	for _, v := range r.Variants {
		for _, metric := range r.Main() {
			if v.Metrics[metric].Missing > 0 && !slices.Contains(short, v.Name) {
				short = append(short, v.Name)
			}
		}
	}
	switch {
	case len(short) == 0:
		return ""
	case slices.Contains(short, r.Baseline):
		return "No ratio counts: the baseline lacks rounds."
	}
	return "Figures that do not count, since rounds are missing: " + strings.Join(short, ", ") + "."
}
