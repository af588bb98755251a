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
	"github.com/overlane/overlane/internal/ethtool"
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
	e := newFixture(governor.Auto)
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
	trials      *trial.Trials
	now         time.Time
	aggregation governor.State
	places      *xdp.Places
	census      census
}

type kernel struct {
	takes, held, unread bool
	fails               error // of the next that is asked
	withdrawn, closed   []datapath.ExpressKey
	fixed               map[datapath.Sender]netip.Addr
	drops               uint64
	counted             datapath.Counters
	uncounted           error
}

func (k *kernel) AttachXDP(datapath.Device) (io.Closer, error)            { return nil, errors.ErrUnsupported }
func (k *kernel) AddPath(datapath.ExpressKey, datapath.ExpressPath) error { return nil }
func (k *kernel) SetExpress(on bool) error                                { k.takes = on; return nil }
func (k *kernel) HoldExpress(on bool) error                               { k.held = on; return nil }
func (k *kernel) CountUnread(on bool) error                               { k.unread = on; return nil }
func (k *kernel) ExpressUnfit() (map[string]uint64, error)                { return nil, nil }
func (k *kernel) ExpressDrops() (uint64, error)                           { return k.drops, nil }
func (k *kernel) Counters() (datapath.Counters, error)                    { return k.counted, k.uncounted }
func (k *kernel) WithdrawPath(p datapath.ExpressKey) error {
	k.withdrawn = append(k.withdrawn, p)
	return nil
}

func (k *kernel) ClosePath(p datapath.ExpressKey) error {
	k.closed = append(k.closed, p)
	return nil
}

func (k *kernel) FixSenders(fixed map[datapath.Sender]netip.Addr) (err error) {
	k.fixed = fixed
	err, k.fails = k.fails, nil
	return err
}

// features are those of the fixture's devices, of which GRO is a setting.
type features struct {
	node.Reader
	of *mechanismtest.Host
}

func (f features) Features(d node.Dev) (map[string]ethtool.Feature, error) {
	on := f.of.Values[plan.Lands(plan.Target(d))] == "on"
	return map[string]ethtool.Feature{plan.GRO: {Active: on, Requested: on}}, nil
}

func (f *fixture) Readings() (node.Reader, map[plan.Setting]plan.Owned) {
	return features{of: f.Host}, nil
}
func (f *fixture) Cookie() uint64               { return 1 }
func (f *fixture) Places() *xdp.Places          { return f.places }
func (f *fixture) Passed(context.Context) error { return nil }
func (f *fixture) PriorityOnNIC() bool          { return true } // no NIC of the fixture takes a program
func (f *fixture) PriorityCounters() (p datapath.PriorityCounters, _ error) {
	return p, nil
}
func (f *fixture) Split() bool                    { return false }
func (f *fixture) Aggregation() governor.State    { return f.aggregation }
func (f *fixture) AggregationMode() governor.Mode { return governor.Off }
func (f *fixture) Trials() *trial.Trials          { return f.trials }
func (f *fixture) BeginCensus() (datapath.FlowCounts, error) {
	f.census.begun++
	return &f.census, f.census.fails
}

// census has counted so many packets, and datagrams of them.
type census struct {
	packets, datagrams uint64
	begun, ended       int
	fails              error
}

func (c *census) Flows() (flows []datapath.FlowBrought, rest datapath.FlowBrought, err error) {
	return []datapath.FlowBrought{{Packets: c.packets, Datagrams: c.datagrams}}, rest, nil
}
func (c *census) End() error { c.ended++; return nil }

func newFixture(mode governor.Mode) *fixture {
	f := &fixture{Host: mechanismtest.New(map[plan.Setting]string{}), now: time.Unix(1_800_000_000, 0), aggregation: governor.Standby, places: places()}
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
	f.Node = mechanismtest.Served()
	f.after(t, time.Second, control.Standby, "hardly a packet comes")
	f.Node = node.Snapshot{}
	if f.Acts() || f.Changed() != nil {
		t.Error("it watches namespaces of an idle node")
	}
	f.IsAwake = true
	f.after(t, time.Second, control.Standby, "there is no VXLAN or Geneve tunnel yet")
	if !f.Acts() || f.Changed() == nil {
		t.Error("it does not watch although packets come")
	}
	f.Node = mechanismtest.Served()
	f.IsAwake = false
	f.after(t, time.Second, control.Standby, "hardly a packet comes")
}

// Where there is no path, what is missing is said, and not what comes first in a list.
func TestItSaysWhatIsMissingForAPath(t *testing.T) {
	f := newFixture(governor.Forced)
	over, why := mechanismtest.OverTUN()
	lonely := mechanismtest.Served()
	lonely.Pods = nil
	for _, tt := range []struct {
		snap node.Snapshot
		why  string
	}{{over, why}, {lonely, "there is no pod yet"}, {node.Snapshot{}, "there is no VXLAN or Geneve tunnel yet"}} {
		f.evaluates = func(eligibility) ([]*path, error) { return nil, nil }
		for _, f.IsAwake = range []bool{true, false} {
			f.Node = tt.snap
			f.after(t, time.Second, control.Standby, tt.why)
		}
	}
}

func TestSwitchedOffItLeavesNoTrace(t *testing.T) {
	f := newFixture(governor.Forced)
	f.after(t, time.Second, control.Standby, "there is no VXLAN or Geneve tunnel yet")
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
	f.after(t, 2*time.Millisecond, control.Standby, "there is no VXLAN or Geneve tunnel yet")
}
