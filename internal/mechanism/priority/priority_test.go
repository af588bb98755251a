// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// fixture is a node without devices.
type fixture struct {
	*Priority
	*mechanismtest.Host
	now     time.Time
	cleared int // times that the NICs were cleared for it
	counted error
	census  *flows // under way, or nil
	split   bool
	told    []rules.Rule // in force, as the log has it
	dp      Programs     // nil: the kernel loads none
	places  *xdp.Places
	bars    error // what keeps the NICs from being cleared
}

// flows is a census: one small, sparse flow that half of the packets are of.
type flows struct{ of *fixture }

func (flows) Flows() (list []datapath.FlowBrought, rest datapath.FlowBrought, err error) {
	return []datapath.FlowBrought{{Packets: 10, Bytes: 1000}}, datapath.FlowBrought{Packets: 10}, nil
}

func (c flows) End() error { c.of.census = nil; return nil }

func (f *fixture) StrayedLanes() ([]int, error)                   { return nil, nil }
func (f *fixture) EndLanes(func(int) bool) error                  { return nil }
func (f *fixture) Entries() []apply.Entry                         { return nil }
func (f *fixture) CarryOutWhole([]plan.Step) error                { return nil }
func (f *fixture) RulesChanged(_ plan.Owner, _, now []rules.Rule) { f.told = now }
func (f *fixture) Places() *xdp.Places                            { return f.places }
func (f *fixture) Cores() []int                                   { return []int{0, 1} }
func (f *fixture) ClearNICs(context.Context) error                { f.cleared++; return f.bars }
func (f *fixture) StopExpress(context.Context) error              { return nil }
func (f *fixture) Meanwhile()                                     {}
func (f *fixture) PipelineArmed() bool                            { return false }
func (f *fixture) Split() bool                                    { return f.split }
func (f *fixture) Trials() *trial.Trials {
	return trial.NewTrials(slog.New(slog.DiscardHandler), nil, f.Tries()...)
}

func (f *fixture) LoadPriority() (Programs, error) {
	if f.dp == nil {
		return nil, errors.New("no memory")
	}
	return f.dp, nil
}

func (f *fixture) BeginCensus() (datapath.FlowCounts, error) {
	if f.counted != nil {
		return nil, f.counted
	}
	f.census = &flows{f}
	return f.census, nil
}

func newFixture(opts Options) *fixture {
	memory, _ := xdp.Remember(nil)
	f := &fixture{Host: mechanismtest.New(nil), now: time.Unix(1_800_000_000, 0), places: xdp.New(nil, memory, slog.New(slog.DiscardHandler))}
	f.Priority = New(f, f, opts, f.now)
	return f
}

func (f *fixture) is(t *testing.T, state control.MechanismState, reason string) {
	t.Helper()
	if m := f.Report()[0]; m.Name != "priority" || m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %+v; want %s, %s", m, state, reason)
	}
}

func ssh() rules.Rule { return rules.Rule{Name: "ssh", Class: rules.Latency, Proto: 6, Port: 22} }

// A list of rules that cannot be put in force leaves the one before in force.
func TestAnErrorChangesNoRules(t *testing.T) {
	f := newFixture(Options{})
	f.is(t, control.Off, "no rules")
	if err := f.AddRule(t.Context(), ssh()); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("a rule was added, though the kernel takes no program: %v", err)
	}
	f.is(t, control.Off, "no rules")
	if f.cleared != 1 || f.InPlace() || len(f.added)+len(f.told) > 0 {
		t.Errorf("cleared %d times, in place: %t, rules %v, told %v", f.cleared, f.InPlace(), f.added, f.told)
	}
	if err := f.Configure(t.Context(), Options{Rules: []rules.Rule{ssh()}}); err == nil || len(f.opts.Rules) > 0 {
		t.Errorf("the configuration's rules: %v, error %v", f.opts.Rules, err)
	}
}

// Rules that do nothing are kept, and named.
func TestRulesThatDoNothingAreKept(t *testing.T) {
	for name, opts := range map[string]Options{
		"off":         {Off: true},
		"unsupported": {No: errors.New("this kernel has no XDP redirect to a CPU")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(opts)
			if err := f.AddRule(t.Context(), ssh()); err != nil {
				t.Fatal(err)
			}
			f.is(t, control.MechanismState(name), "")
			if f.cleared > 0 || len(f.told) != 1 {
				t.Errorf("the NICs were cleared %d times, the log has %v", f.cleared, f.told)
			}
			if err := f.AddRule(t.Context(), ssh()); err == nil || !strings.Contains(err.Error(), `already`) {
				t.Errorf("two of one name: %v", err)
			}
			if err := f.DelRule(t.Context(), "dns"); err == nil || !strings.Contains(err.Error(), `no rule "dns"`) {
				t.Errorf("one that is not there: %v", err)
			}
			if err := f.DelRule(t.Context(), "ssh"); err != nil || len(f.told) != 0 {
				t.Errorf("taken away: %v, the log has %v", err, f.told)
			}
		})
	}
}

