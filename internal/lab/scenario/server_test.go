// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/report"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/wire"
)

// applications by the scenario that has them.
var applications = map[string]*application{"memcached": &memcached, "web": &web}

// Also one whose measurement fails.
func TestServersLeaveNothing(t *testing.T) {
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	before, err := os.ReadDir(e.bed.Dir())
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range applications {
		s, _ := find(scenarios, name)
		if err := traffic.Installed(s.programs...); err != nil {
			t.Skip(err)
		}
		broken := errors.New("broken")
		for _, want := range []error{nil, broken} {
			e.cfg.Load = 0
			_, err := a.serving(t.Context(), e, false, span{}, func(_ context.Context, e *env, _, at traffic.Endpoint) (map[string]float64, error) {
				if on, err := traffic.Listens(at.NS, a.port); err != nil || !on {
					t.Errorf("%s does not listen (%v)", name, err)
				}
				return nil, want
			})
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
			_, at := e.endpoints(0)
			if on, err := traffic.Listens(at.NS, a.port); err != nil || on {
				t.Errorf("%s still listens (%v)", name, err)
			}
		}
	}
	after, err := os.ReadDir(e.bed.Dir())
	if err != nil || len(after) != len(before) {
		t.Errorf("%v is left, there was %v (%v)", after, before, err)
	}
}

// A server that stands still is seen in the figures, however few requests it
// keeps waiting.
func TestServersThatStandStillAreSeen(t *testing.T) {
	if err := traffic.Installed("memcached"); err != nil {
		t.Skip(err)
	}
	e := newEnv(t, bed.Options{}, Config{Scenario: "udp-one"})
	const still = 200 * time.Millisecond
	e.cfg.clients, e.cfg.Load, e.cfg.Length = 1, 0, 5*still // the silence begins when its program is loaded
	slow := memcached
	values, err := slow.serving(t.Context(), e, false, span{}, func(ctx context.Context, e *env, from, at traffic.Endpoint) (map[string]float64, error) {
		e.watch = func(_ context.Context, begins bool) error {
			if !begins {
				return nil
			}
			// The wire takes nothing any more, and then again.
			loss, err := wire.DropEvery(e.bed.Receiver().Overlay, bed.Tunnel, 1)
			if err != nil {
				return err
			}
			return errors.Join(sleep(ctx, still), loss.Close())
		}
		return slow.atRate(ctx, e, from, at)
	})
	if err != nil {
		t.Fatal(err)
	}
	// A client that counted from its send calls would have one long time among
	// hundreds of short ones.
	if values[report.Avg] < us(still)/20 || values[report.Longest] < us(still)/2 || values[report.MissedSlots] < float64(still/probeEvery)/2 {
		t.Errorf("after %s of silence: %v", still, values)
	}
}

func TestPointsOfServersStay(t *testing.T) {
	for _, tc := range []struct {
		cfg  Config
		want []string
		load []float64
	}{
		{Config{Scenario: "memcached"}, []string{"1 client alone", "1 client under bulk", "10 clients alone", "10 clients under bulk"}, []float64{0, busy, 0, busy}},
		{Config{Scenario: "web", Load: 0.3}, []string{"10 clients alone", "10 clients under bulk"}, []float64{0, 0.3}},
		{Config{Scenario: "latency-rr"}, []string{"70%", "90%", "200%"}, []float64{0.7, 0.9, 2}},
		{Config{Scenario: "latency-rr", Load: 0.3}, []string{""}, []float64{0.3}},
	} {
		if err := tc.cfg.Normalize(bed.Thread); err != nil {
			t.Fatal(err)
		}
		s, _ := find(scenarios, tc.cfg.Scenario)
		var labels []string
		var load []float64
		for _, at := range s.pointsFor(&tc.cfg) {
			one := tc.cfg
			at.set(&one)
			labels, load = append(labels, at.label), append(load, one.Load)
			if s.load > 0 && one.clients == 0 {
				t.Errorf("%s/%s: no clients", s.name, at.label)
			}
		}
		if !slices.Equal(labels, tc.want) || !slices.Equal(load, tc.load) {
			t.Errorf("%s: %q at %v, want %q at %v", s.name, labels, load, tc.want, tc.load)
		}
	}
}

func TestPriorityIsToldOfTheScenariosFlow(t *testing.T) {
	for name, want := range map[string]string{
		"udp-one":      "pipeline: off\npriority: {mode: batch, rules: [{name: probe, proto: udp, port: 9001, network: overlay}]}\n",
		"latency-busy": "pipeline: off\npriority: {mode: batch, rules: [{name: probe, proto: udp, port: 9001, network: overlay}]}\n",
		"latency-rr":   "pipeline: off\npriority: {mode: batch, rules: [{name: probe, proto: udp, port: 9001, network: overlay}]}\n",
		"memcached":    "pipeline: off\npriority: {mode: batch, rules: [{name: memcached, proto: tcp, port: 11211, network: overlay}]}\n",
		"web":          "pipeline: off\npriority: {mode: batch, rules: [{name: web, proto: tcp, port: 8080, network: overlay}]}\n",
		"streamline":   "pipeline: off\npriority: {mode: batch, bulk-share: 1%, rules: [{name: flow, proto: udp, port: 9000, network: overlay}]}\n",
	} {
		s, _ := find(scenarios, name)
		if got := priorityConfig("batch", "off", s, true); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if a, ok := applications[name]; ok && a.service != s.latency {
			t.Errorf("%s: clients ask %+v, and priority knows %+v", name, a.service, s.latency)
		}
	}
}

func TestScenariosWithoutTheirProgramsSaySoAtOnce(t *testing.T) {
	t.Setenv("PATH", filepath.Join(t.TempDir(), "empty"))
	s, _ := find(scenarios, "memcached")
	const want = "needs memcaslap"
	s.programs = []string{"memcaslap"}
	if err := s.possible(&bed.Bed{}); err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := s.possible(&bed.Bed{Options: bed.Options{IPv6: true}}); err == nil {
		t.Error("memcached inside of an IPv6 overlay is not refused")
	}
}

func TestAskingIsNoLoadByItself(t *testing.T) {
	for n, want := range map[int]time.Duration{1: time.Millisecond, 10: 5 * time.Millisecond} {
		if got := between(n); got != want {
			t.Errorf("%d clients: every %s, want %s", n, got, want)
		}
	}
}
