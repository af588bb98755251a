// SPDX-License-Identifier: Apache-2.0

package bridgehooks

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// fixture is a node with one bridge, whose frames netfilter sees.
type fixture struct {
	*Hooks
	host *mechanismtest.Host
	used string // by what
	err  error  // of the scan of it
	now  time.Time
}

var setting = plan.CallsNetfilter(7, "bridge-nf-call-iptables")

func newFixture(on bool) *fixture {
	f := &fixture{host: mechanismtest.New(map[plan.Setting]string{setting: "1"}), now: time.Unix(1_800_000_000, 0)}
	f.Hooks = New(f.host, on, f.now)
	f.calls = func(node.Snapshot, *shortcut.Watchers) ([]plan.BridgeCall, error) {
		return []plan.BridgeCall{{Setting: setting, Value: f.host.Values[setting], Used: f.used}}, f.err
	}
	return f
}

// after steps once, so much later.
func (f *fixture) after(t *testing.T, d time.Duration) *fixture {
	t.Helper()
	f.now = f.now.Add(d)
	if err := f.Step(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	return f
}

// is asks for the value of the setting, and what a status says.
func (f *fixture) is(t *testing.T, value string, state control.MechanismState, reason string) {
	t.Helper()
	if got := f.host.Values[setting]; got != value {
		t.Errorf("the setting is %q, want %q", got, value)
	}
	if m := f.Report()[0]; m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %s, %s; want %s, %s", m.State, m.Reason, state, reason)
	}
}

func TestUnusedHooksAreLeftOutWhilePacketsCome(t *testing.T) {
	f := newFixture(true)
	f.host.IsAwake = false
	f.after(t, time.Second).is(t, "1", control.Standby, "hardly a packet comes")
	f.host.IsAwake = true
	f.after(t, time.Second).is(t, "0", control.Active, "1 of 1 settings by which bridges call netfilter are off")
	f.host.IsAwake = false
	f.after(t, time.Second).is(t, "1", control.Standby, "hardly a packet comes")
}

func TestItDoesNothingWhenSwitchedOff(t *testing.T) {
	f := newFixture(false)
	f.after(t, time.Second).is(t, "1", control.Off, "left as they are")
	f.Configure(true)
	f.after(t, time.Second).is(t, "0", control.Active, "")
	f.Configure(false)
	f.after(t, time.Second).is(t, "1", control.Off, "left as they are")
}

// A rule finds the hooks called at once, and hooks that were used a moment ago are not left out again.
func TestARuleGetsItsHooksBackForAWhile(t *testing.T) {
	f := newFixture(true)
	f.after(t, time.Second).is(t, "0", control.Active, "")
	f.used = "a rule"
	if err := f.Follow(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	f.is(t, "1", control.Standby, "a rule")
	f.used = ""
	f.after(t, calmFor-time.Millisecond).is(t, "1", control.Standby, "")
	f.after(t, mechanism.CheckEvery).is(t, "0", control.Active, "")
}

func TestWhatCannotBeScannedLeavesNoTrace(t *testing.T) {
	f := newFixture(true)
	f.after(t, time.Second).is(t, "0", control.Active, "")
	f.err = errors.New("out of files")
	f.after(t, mechanism.CheckEvery).is(t, "1", control.Standby, "tried again every 10s: out of files")
	f.err = nil
	f.after(t, mechanism.RetryAfter-time.Millisecond).is(t, "1", control.Standby, "tried again")
	f.after(t, 2*time.Millisecond).is(t, "0", control.Active, "")
}

func TestASettingThatTheKernelRefusesIsSaid(t *testing.T) {
	f := newFixture(true)
	f.host.Refuses[setting.Target] = "read-only"
	f.after(t, time.Second).is(t, "1", control.Standby, "read-only")
}

// What cannot be brought back in a namespace that has no tunnel at a bridge any more is no reason to call the hooks of
// others. Where a rule waits for it, it is.
func TestWhatIsKeptBesideStopsNothing(t *testing.T) {
	f := newFixture(true)
	beside := plan.CallsNetfilter(8, setting.Attr)
	f.host.Values[beside] = "1"
	used := ""
	here := []plan.Setting{setting, beside}
	f.calls = func(node.Snapshot, *shortcut.Watchers) (calls []plan.BridgeCall, err error) {
		for _, s := range here {
			calls = append(calls, plan.BridgeCall{Setting: s, Value: f.host.Values[s], Used: used})
		}
		return calls, nil
	}
	f.after(t, time.Second).is(t, "0", control.Active, "2 of 2 settings")
	f.host.Keeps[beside.Target] = "not seen"
	here = here[:1]
	f.after(t, mechanism.CheckEvery).is(t, "0", control.Active, "1 of 1 settings")
	f.host.Keeps[setting.Target], used = "refused", "a rule"
	f.after(t, mechanism.CheckEvery).is(t, "0", control.Standby, "could not be put in place")
}

func TestStopTakesBackOnceWhatWasChanged(t *testing.T) {
	f := newFixture(true)
	f.after(t, time.Second)
	for range 2 {
		if _, err := f.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.host.Values[setting] != "1" || f.host.Restored != 1 || f.Polls() {
		t.Errorf("the setting is %q after %d restores, acts: %t", f.host.Values[setting], f.host.Restored, f.Polls())
	}
}

// What another program has switched on again stays on, and does not count as left out.
func TestAHookThatAnotherProgramWantsStaysCalled(t *testing.T) {
	f := newFixture(true)
	f.after(t, time.Second).is(t, "0", control.Active, "")
	f.host.Values[setting] = "1"
	f.after(t, mechanism.CheckEvery).is(t, "1", control.Standby, "another program has switched it on again")
}

func TestAStatusSaysWhatIsLeftOut(t *testing.T) {
	other := plan.CallsNetfilter(7, "bridge-nf-call-arptables")
	for what, tt := range map[string]struct {
		calls  []plan.BridgeCall
		state  control.MechanismState
		reason string
	}{
		"no module":   {[]plan.BridgeCall{{Setting: setting}}, control.Standby, "no bridge with a tunnel calls netfilter"},
		"off already": {[]plan.BridgeCall{{Setting: setting, Value: "0"}}, control.Standby, "nothing is to be left out"},
		"one of two is used": {
			[]plan.BridgeCall{{Setting: setting, Value: "1"}, {Setting: other, Value: "1", Used: "a rule"}}, control.Active,
			"1 of 2 settings by which bridges call netfilter are off: the hooks are unused; " + other.String() + ": a rule",
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(true)
			f.calls = func(node.Snapshot, *shortcut.Watchers) ([]plan.BridgeCall, error) { return tt.calls, nil }
			f.after(t, time.Second)
			if m := f.Report()[0]; m.State != tt.state || m.Reason != tt.reason {
				t.Errorf("status: %s, %s; want %s, %s", m.State, m.Reason, tt.state, tt.reason)
			}
		})
	}
}

// What makes no event is noticed by the next check, and with a new snapshot at once.
func TestANewSnapshotHasAllChecked(t *testing.T) {
	f := newFixture(true)
	f.after(t, time.Second).is(t, "0", control.Active, "")
	f.used = "a rule"
	f.after(t, time.Millisecond).is(t, "0", control.Active, "")
	if err := f.Rescanned(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.after(t, time.Millisecond).is(t, "1", control.Standby, "a rule")
}
