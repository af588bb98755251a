// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/overlane/overlane/internal/printable"
)

// pageWidth is what a terminal is expected to show without wrapping.
const pageWidth = 120

// Table writes the result for a person at a terminal, in at most 120 columns
// (a single name or word may be longer).
func (r Result) Table(w io.Writer) error {
	b := bufio.NewWriter(w)
	r.header(b)
	if main := r.Main(); len(main) == 0 {
		fmt.Fprintf(b, "\nno values: none of %s was measured\n", strings.Join(MainMetrics(r.Scenario), ", "))
	} else {
		r.grid(main).write(b)
	}
	r.others(b)
	r.notes(b)
	r.legend(b)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write table of %s: %w", r.Scenario, err)
	}
	return nil
}

// facts are the conditions of the series, the same words everywhere.
func (r Result) facts() []string {
	nic := "nic " + r.NIC
	if r.NAPI != "" {
		nic += " at " + r.NAPI
	}
	cores := printable.Plural(r.Machine.Cores, "core")
	if r.Awake {
		cores += " kept awake"
	}
	facts := []string{nic, "Linux " + r.Machine.Kernel, cores, fmt.Sprintf("%s × %g s", printable.Plural(r.Rounds, "round"), r.Seconds)}
	if r.NoRealTime {
		facts = append(facts, "probes at nice -20")
	}
	return facts
}

func (r Result) header(w io.Writer) {
	fmt.Fprintf(w, "%s   %s\n", r.Scenario, strings.Join(r.facts(), " · "))
	if r.Machine.Roles != "" {
		fmt.Fprintln(w, "cores: "+r.Machine.Roles)
	}
	if r.Command != "" {
		fmt.Fprintln(w, "$ "+strings.Join(wrapCommand(r.Command, pageWidth-6), " \\\n    "))
	}
}

// grid lays out one row per variant and main metric.
func (r Result) grid(main []string) *grid {
	g := new(grid)
	g.column(left, "", "variant")
	unit := label(main[0])
	if len(main) > 1 {
		g.column(left, "", "")
		unit = ""
	}
	g.column(right, unit, "median")
	g.column(right, "", "min–max")
	g.column(right, "ratio to", r.Baseline)
	g.column(left, "95%", "interval")
	costs := r.costs()
	for _, c := range costs {
		g.column(right, c.head[0], c.head[1])
	}
	for _, v := range r.Variants {
		for i, metric := range main {
			row, mark := []string{v.Name}, ""
			if len(main) > 1 {
				row = append(row, label(metric))
			}
			row = append(row, r.figures(v, metric)...)
			if i == 0 {
				mark = strings.Join(v.marks(), ", ")
				for _, c := range costs {
					row = append(row, c.cell(v))
				}
			} else {
				row[0] = ""
			}
			g.row(mark, row...)
			if v.NotRun {
				break
			}
		}
		if len(main) > 1 {
			g.gap()
		}
	}
	return g
}

// figures are the cells of a main metric: median, range, ratio, interval.
func (r Result) figures(v Variant, metric string) []string {
	if v.median(metric).Missing() {
		return []string{none, "", none, ""}
	}
	m, s := v.Metrics[metric], r.scale(metric)
	cells := []string{s.format(float64(m.Median)), s.format(float64(m.Min)) + "–" + s.format(float64(m.Max)), none, ""}
	switch q, ok := r.Ratio(v.Name, metric); {
	case v.Name == r.Baseline:
		cells[2] = "1"
	case ok && q.Pairs > 0:
		cells[2], cells[3] = q.cells()
	}
	return cells
}

// cells are the ratio and its interval with a sign.
func (q Ratio) cells() (ratio, interval string) {
	ratio, interval, _ = strings.Cut(q.interval(), " ")
	return ratio, interval + []string{" -", "", " +"}[q.sign()+1]
}

// scale is common to all variants' medians of a metric. Events are whole, but
// their median need not be.
func (r Result) scale(metric string) scale {
	xs := r.medians(metric)
	switch {
	case !isCount(metric):
		return scaleOf(xs...)
	case slices.ContainsFunc(xs, func(x float64) bool { return x != math.Trunc(x) }):
		return 1
	}
	return 0
}

// cost is a column beside the main metric.
type cost struct {
	metric string
	head   [2]string
	text   func(Metric) string
}

func (c cost) cell(v Variant) string {
	if v.median(c.metric).Missing() {
		return none
	}
	return c.text(v.Metrics[c.metric])
}

// costs lists the columns for which there is at least one value.
func (r Result) costs() []cost {
	med := func(s scale) func(Metric) string {
		return func(m Metric) string { return s.format(float64(m.Median)) }
	}
	sum := func(m Metric) string { return count(m.Sum()) }
	share := func(m Metric) string { return percent(float64(m.Median)) }
	all := []cost{
		{CPUPerMpkt, [2]string{"CPU s", "/Mpkt"}, med(r.scale(CPUPerMpkt))},
		{CPUPerGB, [2]string{"CPU s", "/GB"}, med(r.scale(CPUPerGB))},
		{CoreSpread, [2]string{"cores'", "spread"}, share},
		{Reordered, [2]string{"re-", "ordered"}, sum},
		{Duplicated, [2]string{"dupli-", "cated"}, sum},
		{Dropped, [2]string{"", "dropped"}, sum},
		{Unread, [2]string{"", "unread"}, sum},
		{Retransmits, [2]string{"re-", "transm."}, sum},
		{OFO, [2]string{"out of", "order"}, sum},
		{SACKReorder, [2]string{"SACK", "reorder"}, sum},
		{Waited, [2]string{"had to", "wait"}, sum},
		{Acted, [2]string{"", "acted"}, share},
		{LaneChanges, [2]string{"lane", "changes"}, sum},
	}
	return slices.DeleteFunc(all, func(c cost) bool { return len(r.medians(c.metric)) == 0 })
}

// marks are the words at the end of a row; the notes below explain them.
func (v Variant) marks() []string {
	var marks []string
	if v.NotRun {
		return []string{"not run"}
	}
	if v.GeneratorBound {
		marks = append(marks, "generator-bound")
	}
	if v.Abstained {
		marks = append(marks, "abstention")
	}
	if v.Unsteady {
		marks = append(marks, "not steady")
	}
	missing := 0
	for _, m := range v.Metrics {
		missing = max(missing, m.Missing)
	}
	if missing > 0 {
		marks = append(marks, fmt.Sprintf("%d missing", missing))
	}
	return marks
}

// others writes the comparisons with a reference that is not the baseline.
func (r Result) others(w io.Writer) {
	g := grid{aligns: []align{left, left, left, right, left}}
	for _, q := range r.Ratios {
		if q.Vs == r.Baseline || q.Pairs == 0 || !slices.Contains(MainMetrics(r.Scenario), q.Metric) {
			continue
		}
		ratio, interval := q.cells()
		g.row("", q.Variant, "to "+q.Vs, label(q.Metric), ratio, interval)
	}
	if len(g.rows) > 0 {
		fmt.Fprintln(w, "\nfurther ratios")
		g.body(w, "  ")
	}
}
