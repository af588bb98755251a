// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
)

type align bool

const (
	left  align = false
	right align = true
)

// grid is a text table: columns as wide as their widest cell, two blanks
// between them, a mark after the last.
type grid struct {
	aligns []align
	heads  [2][]string
	rows   []gridRow
}

type gridRow struct {
	cells []string // none: an empty line
	mark  string
}

func (g *grid) column(a align, over, head string) {
	g.aligns = append(g.aligns, a)
	g.heads[0] = append(g.heads[0], over)
	g.heads[1] = append(g.heads[1], head)
}

func (g *grid) row(mark string, cells ...string) {
	g.rows = append(g.rows, gridRow{cells: cells, mark: mark})
}

func (g *grid) gap() { g.rows = append(g.rows, gridRow{}) }

func (g *grid) widths() []int {
	ws := make([]int, len(g.aligns))
	lines := [][]string{g.heads[0], g.heads[1]}
	for _, r := range g.rows {
		lines = append(lines, r.cells)
	}
	for _, line := range lines {
		for i, cell := range line {
			ws[i] = max(ws[i], width(cell))
		}
	}
	return ws
}

func (g *grid) line(cells []string, ws []int) string {
	var parts []string
	for i, cell := range cells {
		w := ws[i]
		if g.aligns[i] == left {
			w = -w // fmt then pads on the right
		}
		parts = append(parts, fmt.Sprintf("%*s", w, cell))
	}
	return strings.Join(parts, "  ")
}

// write prints a blank line, the heads, a rule and the rows.
func (g *grid) write(w io.Writer) {
	ws := g.widths()
	fmt.Fprintln(w)
	for _, head := range g.heads {
		if strings.Join(head, "") != "" {
			fmt.Fprintln(w, strings.TrimRight(g.line(head, ws), " "))
		}
	}
	fmt.Fprintln(w, strings.Repeat("─", width(g.line(g.heads[1], ws))))
	g.body(w, "")
}

// body prints the rows. Marks stand at the end of their rows, or all of them
// below their rows when one would not fit on the page.
func (g *grid) body(w io.Writer, indent string) {
	ws := g.widths()
	below := false
	for _, r := range g.rows {
		below = below || r.mark != "" && width(indent+g.line(r.cells, ws)+"  "+r.mark) > pageWidth
	}
	for i, r := range g.rows {
		if r.cells == nil && i == len(g.rows)-1 {
			break
		}
		line := indent + g.line(r.cells, ws)
		if r.mark != "" && !below {
			line += "  " + r.mark
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
		if r.mark != "" && below {
			fmt.Fprintf(w, "%s  └ %s\n", indent, r.mark)
		}
	}
}
