// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/overlane/overlane/internal/control"
)

func TestScrapeShowsTheStatus(t *testing.T) {
	st := control.Status{
		Version:    "v1",
		Mechanisms: []control.Mechanism{{Name: "pipeline", State: control.Active, Reason: "core 3 spends 93 % of its time"}},
		Lanes:      []control.Lane{{Stage: "tunnel", Core: 1, Packets: 7}},
		Counters:   control.Counters{OverlayPackets: 9, SteeredPackets: 7, Unparsed: map[string]uint64{"short": 2}},
	}
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, func() control.Status { return st }) }()
	res, err := http.Get("http://" + s.l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	for _, want := range []string{
		`overlane_overlay_packets_total 9`,
		`overlane_lane_packets_total{core="1",stage="tunnel"} 7`,
		`overlane_mechanism_active{mechanism="pipeline",state="active"} 1`,
		`overlane_stock_path_packets_total{reason="short"} 2`,
		"\nprocess_resident_memory_bytes ",
		"\nprocess_open_fds ",
		"\ngo_goroutines ",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("missing %s in\n%s", want, body)
		}
	}
	if strings.Contains(string(body), "spends 93") {
		t.Error("a reason with numbers became a label: its series would have no bound")
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestAnAddressInUseIsAnErrorAtStart(t *testing.T) {
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := Listen(s.l.Addr().String()); err == nil || !strings.Contains(err.Error(), "metrics:") {
		t.Fatalf("got %v, want an error that names the setting", err)
	}
}
