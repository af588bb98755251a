// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/pipeline"
	"github.com/overlane/overlane/internal/mechanism/priority"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// recorded is a mechanism that writes down what it is asked for.
type recorded struct {
	mechanism.Base
	name    string
	calls   *[]string
	fails   error
	tracing mechanism.Tracing
	steers  mechanism.Steering
	polls   bool
	drops   uint64
	changed chan struct{}
	looks   chan time.Time // nil: it does not look
}

func (r recorded) note(call string) error {
	*r.calls = append(*r.calls, call+" "+r.name)
	return r.fails
}

func (r recorded) Report() []control.Mechanism                { return []control.Mechanism{{Name: r.name}} }
func (r recorded) Stop(context.Context) (apply.Report, error) { return apply.Report{}, r.note("stop") }
func (r recorded) Poll(context.Context, time.Time) error      { return r.note("poll") }
func (r recorded) Follow(context.Context, time.Time) error    { return r.note("follow") }
func (r recorded) Drops(c datapath.Counters) (uint64, error)  { return r.drops * c.Overlay, r.fails }
func (r recorded) Meanwhile(now time.Time) {
	if r.looks != nil {
		r.looks <- now
	}
}

func (r recorded) CoreLost(core int) { _ = r.note(fmt.Sprintf("lost %d", core)) }

func (r recorded) Polls() bool                { return r.polls }
func (r recorded) Changed() <-chan struct{}   { return r.changed }
func (r recorded) Tracing() mechanism.Tracing { return r.tracing }
func (r recorded) Steers() mechanism.Steering { return r.steers }

