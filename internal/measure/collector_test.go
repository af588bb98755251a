// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
)

// scrape asks a page once.
func scrape(t *testing.T, p *page) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w
}

func pageOf(t *testing.T, status Status) *page {
	t.Helper()
	p, err := newPage(status)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestScrapeShowsTheStatus(t *testing.T) {
	st := control.Status{
		Version: "v1",
		Mechanisms: []control.Mechanism{
			{Name: "pipeline", State: control.Active, Reason: "core 3 spends 93 % of its time"},
			{Name: "express", State: control.Standby},
		},
		Lanes:      []control.Lane{{Stage: "tunnel", Core: 1, Packets: 7, Drops: 3}},
		StageCosts: []control.StageCost{{Stage: "nic", NsPerPacket: control.Measured(900)}, {Stage: "tunnel"}},
		Counters:   control.Counters{OverlayPackets: 9, SteeredPackets: 7, Unparsed: map[string]uint64{"short": 2}},
	}
	w := scrape(t, pageOf(t, func(context.Context) (control.Status, error) { return st, nil }))
	body := w.Body.String()
	for _, want := range []string{
		`overlane_observed_overlay_packets_total 9`,
		`overlane_lane_packets_total{core="1",stage="tunnel"} 7`,
		`overlane_lane_core_drops_total{core="1",stage="tunnel"} 3`,
		`overlane_mechanism_active{mechanism="pipeline"} 1`,
		`overlane_mechanism_active{mechanism="express"} 0`,
		`overlane_stage_cost_seconds{stage="nic"} 9e-07`,
		`overlane_stock_path_packets_total{reason="short"} 2`,
		"\nprocess_resident_memory_bytes ",
		"\nprocess_open_fds ",
		"\ngo_goroutines ",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("missing %s in\n%s", want, body)
		}
	}
	for _, no := range []string{"spends 93", `stage="tunnel"} 0`} {
		if strings.Contains(body, no) {
			t.Errorf("%s in\n%s", no, body)
		}
	}
	if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("content type %s", kind)
	}
}

// Each counter of a status has a metric of its own, with a help text: an operator is to be able to alarm on
// every packet that overlane itself drops.
func TestEveryCounterIsAMetric(t *testing.T) {
	var st control.Status
	v := reflect.ValueOf(&st.Counters).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Map:
			f.Set(reflect.ValueOf(map[string]uint64{"key": uint64(1000 + i)}))
		default:
			f.SetUint(uint64(1000 + i))
		}
	}
	body := scrape(t, pageOf(t, func(context.Context) (control.Status, error) { return st, nil })).Body.String()
	for i := range v.NumField() {
		// Of overlane's: the Go runtime counts, too.
		if rows := regexp.MustCompile(fmt.Sprintf(`(?m)^overlane_.* %d$`, 1000+i)).FindAllString(body, -1); len(rows) != 1 {
			t.Errorf("%s: rows %q in\n%s", v.Type().Field(i).Name, rows, body)
		}
	}
	for line := range strings.Lines(body) {
		name, ok := strings.CutPrefix(line, "# TYPE overlane_")
		name, _, _ = strings.Cut(name, " ")
		if help := "# HELP overlane_" + name + " "; ok && !regexp.MustCompile(help+`\w`).MatchString(body) {
			t.Errorf("%s: no help", name)
		}
	}
}

// A daemon that does not say how it is counts as down.
func TestAScrapeFailsWithoutAnAnswer(t *testing.T) {
	w := scrape(t, pageOf(t, func(context.Context) (control.Status, error) {
		return control.Status{}, errors.New("busy")
	}))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "busy") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
