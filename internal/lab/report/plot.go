// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"html/template"
	"strings"
)

// Geometry of a figure, in SVG units: a name, a panel of values with their
// summary, a panel of ratios with theirs.
const (
	figWidth   = 1120
	nameX      = 0
	valueX0    = 150
	valueX1    = 500
	valueText  = 634
	ratioX0    = 660
	ratioX1    = 960
	ratioText  = 1098
	signX      = 1103
	headHeight = 30
	rowHeight  = 32
	rowRoom    = 11 // half the height that the rounds of a row are spread over
	axisHeight = 24
)

// svg is a drawing under construction, of rows down to bottom and an axis below
// them. All text passes through esc.
type svg struct {
	strings.Builder
	bottom float64
}

var esc = html.EscapeString

func newSVG(rows int, title string) *svg {
	s := &svg{bottom: float64(headHeight + rowHeight*rows)}
	s.add(`<svg viewBox="0 0 %d %.0f" role="img" aria-label="%s">`, figWidth, s.bottom+axisHeight, esc(title))
	return s
}

func (s *svg) finish() template.HTML {
	s.add(`</svg>`)
	return template.HTML(s.String())
}

func (s *svg) add(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

func (s *svg) text(x, y float64, class, text string) {
	s.add(`<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, esc(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	s.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

func (s *svg) dot(x, y float64, class, title string) {
	s.add(`<circle cx="%.1f" cy="%.1f" r="2.3" class="%s"><title>%s</title></circle>`, x, y, class, esc(title))
}

// through draws a line through all rows.
func (s *svg) through(x float64, class string) { s.line(x, headHeight-8, x, s.bottom, class) }

// scaleLines draws an axis below the rows and its grid through them.
func (s *svg) scaleLines(a axis) {
	last := -1e9
	for _, t := range a.ticks {
		x := a.at(t)
		s.through(x, "grid")
		name := tickLabel(t)
		if half := float64(width(name)) * 3.6; x-half > last+4 {
			s.text(x, s.bottom+16, "tick mid", name)
			last = x + half
		}
	}
}

// ratioPanel draws what all ratios have in common.
func (s *svg) ratioPanel(a axis, head string) {
	s.text(a.x0, 12, "head", head)
	s.text(ratioText, 12, "head end", "median [95% interval]")
	s.scaleLines(a)
	s.through(a.at(1), "one")
}

// middle is the height of a row's middle.
func middle(row int) float64 { return headHeight + rowHeight*(float64(row)+0.5) }

// place is the height of a round within its row: the first on top, so that a
// drift of the machine shows as a slope.
func place(y float64, i, rounds int) float64 {
	if rounds < 2 {
		return y
	}
	return y - rowRoom + 2*rowRoom*float64(i)/float64(rounds-1)
}

// role is the colour class of a variant.
func role(variant, baseline string) string {
	switch {
	case variant == baseline:
		return "base"
	case IsMechanism(variant):
		return "mech"
	}
	return "stock"
}

// plot draws every round of a metric for all variants, and beside it the
// ratios to the baseline with their intervals.
func (r Result) plot(metric string) template.HTML {
	var rows []Variant
	var values, ratios []float64
	for _, v := range r.Variants {
		m, ok := v.Metrics[metric]
		if !ok {
			continue
		}
		rows = append(rows, v)
		values = append(values, present(m.Runs)...)
		if q, ok := r.Ratio(v.Name, metric); ok {
			ratios = append(ratios, q.points()...)
		}
	}
	va, ra := valueAxis(valueX0, valueX1, values), ratioAxis(ratioX0, ratioX1, ratios)
	s := newSVG(len(rows), fmt.Sprintf("%s of %s by variant", label(metric), r.Scenario))
	s.text(valueX0, 12, "head", label(metric)+hint(metric, va))
	s.text(valueText, 12, "head end", "median [range]")
	s.scaleLines(va)
	if len(ratios) > 0 {
		s.ratioPanel(ra, "ratio to "+r.Baseline)
	}
	base, _ := r.Variant(r.Baseline)
	if median := base.median(metric); !median.Missing() {
		s.through(va.at(float64(median)), "one")
	}
	for i, v := range rows {
		y := middle(i)
		class := role(v.Name, r.Baseline)
		s.text(nameX, y+4, "name "+class, v.Name)
		s.values(va, y, v, metric, class, r.scale(metric))
		if v.Name == r.Baseline {
			s.text(ratioText, y+4, "num end", "1")
		} else if q, ok := r.Ratio(v.Name, metric); ok {
			s.ratio(ra, y, q)
		}
	}
	return s.finish()
}

// hint says which way is good, and that an axis is not linear.
func hint(metric string, a axis) string {
	var parts []string
	switch DirectionOf(metric) {
	case Higher:
		parts = append(parts, "higher is better")
	case Lower:
		parts = append(parts, "lower is better")
	}
	if a.log {
		parts = append(parts, "log scale")
	}
	if len(parts) == 0 {
		return ""
	}
	return " · " + strings.Join(parts, " · ")
}

// values draws one row: the range as a band, the rounds, the median as a tick.
func (s *svg) values(a axis, y float64, v Variant, metric, class string, sc scale) {
	m := v.Metrics[metric]
	for i, x := range m.Runs {
		if x.Missing() {
			s.add(`<text x="%.1f" y="%.1f" class="gone mid">×<title>%s</title></text>`, a.x0-8, place(y, i, len(m.Runs))+3,
				esc(fmt.Sprintf("%s, round %d: no value", v.Name, i+1)))
		}
	}
	if m.Median.Missing() {
		s.text(valueText, y+4, "num end", "no values")
		return
	}
	lo, hi := a.at(float64(m.Min)), a.at(float64(m.Max))
	s.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="3" class="band %s"/>`, lo-4, y-rowRoom-3, hi-lo+8, 2*rowRoom+6, class)
	for i, x := range m.Runs {
		if !x.Missing() {
			s.dot(a.at(float64(x)), place(y, i, len(m.Runs)), "dot "+class,
				fmt.Sprintf("%s, round %d: %s %s", v.Name, i+1, sc.format(float64(x)), label(metric)))
		}
	}
	mid := a.at(float64(m.Median))
	s.line(mid, y-rowRoom-3, mid, y+rowRoom+3, "median "+class)
	s.text(valueText, y+4, "num end", fmt.Sprintf("%s [%s–%s]", sc.format(float64(m.Median)), sc.format(float64(m.Min)), sc.format(float64(m.Max))))
}

// ratio draws one row of a ratio panel: the pairs, the interval, the median.
func (s *svg) ratio(a axis, y float64, q Ratio) {
	if q.Pairs == 0 {
		s.text(ratioText, y+4, "num end", "no pairs")
		return
	}
	class := q.class()
	for i, x := range q.Runs {
		if x > 0 {
			s.dot(a.at(float64(x)), place(y, i, len(q.Runs)), "dot pair",
				fmt.Sprintf("%s to %s, round %d: %.2f", q.Variant, q.Vs, i+1, x))
		}
	}
	lo, mid, hi := a.at(max(float64(q.CI95[0]), a.lo)), a.at(max(float64(q.Median), a.lo)), a.at(max(float64(q.CI95[1]), a.lo))
	s.line(lo, y, hi, y, "ci "+class)
	s.line(lo, y-5, lo, y+5, "ci "+class)
	s.line(hi, y-5, hi, y+5, "ci "+class)
	s.add(`<rect x="%.1f" y="%.1f" width="9" height="9" transform="rotate(45 %.1f %.1f)" class="point %s"/>`, mid-4.5, y-4.5, mid, y, class)
	s.text(ratioText, y+4, "num end "+class, q.interval())
	s.text(signX, y+4, "num "+class, []string{"−", "", "+"}[q.sign()+1])
}

// points are what a ratio's axis has to hold.
func (q Ratio) points() []float64 {
	xs := present(q.Runs)
	if q.Pairs > 0 {
		xs = append(xs, float64(q.CI95[0]), float64(q.CI95[1]))
	}
	return xs
}

// ratioPlot draws the comparisons with references other than the baseline.
func (r Result) ratioPlot(metric string) template.HTML {
	var rows []Ratio
	var points []float64
	for _, q := range r.Ratios {
		if q.Metric == metric && q.Vs != r.Baseline {
			rows = append(rows, q)
			points = append(points, q.points()...)
		}
	}
	if len(points) == 0 {
		return ""
	}
	a := ratioAxis(valueX0+90, ratioX1, points)
	s := newSVG(len(rows), "further ratios of "+label(metric))
	s.ratioPanel(a, label(metric)+", ratio to further references"+hint(metric, axis{}))
	for i, q := range rows {
		y := middle(i)
		s.add(`<text x="%d" y="%.1f" class="name"><tspan class="%s">%s</tspan><tspan class="to"> to %s</tspan></text>`,
			nameX, y+4, role(q.Variant, r.Baseline), esc(q.Variant), esc(q.Vs))
		s.ratio(a, y, q)
	}
	return s.finish()
}
