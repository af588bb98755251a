// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/printable"
)

// screen is where text for people goes: with colours and line breaks when it
// is a terminal, plain when it is a file or a pipe. Names that others have chosen come to it as they
// are; it makes them printable.
type screen struct {
	w     io.Writer
	width int // 0: lines are not broken
	color bool
}

func newScreen(w io.Writer) *screen {
	s := &screen{w: w}
	f, ok := w.(*os.File)
	if !ok {
		return s
	}
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
		s.width = int(size.Col)
		_, off := os.LookupEnv("NO_COLOR") // https://no-color.org
		s.color = !off && os.Getenv("TERM") != "dumb"
	}
	return s
}

// style is an SGR parameter of the terminal.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// cell is a piece of text in one style.
type cell struct {
	text  string
	style style
}

// command is the style of what is to be copied: it is not broken into lines.
const command style = "36"

func (s *screen) paint(c cell) string {
	if !s.color || c.style == plain || c.text == "" {
		return c.text
	}
	return "\x1b[" + string(c.style) + "m" + c.text + "\x1b[0m"
}

func (s *screen) line(cells ...cell) {
	for _, c := range cells {
		io.WriteString(s.w, s.paint(cell{printable.Text(c.text), c.style}))
	}
	io.WriteString(s.w, "\n")
}

// table prints rows with aligned columns. The last column is broken to the
// width of the terminal. A column whose title begins with > is aligned to the
// right; titles may be nil.
func (s *screen) table(titles []string, rows [][]cell) {
	if len(rows) == 0 {
		return
	}
	right := make([]bool, len(rows[0]))
	head := make([]cell, len(titles))
	for i, t := range titles {
		t, right[i] = strings.CutPrefix(t, ">")
		head[i] = cell{t, dim}
	}
	var all [][]cell
	if len(head) > 0 {
		all = append(all, head)
	}
	for _, row := range rows {
		shown := make([]cell, len(row))
		for i, c := range row {
			shown[i] = cell{printable.Text(c.text), c.style}
		}
		all = append(all, shown)
	}
	widths := make([]int, len(rows[0]))
	for _, row := range all {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range all {
		s.row(row, widths, right)
	}
}

// section is a table behind an empty line, if it has rows.
func (s *screen) section(titles []string, rows [][]cell) {
	if len(rows) > 0 {
		s.line()
		s.table(titles, rows)
	}
}

func (s *screen) row(row []cell, widths []int, right []bool) {
	const gap = 2
	var b strings.Builder
	indent := 0
	for i, c := range row {
		if i == len(row)-1 && !right[i] {
			lines := []string{c.text}
			if s.width-indent > 20 && c.style != command {
				lines = printable.Wrap(c.text, s.width-indent-1)
			}
			for n, l := range lines {
				if n > 0 {
					b.WriteString("\n" + strings.Repeat(" ", indent))
				}
				b.WriteString(s.paint(cell{l, c.style}))
			}
			break
		}
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text))
		if right[i] {
			b.WriteString(pad + s.paint(c))
		} else {
			b.WriteString(s.paint(c) + pad)
		}
		b.WriteString(strings.Repeat(" ", gap))
		indent += widths[i] + gap
	}
	io.WriteString(s.w, strings.TrimRight(b.String(), " ")+"\n")
}

// count spells a number with three significant digits and a unit.
func count(n uint64) string {
	switch {
	case n < 10_000:
		return fmt.Sprint(n)
	case n < 1_000_000:
		return fmt.Sprintf("%.1f k", float64(n)/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.2f M", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f G", float64(n)/1e9)
}

// ago spells a duration with its two largest units.
func ago(d time.Duration) string {
	s := int(max(d, 0) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
}
