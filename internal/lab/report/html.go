// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
)

//go:embed page.html
var pageSource string

//go:embed page.css
var pageStyle string

var page = template.Must(template.New("page").Parse(pageSource))

// The page's view of a result: everything is text or a finished drawing.
type pageView struct {
	Style  template.CSS
	Heads  []string // variants of the overview
	Rows   []overviewRow
	Sweeps []sweep
	Series []seriesView
	Files  []string
}

type overviewRow struct {
	ID, Scenario, Metric string
	Cells                []cellView
}

type cellView struct{ Text, Detail, Class string }

type seriesView struct {
	Result
	ID      string
	Facts   []string
	Command []string
	Figures []template.HTML
	Heads   []string
	Costs   []costView
	Numbers []numberView
	Idle    string
	Method  string
	Caution string
}

type costView struct {
	Variant
	Class string
	Cells []string
	Marks []string
}

type numberView struct {
	Variant      string // none: that of the row above
	Metric       string
	Cells        []string
	Ratio, Class string
}

// HTML writes all results as one page that loads nothing: no script, no font,
// no picture from elsewhere. It follows the reader's light or dark theme.
func HTML(w io.Writer, results []Result) error {
	view := pageView{Style: template.CSS(pageStyle), Files: append([]string{"runs.csv"}, jsonNames(results)...)}
	for i, r := range results {
		view.Series = append(view.Series, r.view(fmt.Sprintf("s%d", i+1)))
	}
	if len(results) > 1 {
		view.Heads, view.Rows = overview(results)
		view.Sweeps = sweeps(results)
	}
	if err := page.Execute(w, view); err != nil {
		return fmt.Errorf("write report page: %w", err)
	}
	return nil
}

// overview puts the first main ratio of each scenario side by side.
func overview(results []Result) (heads []string, rows []overviewRow) {
	for _, r := range results {
		for _, v := range r.Variants {
			if !slices.Contains(heads, v.Name) && v.Name != r.Baseline {
				heads = append(heads, v.Name)
			}
		}
	}
	for i, r := range results {
		for _, metric := range r.Main() {
			row := overviewRow{ID: fmt.Sprintf("s%d", i+1), Scenario: r.Scenario, Metric: label(metric)}
			for _, name := range heads {
				cell := cellView{Text: none, Class: "same"}
				if q, ok := r.Ratio(name, metric); ok && q.Pairs > 0 {
					ratio, interval, _ := strings.Cut(q.interval(), " ")
					cell = cellView{ratio, interval, q.class()}
				}
				row.Cells = append(row.Cells, cell)
			}
			rows = append(rows, row)
		}
	}
	return heads, rows
}

func (q Ratio) class() string { return []string{"worse", "same", "better"}[q.sign()+1] }

func (r Result) view(id string) seriesView {
	s := seriesView{
		Result: r, ID: id, Facts: r.facts(), Idle: r.idle(), Method: strings.Join(r.method(), " "), Caution: r.caution(),
	}
	if r.Machine.Roles != "" {
		s.Facts = append(s.Facts, "cores: "+r.Machine.Roles)
	}
	if r.Command != "" {
		s.Command = wrapCommand(r.Command, 110)
	}
	for _, metric := range r.Main() {
		s.Figures = append(s.Figures, r.plot(metric))
		if further := r.ratioPlot(metric); further != "" {
			s.Figures = append(s.Figures, further)
		}
	}
	costs := r.costs()
	for _, c := range costs {
		s.Heads = append(s.Heads, label(c.metric))
	}
	for _, v := range r.Variants {
		row := costView{Variant: v, Class: role(v.Name, r.Baseline), Marks: v.marks()}
		for _, c := range costs {
			row.Cells = append(row.Cells, c.cell(v))
		}
		s.Costs = append(s.Costs, row)
		for i, metric := range slices.Sorted(maps.Keys(v.Metrics)) {
			n := r.number(v, metric)
			if i > 0 {
				n.Variant = ""
			}
			s.Numbers = append(s.Numbers, n)
		}
	}
	return s
}

// number is a line of the page's full list.
func (r Result) number(v Variant, metric string) numberView {
	m, sc := v.Metrics[metric], r.scale(metric)
	spread := none
	if x := m.Spread(); !x.Missing() {
		spread = fmt.Sprintf("%.0f%%", 100*x)
	}
	n := numberView{Variant: v.Name, Metric: metric, Class: "same", Cells: []string{
		sc.format(float64(m.Median)), sc.format(float64(m.Min)), sc.format(float64(m.Max)),
		spread, fmt.Sprintf("%d of %d", len(m.Runs)-m.Missing, len(m.Runs)),
	}}
	if q, ok := r.Ratio(v.Name, metric); ok {
		n.Ratio, n.Class = q.interval(), q.class()
	}
	return n
}
