// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/report"
)

// course is a daemon is, each from a time on.
type course []struct {
	from time.Duration
	is   condition
}

func (s course) at(t time.Duration) (c condition) {
	for _, step := range s {
		if t >= step.from {
			c = step.is
		}
	}
	return c
}

func TestTrafficSettlesWithTheDaemon(t *testing.T) {
	const second = time.Second
	idle, active, trial := condition{is: "standby"}, condition{is: "active"}, condition{trying: "pipeline is on trial", is: "active"}
	var flapping course
	for i := range 200 {
		flapping = append(flapping, course{{time.Duration(i) * 400 * time.Millisecond, condition{is: fmt.Sprint("active since ", i)}}}...)
	}
	for _, tt := range []struct {
		name     string
		daemon   course
		led      time.Duration // fixed traffic; 0: it goes on for as long as it takes
		slow     float64
		took     time.Duration
		placed   time.Duration
		unsteady string
	}{
		{name: "nothing happens", daemon: course{{0, idle}}, took: 1500 * time.Millisecond},
		{name: "it acts at once", daemon: course{{0, idle}, {300 * time.Millisecond, active}}, took: 2 * second, placed: 500 * time.Millisecond},
		{name: "a trial", daemon: course{{0, idle}, {500 * time.Millisecond, trial}, {4 * second, active}}, took: 5500 * time.Millisecond, placed: 4 * second},
		{name: "a slow machine", daemon: course{{0, idle}}, slow: 4, took: 6 * second},
		{name: "a trial without end", daemon: course{{0, trial}}, took: 10 * second, placed: 10 * second, unsteady: "not steady after 10 s: pipeline is on trial"},
		{name: "to and fro", daemon: flapping, took: 10 * second, placed: 10 * second, unsteady: "not steady after 10 s: its status changed 0.0 s before"},
		{name: "to and fro on a slow machine", daemon: flapping, slow: 3, took: 30 * second, placed: 30 * second, unsteady: "not steady after 30 s: its status changed"},
		{name: "fixed", daemon: course{{0, idle}}, led: 3 * second, took: 3 * second},
		{name: "fixed, a change in the end", daemon: course{{0, idle}, {2500 * time.Millisecond, active}}, led: 3 * second, took: 3 * second,
			unsteady: "not steady after 3 s: its status changed 0.5 s before"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				e := &env{cfg: &Config{Slow: max(tt.slow, 1)}, calm: calmFor, limit: settleLimit, settling: map[string]float64{}}
				e.look = func(context.Context) (condition, error) { return tt.daemon.at(time.Since(start)), nil }
				least := e.slowly(settle)
				if tt.led > 0 {
					e.led, least = true, tt.led
				}
				if err := e.become(t.Context(), least, sleep); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tt.took {
					t.Errorf("settled after %s, want %s", took, tt.took)
				}
				if said := strings.Join(e.unsteady, "; "); !strings.HasPrefix(said, tt.unsteady) || (said == "") != (tt.unsteady == "") {
					t.Errorf("said %q, want %q", said, tt.unsteady)
				}
				if want := map[bool]float64{true: 1}[tt.unsteady != ""]; e.settling[report.Unsteady] != want {
					t.Errorf("unsteady: %v", e.settling)
				}
				if got := e.settling[report.Placed]; !e.led && got != tt.placed.Seconds() {
					t.Errorf("as it stayed after %g s, want %s", got, tt.placed)
				}
				if _, told := e.settling[report.Settled]; told == e.led {
					t.Errorf("told how long it took: %t", told)
				}
			})
		})
	}
}

func TestTrafficWithoutADaemonSettlesByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &env{cfg: &Config{Slow: 2}, settling: map[string]float64{}}
		start := time.Now()
		if err := e.become(t.Context(), e.slowly(settle), sleep); err != nil || time.Since(start) != 2*settle {
			t.Errorf("settled after %s: %v", time.Since(start), err)
		}
		if len(e.settling) > 0 {
			t.Errorf("told: %v", e.settling)
		}
	})
}

// What begins with a fixed end is given what the daemon needed, and more.
func TestWhatHasAFixedEndFollowsOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		e := &env{cfg: &Config{Slow: 1}, settle: settle, calm: calmFor, limit: settleLimit, settling: map[string]float64{}}
		e.look = func(context.Context) (condition, error) {
			return course{{0, condition{trying: "x"}}, {5 * time.Second, condition{is: "active"}}}.at(time.Since(start)), nil
		}
		for range 2 { // the second has nothing to wait for
			if err := e.lead(t.Context()); err != nil {
				t.Fatal(err)
			}
			const took = 5*time.Second + calmFor
			if time.Since(start) != took || e.settle != took+settle || !e.led {
				t.Errorf("after %s what follows gets %s", time.Since(start), e.settle)
			}
		}
	})
}

func TestWhatASteadyDaemonStaysWith(t *testing.T) {
	st := func() control.Status {
		return control.Status{
			Mechanisms: []control.Mechanism{{Name: "pipeline", State: control.Active, Reason: "core 0 spends 93 % of its time"}, {Name: "express", State: control.Standby}},
			Lanes:      []control.Lane{{Stage: "pod", Core: 1, Packets: 7}},
			Trials:     []control.Trial{{Mechanism: "pipeline", Verdict: "better"}},
			Express:    []control.ExpressPath{{NIC: "eth0", Pod: "veth1"}},
		}
	}
	was := conditionOf(st())
	for name, tt := range map[string]struct {
		change func(*control.Status)
		same   bool
	}{
		"counters":        {func(s *control.Status) { s.Lanes[0].Packets++; s.Counters.SteeredPackets++ }, true},
		"a reason":        {func(s *control.Status) { s.Mechanisms[0].Reason = "core 0 spends 94 % of its time" }, true},
		"a state":         {func(s *control.Status) { s.Mechanisms[1].State = control.Active }, false},
		"to and fro":      {func(s *control.Status) { s.Mechanisms[1].Since = time.Now() }, false},
		"a lane's core":   {func(s *control.Status) { s.Lanes[0].Core = 2 }, false},
		"a lane more":     {func(s *control.Status) { s.Lanes = append(s.Lanes, s.Lanes[0]) }, false},
		"another verdict": {func(s *control.Status) { s.Trials[0].At = time.Now() }, false},
		"an open path":    {func(s *control.Status) { s.Express[0].Open = true }, false},
		"a trial":         {func(s *control.Status) { s.Mechanisms[1].Trying = true }, false},
	} {
		is := st()
		tt.change(&is)
		if got := conditionOf(is) == was; got != tt.same {
			t.Errorf("%s: the same: %t", name, got)
		}
	}
	if is := st(); was.trying != "" || !strings.Contains(conditionOf(func() control.Status { is.Mechanisms[1].Trying = true; return is }()).trying, "express") {
		t.Errorf("what is tried is not named")
	}
}
