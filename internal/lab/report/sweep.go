// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// sweep puts series side by side that differ in one thing only, such as the load.
type sweep struct {
	Name  string
	Heads []string // of the figures
	Rows  []sweepRow
}

type sweepRow struct {
	Point   string // none: that of the row above
	Variant string
	Class   string
	Cells   []string
}

// minPoints make a curve; fewer are seen at a glance.
const minPoints = 4

// sweeps finds them by their names, SCENARIO/POINT.
func sweeps(results []Result) (list []sweep) {
	var names []string
	points := make(map[string][]Result)
	for _, r := range results {
		name, _, ok := strings.Cut(r.Scenario, "/")
		if !ok {
			continue
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		points[name] = append(points[name], r)
	}
	for _, name := range names {
		if len(points[name]) >= minPoints {
			list = append(list, newSweep(name, points[name]))
		}
	}
	return list
}

func newSweep(name string, results []Result) sweep {
	s := sweep{Name: name}
	var main []string
	scales := make(map[string]scale)
	for _, metric := range MainMetrics(results[0].Scenario) {
		var xs []float64
		for _, r := range results {
			xs = append(xs, r.medians(metric)...)
		}
		if len(xs) > 0 {
			main = append(main, metric)
			scales[metric] = scaleOf(xs...)
			s.Heads = append(s.Heads, label(metric))
		}
	}
	for _, r := range results {
		_, point, _ := strings.Cut(r.Scenario, "/")
		for _, v := range r.Variants {
			row := sweepRow{Point: point, Variant: v.Name, Class: role(v.Name, r.Baseline)}
			point = ""
			for _, metric := range main {
				row.Cells = append(row.Cells, scales[metric].format(float64(v.median(metric))))
			}
			s.Rows = append(s.Rows, row)
		}
	}
	return s
}

// Sweeps writes the medians of all series of a sweep as one table: a curve for each
// variant and figure. Series that are no sweep give none.
func Sweeps(w io.Writer, results []Result) error {
	b := bufio.NewWriter(w)
	for _, s := range sweeps(results) {
		fmt.Fprintf(b, "%s   medians\n", s.Name)
		g := new(grid)
		g.column(right, "", "point")
		g.column(left, "", "variant")
		for _, head := range s.Heads {
			g.column(right, "", head)
		}
		for i, row := range s.Rows {
			if row.Point != "" && i > 0 {
				g.gap()
			}
			g.row("", append([]string{row.Point, row.Variant}, row.Cells...)...)
		}
		g.write(b)
		fmt.Fprintln(b)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write sweep: %w", err)
	}
	return nil
}
