// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
)

// sweepSeries has a variant that failed at one point.
func sweepSeries() (list []Result) {
	for i, load := range []string{"0%", "50%", "100%", "120%"} {
		rec := New(Meta{Scenario: "latency-sweep/" + load, NIC: "thread", Machine: Machine{Kernel: "6.18.44", Cores: 2}, Rounds: 1, Seconds: 1})
		x := float64(i)
		rec.Add("overlay", 0, map[string]float64{Min: 40, Mean: 60 + 200*x, P99: 170 + 400*x, BulkKPPS: 300 * x})
		if load == "120%" {
			rec.Add("priority", 0, nil)
		} else {
			rec.Add("priority", 0, map[string]float64{Min: 42, Mean: 62 + 5*x, P99: 172 + 9*x, BulkKPPS: 280 * x, Acted: 1})
		}
		list = append(list, rec.Finish())
	}
	return list
}

func TestSweepsAreOneTable(t *testing.T) {
	var b strings.Builder
	if err := Sweeps(&b, append(sweepSeries(), udpSeries(2), tcpSeries())); err != nil {
		t.Fatal(err)
	}
	golden(t, "latency-sweep.txt", b.String())
	for line := range strings.Lines(b.String()) {
		if line = strings.TrimSuffix(line, "\n"); width(line) > pageWidth || strings.HasSuffix(line, " ") {
			t.Errorf("%d columns: %q", width(line), line)
		}
	}
}

func TestFewPointsAreNoSweep(t *testing.T) {
	var b strings.Builder
	if err := Sweeps(&b, sweepSeries()[:minPoints-1]); err != nil {
		t.Fatal(err)
	}
	if b.String() != "" {
		t.Errorf("a table of %d points:\n%s", minPoints-1, b.String())
	}
	if page := pageOf(t, sweepSeries()[:minPoints-1]...); strings.Contains(page, "medians") {
		t.Error("the page has it, too")
	}
}

func TestPageHasTheSweep(t *testing.T) {
	page := pageOf(t, sweepSeries()...)
	for _, want := range []string{"latency-sweep, medians", "<th class=\"r\">mean µs</th>", "<td class=\"r\">260</td>", "<td class=\"r\">–</td>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
