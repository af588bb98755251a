// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func table(t *testing.T, r Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTables(t *testing.T) {
	for name, r := range map[string]Result{
		"udp-one.txt":       udpSeries(25),
		"latency-busy.txt":  latencySeries(5),
		"latency-busy2.txt": latencySeries(25),
		"tcp-one.txt":       tcpSeries(),
		"empty.txt":         New(Meta{Scenario: "udp-one", NIC: "thread", Machine: Machine{Kernel: "6.18.44", Cores: 1}, Rounds: 1, Seconds: 1}).Finish(),
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, table(t, r)) })
	}
}

// What was measured while the daemon still changed something is no row like others.
func TestRowsThatWereNotSteadySaySo(t *testing.T) {
	rec := New(Meta{Scenario: "udp-read", NIC: "thread", Machine: Machine{Kernel: "6.18.44", Cores: 8}, Rounds: 3, Seconds: 2})
	for round := range 3 {
		rec.Add(Overlay, round, map[string]float64{KPPS: 500, Unread: 10})
		rec.Add("auto", round, map[string]float64{KPPS: 900, Unread: 20, Acted: 1, Settled: 4, Unsteady: map[int]float64{1: 1}[round]})
		rec.Add("pipeline", round, map[string]float64{KPPS: 600, Unread: 0, Acted: 1, Settled: 2, Unsteady: 0})
	}
	r := rec.Finish()
	for name, unsteady := range map[string]bool{Overlay: false, "auto": true, "pipeline": false} {
		if v, _ := r.Variant(name); v.Unsteady != unsteady {
			t.Errorf("%s is not steady: %t", name, v.Unsteady)
		}
	}
	text := table(t, r)
	for _, want := range []string{"unread", "not steady\n", "not steady in 1 of 3 rounds"} {
		if strings.Count(text, want) != 1 && want != "unread" || !strings.Contains(text, want) {
			t.Errorf("%q is not once in\n%s", want, text)
		}
	}
	if !strings.Contains(text, "60") || strings.Contains(text, "settled") {
		t.Errorf("no sum of what was not read, or what describes the run as a column:\n%s", text)
	}
}

