// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func pageOf(t *testing.T, results ...Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, results); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var drawing = regexp.MustCompile(`(?s)<svg.*?</svg>`)

// elements parses a drawing as strict XML and counts its elements by name and
// first class.
func elements(t *testing.T, svg string) map[string]int {
	t.Helper()
	n := make(map[string]int)
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("drawing is not well-formed: %v", err)
		}
		el, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		name := el.Name.Local
		for _, a := range el.Attr {
			if a.Name.Local == "class" {
				name += "." + a.Value
			}
		}
		n[name]++
	}
}

func TestPageDrawsEveryValueOnce(t *testing.T) {
	r := udpSeries(25)
	page := pageOf(t, r)
	better := 0
	for _, q := range r.Ratios {
		if q.Metric == KPPS && q.Vs == Overlay && q.CI95[0] > 1 {
			better++
		}
	}
	figures := drawing.FindAllString(page, -1)
	if len(figures) != 2 {
		t.Fatalf("%d figures, want the values and the further ratios", len(figures))
	}
	n := elements(t, figures[0])
	for what, want := range map[string]int{
		"circle.dot base":   25,
		"circle.dot stock":  25*4 - 2, // host, overlay-xdp, rps, rps-best; rps failed twice
		"circle.dot mech":   25 * 3,
		"circle.dot pair":   25*7 - 2,
		"text.gone mid":     2,
		"rect.point better": better,
	} {
		if n[what] != want {
			t.Errorf("%s: %d, want %d", what, n[what], want)
		}
	}
	n = elements(t, figures[1])
	if n["circle.dot pair"] != 25*4 {
		t.Errorf("further ratios: %d dots, want %d", n["circle.dot pair"], 25*4)
	}
}

func TestPageNeedsNothingFromElsewhere(t *testing.T) {
	page := pageOf(t, udpSeries(25), latencySeries(5), tcpSeries())
	for _, bad := range []string{"http:", "https:", "//", "<script", "<link", "<img", "url(", "@import", "src=", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("page contains %q", bad)
		}
	}
	for _, want := range []string{"udp-one", "latency-busy", "tcp-one", "prefers-color-scheme: dark", "seed 1)",
		"5 rounds: a first look", "result-latency-busy-softirq.json", "rounds are missing: rps"} {
		if !strings.Contains(page, want) {
			t.Errorf("page lacks %q", want)
		}
	}
}

func TestPageEscapesWhatItIsGiven(t *testing.T) {
	evil := `<b onclick="x">&`
	rec := New(Meta{Scenario: evil, NIC: evil, Machine: Machine{Kernel: evil}, Rounds: 2, Command: evil})
	for i := range 2 {
		rec.Add("overlay", i, map[string]float64{KPPS: 1, evil: 1})
		rec.Add(evil, i, map[string]float64{KPPS: 1, evil: 1})
	}
	rec.Note(evil, evil)
	page := pageOf(t, rec.Finish())
	if strings.Contains(page, "<b onclick") {
		t.Error("a name became markup")
	}
	for _, svg := range drawing.FindAllString(page, -1) {
		elements(t, svg)
	}
}

func TestPageSurvivesSparseSeries(t *testing.T) {
	for name, fill := range map[string]func(*Recorder){
		"nothing":         func(*Recorder) {},
		"one value":       func(r *Recorder) { r.Add("overlay", 0, map[string]float64{KPPS: 3}) },
		"only zeros":      func(r *Recorder) { r.Add("overlay", 0, map[string]float64{KPPS: 0}) },
		"baseline absent": func(r *Recorder) { r.Add("pipeline", 0, map[string]float64{KPPS: 3}) },
		"baseline failed": func(r *Recorder) { r.Add("overlay", 0, nil); r.Add("rps", 0, map[string]float64{KPPS: 3}) },
		"variant at zero": func(r *Recorder) {
			r.Add("overlay", 0, map[string]float64{KPPS: 3})
			r.Add("rps", 0, map[string]float64{KPPS: 0})
		},
		"baseline at zero": func(r *Recorder) {
			r.Add("overlay", 0, map[string]float64{KPPS: 0})
			r.Add("rps", 0, map[string]float64{KPPS: 3})
		},
		"below zero": func(r *Recorder) {
			r.Add("overlay", 0, map[string]float64{KPPS: -3})
			r.Add("rps", 0, map[string]float64{KPPS: 1})
		},
		"extremes": func(r *Recorder) {
			r.Add("overlay", 0, map[string]float64{KPPS: 5e-324})
			r.Add("rps", 0, map[string]float64{KPPS: 1e300})
			r.Add("host", 0, map[string]float64{KPPS: 1})
		},
		"tiny": func(r *Recorder) { r.Add("overlay", 0, map[string]float64{KPPS: 5e-324}) },
		"many decades": func(r *Recorder) {
			r.Add("overlay", 0, map[string]float64{KPPS: 1e-3})
			r.Add("rps", 0, map[string]float64{KPPS: 1e6})
		},
	} {
		t.Run(name, func(t *testing.T) {
			rec := New(Meta{Scenario: "udp-one", Rounds: 1})
			fill(rec)
			page := pageOf(t, rec.Finish())
			if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
				t.Error("a coordinate is not a number")
			}
			for _, svg := range drawing.FindAllString(page, -1) {
				elements(t, svg)
			}
			table(t, rec.Finish())
		})
	}
}

func TestWriteDir(t *testing.T) {
	list := func(dir string) []string {
		var names []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	one := filepath.Join(t.TempDir(), "new", "report")
	if err := WriteDir(one, []Result{udpSeries(25)}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"index.html", "result.json", "runs.csv"}, list(one)); diff != "" {
		t.Errorf("one series (-want +got):\n%s", diff)
	}
	many := t.TempDir()
	odd := tcpSeries()
	odd.Scenario = "../tcp one"
	if err := WriteDir(many, []Result{tcpSeries(), latencySeries(5), tcpSeries(), odd}); err != nil {
		t.Fatal(err)
	}
	want := []string{"index.html", "result-..-tcp-one-thread.json", "result-latency-busy-softirq.json",
		"result-tcp-one-thread-2.json", "result-tcp-one-thread.json", "runs.csv"}
	if diff := cmp.Diff(want, list(many)); diff != "" {
		t.Errorf("several series (-want +got):\n%s", diff)
	}
}

func TestWriteDirWithNothingToReportChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "report")
	if err := WriteDir(dir, nil); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory was made: %v", err)
	}
}