func TestBesideTierXDPNoRuleActs(t *testing.T) {
	f := newFixture(Options{Tier: governor.XDP})
	if err := f.AddRule(t.Context(), ssh()); !errors.Is(err, ErrTierXDP) || f.cleared > 0 {
		t.Errorf("%v, the NICs were cleared %d times", err, f.cleared)
	}
	if err := (Options{Tier: governor.XDP, Rules: []rules.Rule{ssh()}}).Fits(); !errors.Is(err, ErrTierXDP) {
		t.Errorf("at the start: %v", err)
	}
}

// after takes windows in which a core is short of time, for so long.
func (f *fixture) after(t *testing.T, d time.Duration) {
	t.Helper()
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(100 * time.Millisecond)
		in := governor.Input{Now: f.now, Configured: []int{0, 1}, Cores: map[int]governor.Core{0: {Saturated: 1, Rate: 2e5, Overlay: 2e5}, 1: {}}}
		if err := f.Decide(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

// Without rules flows are counted beside a core that is short of time; micro-flows end that at once.
func TestFlowsAreCountedBesideASaturatedCore(t *testing.T) {
	f := newFixture(Options{OnDemand: true})
	f.Node = mechanismtest.Served()
	for !f.Tracing().Steady && f.now.Before(time.Unix(1_800_000_060, 0)) {
		f.after(t, 100*time.Millisecond)
	}
	if f.census == nil || f.InPlace() {
		t.Fatalf("after a minute, flows are counted: %t, in place: %t; %+v", f.census != nil, f.InPlace(), f.Report())
	}
	f.split = true
	f.after(t, 100*time.Millisecond)
	if f.census != nil || f.Tracing().Steady || f.Tracing().Windows {
		t.Errorf("beside micro-flows, flows are counted: %t, traced: %+v", f.census != nil, f.Tracing())
	}
}

// Where no NIC is served, that is said, and no flow is counted for a trial that no NIC can have.
func TestWithoutANICItSaysWhy(t *testing.T) {
	f := newFixture(Options{OnDemand: true})
	over, why := mechanismtest.OverTUN()
	f.Node = over
	f.after(t, 20*time.Second)
	f.is(t, control.Standby, why)
	if f.census != nil || f.Tracing().Windows {
		t.Errorf("flows are counted: %t, traced: %+v", f.census != nil, f.Tracing())
	}
	f.Node = mechanismtest.Served()
	f.after(t, 100*time.Millisecond)
	if !f.Tracing().Windows {
		t.Errorf("the NIC is there, and nothing is measured: %+v", f.Report())
	}
}

// A count that fails is said, and nothing is put in place.
func TestACountThatFailsIsNoDemand(t *testing.T) {
	f := newFixture(Options{OnDemand: true})
	f.Node, f.counted = mechanismtest.Served(), errors.New("no tcx")
	f.after(t, 20*time.Second)
	f.is(t, control.Standby, "no tcx")
	if f.InPlace() || f.cleared > 0 {
		t.Errorf("in place: %t, cleared %d times", f.InPlace(), f.cleared)
	}
}

func TestSparseFlowsOfACensus(t *testing.T) {
	c, err := small(flows{})
	if err != nil || c != (governor.Census{All: 20, Flows: 1, Sparse: 10}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// Latency traffic may be on a core for a minute after it polled.
func TestACoreCountsForAMinuteAfterItPolled(t *testing.T) {
	a := &placed{polled: map[int]time.Time{}}
	begin := time.Unix(1000, 0)
	a.sawPolls(governor.Input{Now: begin, Cores: map[int]governor.Core{0: {Rate: 1}, 1: {}}}, nil)
	if got := a.pollers(); !slices.Equal(got, []int{0}) {
		t.Errorf("%v poll", got)
	}
	a.sawPolls(governor.Input{Now: begin.Add(mechanism.PolledFor)}, nil)
	if got := a.pollers(); len(got) > 0 {
		t.Errorf("a minute later, %v poll", got)
	}
}

// programs are in the kernel, and no frame comes to them.
type programs struct {
	Programs
	tuning  datapath.PriorityTuning
	tunings []datapath.PriorityTuning // all, in their order
	refuses error                     // rules
	fails   error                     // what is asked of it of lanes
}

func (p *programs) SetTuning(t datapath.PriorityTuning) error {
	p.tuning, p.tunings = t, append(p.tunings, t)
	return nil
}
func (p *programs) SetRules(*rules.Table) error                        { return p.refuses }
func (p *programs) RuleFrames() ([]uint64, error)                      { return nil, nil }
func (p *programs) StartLanes([]int, bool, datapath.LaneSched) error   { return nil }
func (p *programs) Demoted() (int, error)                              { return 0, nil }
func (p *programs) BesideRealtime([]int, datapath.LaneSched) error     { return p.fails }
func (p *programs) Counters() (c datapath.PriorityCounters, err error) { return c, nil }
func (p *programs) Close() error                                       { return nil }

// What priority has set of a NIC goes with it, whatever it is called by then, and what it has set of another stays.
func TestANICThatIsNoUnderlayAnyMoreIsLeft(t *testing.T) {
	left, kept := node.Dev{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}, node.Dev{NetnsCookie: 1, Ifindex: 3, Name: "eth1"}
	dp := &programs{}
	renamed := left
	renamed.Name = "wan"
	threaded := map[plan.Setting]string{plan.Threaded(plan.Target(renamed)): "0", plan.Threaded(plan.Target(kept)): "0"}
	f := newFixture(Options{})
	f.Values = maps.Clone(threaded)
	f.added = []rules.Rule{ssh()}
	f.placed = &placed{dp: dp, attached: map[node.DevKey]bool{left.Key(): true}}
	for s := range threaded {
		if _, err := f.CarryOut([]plan.Step{{Setting: s, By: plan.ByPriority, Was: "0", First: "0", Want: "1"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Rescanned(t.Context()); err != nil {
		t.Fatal(err)
	}
	for s := range threaded {
		if want := map[string]string{"wan": "0", "eth1": "1"}[s.Name]; f.Values[s] != want {
			t.Errorf("%s is %s, want %s", s, f.Values[s], want)
		}
	}
	if f.OnNIC() || !f.InPlace() || dp.tuning != f.tuning() {
		t.Errorf("on a NIC: %t, in place: %t, bulk by %+v", f.OnNIC(), f.InPlace(), dp.tuning)
	}
	f.is(t, control.Standby, "")
}

// Until bulk makes way nothing is kept for it: latency would begin in debt, wait in the lane, and be told to be over budget.
func TestLatencyDoesNotBeginInDebt(t *testing.T) {
	f := newFixture(Options{})
	dp := &programs{}
	f.dp = dp
	if err := f.AddRule(t.Context(), ssh()); err != nil || len(dp.tunings) == 0 {
		t.Fatalf("tuned to %+v, %v", dp.tunings, err)
	}
	if first := dp.tunings[0]; first.Window != 0 || first.LatencyShare != 1 {
		t.Errorf("at first by %+v", first)
	}
	if last := dp.tunings[len(dp.tunings)-1]; last != f.tuning() {
		t.Errorf("then by %+v", last)
	}
}

// A configuration that is refused once priority was taken off for it: it comes back, and status says why it is away.
func TestPriorityComesBackAfterAConfigurationIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(Options{})
		f.dp = &programs{}
		if err := f.AddRule(t.Context(), ssh()); err != nil || !f.InPlace() {
			t.Fatalf("in place: %t, %v", f.InPlace(), err)
		}
		twin := Options{NoThreads: true, Rules: []rules.Rule{ssh()}}
		if err := f.Configure(t.Context(), twin); err == nil || !f.InPlace() || f.cleared != 1 {
			t.Errorf("a mistake took priority off: %v", err)
		}
		f.bars = datapath.ErrFlowsOut
		if err := f.Configure(t.Context(), Options{NoThreads: true}); !errors.Is(err, f.bars) || f.opts.NoThreads {
			t.Errorf("the configuration is %+v, error %v", f.opts, err)
		}
		step := func(after time.Duration, cleared int) {
			t.Helper()
			time.Sleep(after)
			if err := f.Step(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
			if f.cleared != cleared {
				t.Errorf("the NICs were to be cleared %d times by now, want %d", f.cleared, cleared)
			}
		}
		f.is(t, control.Standby, "tried again every 10s: "+f.bars.Error())
		step(0, 3)
		step(mechanism.RetryAfter-time.Millisecond, 3)
		step(time.Millisecond, 4)
		f.is(t, control.Standby, "tried again every 10s: "+f.bars.Error())
		f.bars = nil
		step(mechanism.RetryAfter-time.Millisecond, 4)
		step(time.Millisecond, 5)
		if !f.InPlace() || len(f.told) != 1 {
			t.Errorf("in place: %t, rules in force %v", f.InPlace(), f.told)
		}
	})
}

// A rule that the kernel takes is in force though not all can follow; one that it refuses leaves a trial as it was.
func TestARuleBesideATrial(t *testing.T) {
	f, dp := newFixture(Options{OnDemand: true}), &programs{refuses: errors.New("no room")}
	f.placed, f.demand.on = &placed{dp: dp}, true
	if err := f.AddRule(t.Context(), ssh()); !errors.Is(err, dp.refuses) || !f.demand.on || len(f.added) > 0 {
		t.Errorf("on trial: %t, rules %v, error %v", f.demand.on, f.added, err)
	}
	dp.refuses, dp.fails = nil, errors.New("no such thread")
	if err := f.AddRule(t.Context(), ssh()); err != nil || f.demand.on || len(f.told) != 1 {
		t.Errorf("on trial: %t, rules %v, error %v", f.demand.on, f.told, err)
	}
}
