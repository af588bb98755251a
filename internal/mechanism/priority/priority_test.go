// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// fixture is a node without devices, whose kernel loads no program of priority's.
type fixture struct {
	*Priority
	*mechanismtest.Host
	now     time.Time
	cleared int // times that the NICs were cleared for it
	counted error
	census  *flows // under way, or nil
	split   bool
	told    []rules.Rule // in force, as the log has it
}

// flows is a census: one small, sparse flow that half of the packets are of.
type flows struct{ of *fixture }

func (flows) Flows() (list []datapath.FlowBrought, rest datapath.FlowBrought, err error) {
	return []datapath.FlowBrought{{Packets: 10, Bytes: 1000}}, datapath.FlowBrought{Packets: 10}, nil
}

func (c flows) End() error { c.of.census = nil; return nil }

func (f *fixture) LoadPriority() (*datapath.Priority, error)      { return nil, errors.New("no memory") }
func (f *fixture) StrayedLanes() ([]int, error)                   { return nil, nil }
func (f *fixture) EndLanes(func(int) bool) error                  { return nil }
func (f *fixture) Entries() []apply.Entry                         { return nil }
func (f *fixture) CarryOutWhole([]plan.Step) error                { return nil }
func (f *fixture) RulesChanged(_ plan.Owner, _, now []rules.Rule) { f.told = now }
func (f *fixture) Places() *xdp.Places                            { return &xdp.Places{} }
func (f *fixture) Cores() []int                                   { return []int{0, 1} }
func (f *fixture) ClearNICs(context.Context) error                { f.cleared++; return nil }
func (f *fixture) StopExpress(context.Context) error              { return nil }
func (f *fixture) Meanwhile()                                     {}
func (f *fixture) PipelineArmed() bool                            { return false }
func (f *fixture) Split() bool                                    { return f.split }
func (f *fixture) Trials() *trial.Trials {
	return trial.NewTrials(slog.New(slog.DiscardHandler), nil, f.Tries()...)
}

func (f *fixture) BeginCensus() (datapath.FlowCounts, error) {
	if f.counted != nil {
		return nil, f.counted
	}
	f.census = &flows{f}
	return f.census, nil
}

func newFixture(opts Options) *fixture {
	f := &fixture{Host: mechanismtest.New(nil), now: time.Unix(1_800_000_000, 0)}
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

// A count that fails is said, and nothing is put in place.
func TestACountThatFailsIsNoDemand(t *testing.T) {
	f := newFixture(Options{OnDemand: true})
	f.counted = errors.New("no tcx")
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