// loop is a daemon with such mechanisms, and what they were asked for.
func loop(list ...recorded) (*Daemon, *[]string) {
	calls := &[]string{}
	m := &mechanisms{}
	for _, r := range list {
		r.calls = calls
		m.all = append(m.all, r)
	}
	return &Daemon{host: &host.Host{}, mechs: m}, calls
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// What came last goes first, and one that fails keeps none from being stopped.
func TestMechanismsAreStoppedInTheOppositeOrder(t *testing.T) {
	d, calls := loop(recorded{name: "a"}, recorded{name: "b", fails: errors.New("busy")}, recorded{name: "c"})
	if _, err := d.mechs.stop(t.Context()); err == nil || err.Error() != "busy" {
		t.Errorf("stopped with %v", err)
	}
	same(t, "stop", *calls, "stop c", "stop b", "stop a")
}

func TestOnlyThoseThatPollArePolled(t *testing.T) {
	d, calls := loop(recorded{name: "a"}, recorded{name: "b", polls: true})
	if err := d.poll(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
	same(t, "poll", *calls, "poll b")
}

// One that was told of a change follows it; none waits for one that has nothing to tell.
func TestAChangeIsFollowedByTheMechanismThatWasTold(t *testing.T) {
	told := make(chan struct{}, 1)
	told <- struct{}{}
	d, calls := loop(recorded{name: "a"}, recorded{name: "b", changed: told}, recorded{name: "c", changed: make(chan struct{})})
	if err := first(d.mechs.changes(t.Context())); err != nil {
		t.Error(err)
	}
	same(t, "follow", *calls, "follow b")
}

// The daemon traces what one of them needs, and the heartbeat waits where flows have to drain.
func TestWhatOneNeedsIsTraced(t *testing.T) {
	d, _ := loop(recorded{tracing: mechanism.Tracing{Windows: true}, steers: mechanism.Kept}, recorded{tracing: mechanism.Tracing{Steady: true}})
	if got := d.mechs.tracing(); got != (mechanism.Tracing{Windows: true, Steady: true}) {
		t.Errorf("%+v", got)
	}
	if d.steers() {
		t.Error("flows that stay where they are drain while the daemon waits")
	}
	d, _ = loop(recorded{}, recorded{steers: mechanism.EachWindow})
	if !d.steers() {
		t.Error("the daemon decides on flows, and they do not drain while it waits")
	}
}

// A window counts what was lost through any of them: the trial of one has to see what another loses for it.
func TestWhatWasLostThroughEachIsCounted(t *testing.T) {
	d, _ := loop(recorded{drops: 3}, recorded{drops: 4})
	if n, err := d.mechs.drops(datapath.Counters{Overlay: 10}); n != 70 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	d, _ = loop(recorded{fails: errors.New("no map")}, recorded{drops: 4})
	if _, err := d.mechs.drops(datapath.Counters{}); err == nil {
		t.Error("a window goes by a counter that could not be read")
	}
}

// Status says which mechanism is being tried out: its state changes with each window then.
func TestStatusTellsWhatIsBeingTriedOut(t *testing.T) {
	a, b := trial.New("a", trial.ForGoodput, 0), trial.New("b", trial.ForGoodput, 0)
	d := &Daemon{host: &host.Host{}, trials: trial.NewTrials(slog.New(slog.DiscardHandler), nil, a, b)}
	trying := func(name string) bool {
		m := control.Mechanism{Name: name}
		d.unsettled(&m)
		return m.Trying
	}
	if trying("a") || trying("b") {
		t.Error("nothing is tried out yet")
	}
	b.Judge.Step(time.Now(), governor.Situation{Rate: 1e5}, governor.Window{})
	if trying("a") || !trying("b") || trying("c") {
		t.Errorf("while b is tried out: a %t, b %t, c %t", trying("a"), trying("b"), trying("c"))
	}
}

// What waits for its programs does not act yet: the kernel looks at them for seconds on a slow machine,
// and status is asked meanwhile.
func TestWhatWaitsForItsProgramsDoesNotActYet(t *testing.T) {
	d := &Daemon{host: &host.Host{}, trials: trial.NewTrials(slog.New(slog.DiscardHandler), nil)}
	over := d.host.Begins("microflows")
	told := func(name string) control.Mechanism {
		m := control.Mechanism{Name: name, State: control.Active, Reason: "forced by configuration"}
		d.unsettled(&m)
		return m
	}
	if m := told("microflows"); m.State != control.Standby || !m.Trying || !strings.Contains(m.Reason, "being loaded") {
		t.Errorf("while its programs are loaded: %+v", m)
	}
	if m := told("aggregate"); m.State != control.Active || m.Trying {
		t.Errorf("while those of others are: %+v", m)
	}
	over()
	if m := told("microflows"); m.State != control.Active || m.Trying || m.Reason != "forced by configuration" {
		t.Errorf("once they are there: %+v", m)
	}
}

// A device is active where a mechanism acts that has changed it or has a program on it, whatever the pipeline does.
func TestADeviceHasTheStateOfWhatIsOnIt(t *testing.T) {
	nic, tunnel, pod := node.Dev{Name: "eth0", Ifindex: 2}, node.Dev{Name: "vx0", Ifindex: 3}, node.Dev{Name: "eth0", Ifindex: 4, NetnsCookie: 9}
	journal := []apply.Entry{
		{Setting: plan.RPSMask(plan.Target(pod), 0), By: plan.ByExpress}, {Setting: plan.RPSMask(plan.Target(tunnel), 0), By: plan.ByAggregation},
	}
	held := []xdp.Held{{NIC: nic, By: []xdp.Mechanism{xdp.Express}}}
	for _, tc := range []struct {
		acts []string
		want [3]control.MechanismState // of nic, tunnel, pod
	}{
		{nil, [3]control.MechanismState{control.Standby, control.Standby, control.Standby}},
		{[]string{"express"}, [3]control.MechanismState{control.Active, control.Standby, control.Active}},
		{[]string{"aggregate"}, [3]control.MechanismState{control.Standby, control.Active, control.Standby}},
		{[]string{"microflows"}, [3]control.MechanismState{control.Active, control.Active, control.Active}},
	} {
		st := &control.Status{Mechanisms: []control.Mechanism{{Name: "pipeline", State: control.Standby}, {Name: "priority", State: control.Off}}}
		for _, name := range tc.acts {
			st.Mechanisms = append(st.Mechanisms, control.Mechanism{Name: name, State: control.Active})
		}
		of := deviceState(st, journal, held)
		if got := [3]control.MechanismState{of(nic), of(tunnel), of(pod)}; got != tc.want {
			t.Errorf("while %v act: %v, want %v", tc.acts, got, tc.want)
		}
	}
}

// A reload reaches each mechanism: what the operator switches off says so.
func TestAReloadReachesEachMechanism(t *testing.T) {
	d := &Daemon{dp: &datapath.Datapath{}, since: time.Now()}
	d.host = host.New(slog.New(slog.DiscardHandler), nil, &apply.Locked{}, d.dp, nil)
	a := arbiter{d.host, d}
	d.mechs = newMechanisms(a, Options{
		Aggregate: governor.Forced, Express: governor.Forced, SkipUnusedHooks: true, Priority: priority.Options{OnDemand: true},
		Pipeline: pipeline.Options{Mode: governor.Forced, Microflows: pipeline.Microflows{Mode: governor.Forced, Batch: 64}},
	})
	were := map[string]control.Mechanism{}
	for _, m := range d.mechs.all {
		for _, r := range m.Report() {
			were[r.Name] = r
		}
	}
	if fields := reflect.TypeFor[mechanisms]().NumField() - 1; len(d.mechs.all) != fields {
		t.Errorf("the daemon's loop knows %d mechanisms of %d", len(d.mechs.all), fields)
	}
	off := Options{Aggregate: governor.Off, Express: governor.Off, Priority: priority.Options{Off: true}}
	off.Pipeline.Mode, off.Pipeline.Microflows.Mode = governor.Off, governor.Off
	if err := d.mechs.configure(t.Context(), off); err != nil {
		t.Fatal(err)
	}
	for _, m := range d.mechs.all {
		for _, r := range m.Report() {
			if r.State != control.Off || r == were[r.Name] {
				t.Errorf("%s was %s (%s), and is %s (%s)", r.Name, were[r.Name].State, were[r.Name].Reason, r.State, r.Reason)
			}
		}
	}
}

// What the node can do may have changed since the start, as by a NIC that came.
func TestAConfigurationReadAgainRenewsTheTiers(t *testing.T) {
	d, _ := loop()
	d.requests, d.cores = make(chan func()), []int{}
	d.mechs = newMechanisms(arbiter{d.host, d}, d.opts)
	tiers := []control.TierStatus{{Name: "2 xdp", Reached: true}}
	go func() { (<-d.requests)() }()
	if err := d.Reconfigure(t.Context(), Options{Tiers: tiers}); err != nil || !slices.Equal(d.opts.Tiers, tiers) {
		t.Errorf("%v, tiers %+v", err, d.opts.Tiers)
	}
}