func TestTablesFitTheTerminal(t *testing.T) {
	worst := New(Meta{Scenario: "udp-large", NIC: "softirq", Machine: Machine{Kernel: "6.12.57+deb13-cloud-amd64", Cores: 128, Roles: "receive 0-15, lanes 16-80, applications 81-100, sender 101, generator 112-127"}, Rounds: 30, Seconds: 2.5,
		Command: "overlane lab run udp-large " + strings.Repeat("--option value ", 40)})
	for i := range 29 {
		for _, v := range []string{"overlay", "pipeline-forced"} {
			worst.Add(v, i, map[string]float64{KPPS: 12345.6, Gbps: 0.0123, CPUPerMpkt: 0.0123, Reordered: 1e12, Duplicated: 1e9,
				Dropped: 1e15, Acted: 0.001, LaneChanges: 1e7, GeneratorIdle: 0})
		}
	}
	worst.Note("pipeline-forced", strings.Repeat("a reason of some length, ", 20))
	for _, r := range []Result{worst.Finish(), udpSeries(25), latencySeries(25), tcpSeries()} {
		for line := range strings.Lines(table(t, r)) {
			if line = strings.TrimSuffix(line, "\n"); width(line) > pageWidth || strings.HasSuffix(line, " ") {
				t.Errorf("%s: %d columns: %q", r.Scenario, width(line), line)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := tcpSeries().JSON(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "tcp-one.json", b.String())

	var back Result
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tcpSeries(), back, sameNumber, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

// The shape is a promise to other people's scripts: names may be added, those
// here stay.
func TestJSONHasThePromisedShape(t *testing.T) {
	var b bytes.Buffer
	if err := latencySeries(5).JSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Scenario *string `json:"scenario"`
		NIC      *string `json:"nic"`
		Machine  *struct {
			Kernel *string `json:"kernel"`
			Cores  *int    `json:"cores"`
		} `json:"machine"`
		Rounds   *int     `json:"rounds"`
		Seconds  *float64 `json:"seconds"`
		Variants []struct {
			Name    *string `json:"name"`
			Metrics map[string]struct {
				Median, Min, Max *float64
				Runs             []float64
			} `json:"metrics"`
		} `json:"variants"`
		Ratios []struct {
			Variant, Metric, Vs *string
			Median              *float64
			CI95                []float64 `json:"ci95"`
		} `json:"ratios"`
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Scenario == nil || got.NIC == nil || got.Machine == nil || got.Machine.Kernel == nil || got.Machine.Cores == nil ||
		got.Rounds == nil || got.Seconds == nil || len(got.Variants) != 3 || len(got.Ratios) == 0 {
		t.Fatalf("a promised field is missing:\n%s", b.String())
	}
	for _, v := range got.Variants {
		m := v.Metrics[P50]
		if v.Name == nil || m.Median == nil || m.Min == nil || m.Max == nil || len(m.Runs) != 5 {
			t.Errorf("variant: %+v", v)
		}
	}
	for _, q := range got.Ratios {
		if q.Variant == nil || q.Metric == nil || q.Vs == nil || q.Median == nil || len(q.CI95) != 2 {
			t.Errorf("ratio: %+v", q)
		}
	}
}

func TestJSONWithoutVariantsHasEmptyLists(t *testing.T) {
	var b bytes.Buffer
	if err := New(Meta{Scenario: "udp-one"}).Finish().JSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"variants":[]`, `"ratios":[]`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("broken pipe")

func TestWritersReportTheirErrors(t *testing.T) {
	r := udpSeries(25)
	for name, err := range map[string]error{
		"table": r.Table(brokenPipe{}),
		"json":  r.JSON(brokenPipe{}),
		"html":  HTML(brokenPipe{}, []Result{r}),
		"csv":   CSV(brokenPipe{}, []Result{r}),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNumbersKeepTheirMeaning(t *testing.T) {
	check := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for x, want := range map[float64]string{0: "0", 0.2: "1", 1: "1", 9999: "9999", 10000: "10.0k", 12345678: "12.3M", 999999: "1.00M", 1e15: "1000T"} {
		check(count(x), want)
	}
	for x, want := range map[float64]string{0: "0%", 0.0001: "<1%", 0.121: "12%", 0.9999: ">99%", 1: "100%"} {
		check(percent(x), want)
	}
	check(percent(math.NaN()), none)
	for _, tc := range []struct {
		xs   []float64
		want string // the first one, written
	}{
		{[]float64{556.4, 1850}, "556"},
		{[]float64{4.954, 7.2}, "4.95"},
		{[]float64{9.312, 1857}, "9.3"},
		{[]float64{0.0456}, "0.0456"},
		{[]float64{0, 0}, "0"},
	} {
		check(scaleOf(tc.xs...).format(tc.xs[0]), tc.want)
	}
}

func TestCommandCanBePasted(t *testing.T) {
	command := "overlane lab run udp-one --variants a,b --rounds 25 --seconds 3"
	lines := wrapCommand(command, 30)
	if got := strings.Join(lines, " "); got != command {
		t.Errorf("got %q", got)
	}
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, "--") {
			t.Errorf("broken inside a flag: %q", lines)
		}
	}
}

func TestEveryCSVLineIsOneValueOfOneRound(t *testing.T) {
	r := tcpSeries()
	var b bytes.Buffer
	if err := CSV(&b, []Result{r}); err != nil {
		t.Fatal(err)
	}
	want := []string{"scenario,nic,variant,round,metric,value"}
	for _, v := range r.Variants {
		for _, metric := range slices.Sorted(maps.Keys(v.Metrics)) {
			for i, x := range v.Metrics[metric].Runs {
				value := ""
				if !x.Missing() {
					value = fmt.Sprint(float64(x))
				}
				want = append(want, fmt.Sprintf("tcp-one,thread,%s,%d,%s,%s", v.Name, i+1, metric, value))
			}
		}
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(b.String()), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(b.String(), "tcp-one,thread,pipeline,4,gbps,\n") {
		t.Error("the missing value has no line")
	}
}
