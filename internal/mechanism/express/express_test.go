// SPDX-License-Identifier: Apache-2.0

package express

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// A pod that does not keep up for ten seconds has its paths evaluated at once, and then ever more
// rarely; one that begins to drop after a pause at once again.
func TestDropsHavePathsEvaluatedEverMoreRarely(t *testing.T) {
	var d recheck
	evaluated, last := 0, time.Duration(0)
	for now := time.Duration(0); now < 10*time.Second; now += shortcut.PollEvery {
		if d.due(true, now-last) {
			evaluated, last = evaluated+1, now
			if now == 0 && evaluated != 1 {
				t.Error("not evaluated at the first drop")
			}
		}
	}
	if evaluated < 10 || evaluated > 16 {
		t.Errorf("evaluated %d times in ten seconds, want about once a second", evaluated)
	}
	if d.due(false, time.Hour) {
		t.Error("evaluated without a drop")
	}
	if !d.due(true, 0) {
		t.Error("not evaluated at the first drop after a pause")
	}
}

// A status says that express is tried out while it is measured what there is for it.
func TestItLooksFirstWhatThereIs(t *testing.T) {
	e := New(nil, nil, governor.Auto, time.Time{})
	now := time.Unix(1_800_000_000, 0)
	if e.Report()[0].Trying {
		t.Error("it measures an idle node")
	}
	for range 2 { // no core is short of time for a second yet
		e.gov.Step(now, governor.ExpressWindow{Saturated: 1, Paths: 1})
		now = now.Add(2 * time.Second)
	}
	if !e.Report()[0].Trying {
		t.Errorf("it does not measure beside a saturated core: %+v", e.gov.Last())
	}
}

// fixture is a node without devices, whose kernel side remembers what it was told last.
type fixture struct {
	*Express
	*mechanismtest.Host
	kernel
	trials *trial.Trials
	now    time.Time
}

type kernel struct {
	takes, held, unread bool
	fails               error // of the next that is asked
}

func (k *kernel) AttachXDP(datapath.Device) (io.Closer, error)            { return nil, errors.ErrUnsupported }
func (k *kernel) AddPath(datapath.ExpressKey, datapath.ExpressPath) error { return nil }
func (k *kernel) WithdrawPath(datapath.ExpressKey) error                  { return nil }
func (k *kernel) ClosePath(datapath.ExpressKey) error                     { return nil }
func (k *kernel) SetExpress(on bool) error                                { k.takes = on; return nil }
func (k *kernel) HoldExpress(on bool) error                               { k.held = on; return nil }
func (k *kernel) CountUnread(on bool) error                               { k.unread = on; return nil }
func (k *kernel) ExpressUnfit() (map[string]uint64, error)                { return nil, nil }
func (k *kernel) ExpressDrops() (uint64, error)                           { return 0, nil }
func (k *kernel) Counters() (datapath.Counters, error)                    { return datapath.Counters{}, nil }
func (k *kernel) FixSenders(map[datapath.Sender]netip.Addr) (err error) {
	err, k.fails = k.fails, nil
	return err
}

func (f *fixture) Readings() (l node.Reader, _ map[plan.Setting]plan.Owned) { return l, nil }
func (f *fixture) Cookie() uint64                                           { return 1 }
func (f *fixture) Places() *xdp.Places                                      { return &xdp.Places{} }
func (f *fixture) Found(uint64) bool                                        { return true }
func (f *fixture) Passed(context.Context) error                             { return nil }
func (f *fixture) PriorityOnNIC() bool                                      { return false }
func (f *fixture) PriorityCounters() (p datapath.PriorityCounters, _ error) { return p, nil }
func (f *fixture) Split() bool                                              { return false }
func (f *fixture) Aggregation() governor.State                              { return governor.Standby }
func (f *fixture) AggregationMode() governor.Mode                           { return governor.Off }
func (f *fixture) Trials() *trial.Trials                                    { return f.trials }
func (f *fixture) BeginCensus() (datapath.FlowCounts, error)                { return nil, errors.ErrUnsupported }

func newFixture(mode governor.Mode) *fixture {
	f := &fixture{Host: mechanismtest.New(map[plan.Setting]string{}), now: time.Unix(1_800_000_000, 0)}
	f.Express = New(f, &f.kernel, mode, f.now)
	f.trials = trial.NewTrials(slog.New(slog.DiscardHandler), func(trial.Share, []int) (trial.Totals, error) { return trial.Totals{}, nil }, f.Tries()...)
	return f
}

// after steps once, so much later, and asks what a status says.
func (f *fixture) after(t *testing.T, d time.Duration, state control.MechanismState, reason string) {
	t.Helper()
	f.now = f.now.Add(d)
	if err := f.Step(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	if m := f.Report()[0]; m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %s, %s; want %s, %s", m.State, m.Reason, state, reason)
	}
}

func TestItWatchesNothingOnAnIdleNode(t *testing.T) {
	f := newFixture(governor.Auto)
	f.IsAwake = false
	f.after(t, time.Second, control.Standby, "hardly a packet comes")
	if f.Acts() || f.Changed() != nil {
		t.Error("it watches namespaces of an idle node")
	}
	f.IsAwake = true
	f.after(t, time.Second, control.Standby, "as soon as there is a pod")
	if !f.Acts() || f.Changed() == nil {
		t.Error("it does not watch although packets come")
	}
	f.IsAwake = false
	f.after(t, time.Second, control.Standby, "hardly a packet comes")
}

func TestSwitchedOffItLeavesNoTrace(t *testing.T) {
	f := newFixture(governor.Forced)
	f.after(t, time.Second, control.Standby, "as soon as there is a pod")
	f.takes, f.held, f.unread = true, true, true
	f.Configure(governor.Off)
	f.after(t, time.Second, control.Off, "switched off")
	if f.takes || f.held || f.unread || f.Acts() {
		t.Errorf("frames take paths: %t, held: %t, unread counted: %t, acts: %t", f.takes, f.held, f.unread, f.Acts())
	}
}

func TestWhatTheKernelRefusesIsTriedAgain(t *testing.T) {
	f := newFixture(governor.Forced)
	f.fails = errors.New("no room")
	f.after(t, time.Second, control.Standby, "tried again every 10s: no room")
	if f.Acts() {
		t.Error("it acts although the kernel refused")
	}
	f.after(t, mechanism.RetryAfter-time.Millisecond, control.Standby, "no room")
	f.after(t, 2*time.Millisecond, control.Standby, "as soon as there is a pod")
}
