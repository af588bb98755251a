// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
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
)

// fixture is a node with a NIC and a tunnel, whose kernel side is a counter.
type fixture struct {
	*Aggregate
	*mechanismtest.Host
	rate    float64
	express bool // frames go straight to pods
	unfit   map[plan.Target]string
	lanes   bool // priority's may hold packets
	apart   bool // which have numbers
	fails   error
	program program
	clock   clock
	noClock error
	learned int
	now     time.Time
}

// program is a Program.
type program struct {
	loaded bool
	frame  int // the longest that comes whole
	datapath.AggregateCounters
}

func (p *program) Attach(datapath.Device) (io.Closer, error) { return io.NopCloser(nil), nil }

func (p *program) AttachNIC(datapath.Device) (io.Closer, error) { return io.NopCloser(nil), nil }

func (p *program) Fits(frame int) error { p.frame = frame; return nil }

func (p *program) Counters() (datapath.AggregateCounters, error) { return p.AggregateCounters, nil }

func (p *program) Close() error { p.loaded = false; return nil }

func (f *fixture) Rate(time.Time) (float64, error) { return f.rate, nil }

func (f *fixture) Traces() bool { return true }

func (f *fixture) LoadClock() (Clock, error) {
	if f.noClock != nil {
		return nil, f.noClock
	}
	f.clock.runs = true
	return &f.clock, nil
}

func (f *fixture) Busiest(int, func(node.DevKey) bool) []node.Tunnel { return f.Node.Tunnels }

func (f *fixture) SkipsTunnels() bool { return f.express }

func (f *fixture) HasLanes() bool { return f.lanes }

func (f *fixture) Relearn() { f.learned++ }

func (f *fixture) LoadAggregation() (Program, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	f.program = program{loaded: true}
	return &f.program, nil
}

func (f *fixture) SetApart(on bool) (fresh bool, err error) {
	fresh, f.apart = on && !f.apart, on
	return fresh, nil
}

// clock is a Clock.
type clock struct {
	runs bool
	datapath.Received
}

func (c *clock) Read() (datapath.Received, error) { return c.Received, nil }

func (c *clock) Close() error { c.runs = false; return nil }

var (
	nic    = plan.Target{NetnsCookie: 1, Ifindex: 2, Name: "eth0"}
	tunnel = plan.Target{NetnsCookie: 1, Ifindex: 3, Name: "vx0"}
	port   = plan.Target{NetnsCookie: 1, Ifindex: 4, Name: "eth1"}
)

// has reads the fixture's devices.
func (f *fixture) has(owned map[plan.Setting]plan.Owned, _ bool) (plan.AggregateInput, error) {
	in := plan.AggregateInput{Owned: owned}
	add := func(to *[]plan.Aggregator, d node.Dev) {
		t := plan.Target(d)
		*to = append(*to, plan.Aggregator{Target: t, GRO: "on", List: "off", Forwarding: f.Values[plan.Aggregates(t)], Unfit: f.unfit[t]})
	}
	for _, d := range f.Node.Receivers() {
		add(&in.Underlays, d)
	}
	for _, t := range f.Node.Tunnels {
		add(&in.Tunnels, t.Dev)
	}
	return in, nil
}

// receives has these receive for the fixture's NIC.
func (f *fixture) receives(devs ...plan.Target) {
	u := node.Underlay{Dev: node.Dev(nic)}
	for _, t := range devs {
		u.Receivers = append(u.Receivers, node.Receiver{Dev: node.Dev(t)})
	}
	f.Node.Underlays = []node.Underlay{u}
}

func newFixture(mode governor.Mode) *fixture {
	// Ahead of the machine's clock, by which scans are paced.
	f := &fixture{rate: 1e5, now: time.Now().Add(time.Hour), unfit: map[plan.Target]string{}}
	f.Host = mechanismtest.New(map[plan.Setting]string{plan.Aggregates(nic): "off", plan.Aggregates(tunnel): "off"})
	f.Node.Tunnels = []node.Tunnel{{Dev: node.Dev(tunnel)}}
	f.receives(nic)
	f.Aggregate = New(f, mode)
	f.reads = f.has
	return f
}

// windows steps through so many of 100 ms. joined is the part of the packets that super-packets carry, or could.
func (f *fixture) windows(t *testing.T, n int, joined float64) {
	t.Helper()
	for range n {
		f.now = f.now.Add(100 * time.Millisecond)
		const packets = 10_000
		f.program.Packets += packets
		f.program.UDP += uint64(joined * packets)
		if f.Values[plan.Aggregates(nic)] == "on" || f.Values[plan.Aggregates(tunnel)] == "on" {
			f.program.Datagrams += uint64(joined * packets)
			f.program.Supers += uint64(joined * packets / 10)
			f.clock.Busy += 50 * time.Millisecond
		} else {
			f.program.Follows += uint64(joined * packets)
			f.program.Together += uint64(joined * packets)
			f.clock.Busy += 80 * time.Millisecond
		}
		if err := f.Step(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) is(t *testing.T, loaded bool, state control.MechanismState, reason string) {
	t.Helper()
	if f.program.loaded != loaded || (f.dp != nil) != loaded {
		t.Errorf("its program is there: %t, and it says %t; want %t", f.program.loaded, (f.dp != nil), loaded)
	}
	if m := f.Report()[0]; m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %s, %s; want %s, %s", m.State, m.Reason, state, reason)
	}
}

// joins tells where GRO joins datagrams.
func (f *fixture) joins(t *testing.T, on ...plan.Target) {
	t.Helper()
	for _, dev := range []plan.Target{nic, tunnel, port} {
		if is := f.Values[plan.Aggregates(dev)] == "on"; is != slices.Contains(on, dev) {
			t.Errorf("%s joins datagrams: %t", dev, is)
		}
	}
}

func TestWithoutTrafficNothingIsLoaded(t *testing.T) {
	f := newFixture(governor.Auto)
	f.rate = 100
	f.windows(t, 50, 0)
	f.is(t, false, control.Standby, "")
}

// It is watched first whether datagrams come in a row.
func TestItIsWatchedBeforeAnythingIsJoined(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 1, 1)
	if f.State() != governor.Parked || !f.Report()[0].Trying || !f.program.loaded {
		t.Errorf("it watches: %t, its program: %t", f.State() == governor.Parked, f.program.loaded)
	}
	f.joins(t)
	f.windows(t, 50, 1)
	f.is(t, true, control.Active, "as super-packets")
	f.joins(t, nic, tunnel)
	if f.State() == governor.Parked {
		t.Error("it still watches")
	}
}

// What receiving costs is measured for as long as something is judged by it, and the other mechanisms wait.
func TestCostsAreMeasuredWhileItIsJudged(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 2, 1)
	if f.clock.runs {
		t.Error("the clock runs before it is known whether it may pay")
	}
	f.windows(t, 8, 1)
	f.is(t, true, control.Active, "")
	if !f.clock.runs || !f.Tracing().Steady || f.State() != governor.Parked || !f.Report()[0].Trying {
		t.Errorf("just begun, the clock runs: %t, polls are traced: %t; to others it is %v", f.clock.runs, f.Tracing().Steady, f.State())
	}
	f.windows(t, 20, 1)
	if f.clock.runs || f.Tracing().Steady || f.State() != governor.Active || f.Report()[0].Trying {
		t.Errorf("it paid, the clock runs: %t, polls are traced: %t; to others it is %v", f.clock.runs, f.Tracing().Steady, f.State())
	}
	f = newFixture(governor.Auto)
	f.windows(t, 8, 1)
	if _, err := f.Stop(t.Context()); err != nil || f.clock.runs {
		t.Errorf("stopped, the clock runs: %t; %v", f.clock.runs, err)
	}
}

// A kernel without that clock has it stand by: what cannot be measured has not paid.
func TestWithoutAClockItDoesNotStay(t *testing.T) {
	f := newFixture(governor.Auto)
	f.noClock = errors.New("no such tracepoint")
	f.windows(t, 80, 1)
	f.is(t, true, control.Standby, "whether it pays could not be measured; looked at again in 30s")
	f.joins(t)
}

// While it stands by the program on the tunnels counts on, and no rule is looked at: other traffic is seen at once.
func TestItCountsWhileItStandsBy(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 20, 0)
	f.is(t, true, control.Standby, "0 % of the overlay's packets are datagrams that come in a row")
	f.reads = func(map[plan.Setting]plan.Owned, bool) (plan.AggregateInput, error) {
		t.Error("rules are read")
		return plan.AggregateInput{}, nil
	}
	f.windows(t, 300, 0)
	if f.clock.runs || f.Tracing().Steady {
		t.Errorf("the clock runs: %t, polls are traced: %t", f.clock.runs, f.Tracing().Steady)
	}
	f.reads = f.has
	f.windows(t, 14, 1)
	f.is(t, true, control.Active, "")
	f.joins(t, nic, tunnel)
	f.windows(t, 40, 0)
	f.is(t, true, control.Standby, "0 % of the overlay's packets are datagrams that come in a row")
	f.joins(t)
	f.rate = 100
	f.windows(t, 120, 0)
	f.is(t, false, control.Standby, "fewer than")
}

func TestAggregationIsTakenOffWhenPacketsStop(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 50, 1)
	f.rate = 0
	f.windows(t, 600, 0)
	f.is(t, false, control.Standby, "")
}

// While frames go straight to pods no tunnel sees them: that is no reason to end.
func TestExpressDoesNotEndAggregation(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 50, 1)
	f.rate, f.express = 0, true
	f.windows(t, 600, 0)
	f.is(t, true, control.Active, "as super-packets")
	f.joins(t, nic, tunnel)
}

func TestAProgramThatTheKernelRefusesIsTriedAgain(t *testing.T) {
	f := newFixture(governor.Forced)
	f.fails = errors.New("no memory")
	f.windows(t, 1, 0)
	f.is(t, false, control.Standby, "tried again every 10s: no memory")
	f.fails = nil
	f.windows(t, int(mechanism.RetryAfter/(100*time.Millisecond))-1, 0)
	f.is(t, false, control.Standby, "no memory")
	f.windows(t, 2, 0)
	if !(f.dp != nil) {
		t.Error("it was not tried again")
	}
}

func TestCountersOutliveTheProgram(t *testing.T) {
	f := newFixture(governor.Forced)
	f.windows(t, 3, 1)
	was, err := f.counters()
	if err != nil || was.Datagrams == 0 {
		t.Fatal(was, err)
	}
	if _, err := f.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := f.counters(); now != was || err != nil {
		t.Errorf("%+v after it was stopped, %+v before: %v", now, was, err)
	}
}

// A device that may not is left alone, and the others join.
func TestADeviceThatMayNotJoinIsLeftAlone(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(*fixture)
		why    string
	}{
		"a rule":             {func(f *fixture) { f.unfit[nic] = "left alone: a rule" }, "left alone: a rule"},
		"the kernel refuses": {func(f *fixture) { f.Refuses[nic] = "not permitted" }, "left alone: not permitted"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(governor.Auto)
			tt.change(f)
			f.windows(t, 50, 1)
			f.is(t, true, control.Active, "")
			f.joins(t, tunnel)
			if s := f.Skipped(); len(s) != 1 || s[0].Target != nic || s[0].Reason != tt.why {
				t.Errorf("left alone: %+v", s)
			}
		})
	}
}

// A device that has left the overlay and lives on, as a port taken out of a bond, gets back what it had: no rule is
// looked for there any more.
func TestADeviceThatLeavesTheOverlayJoinsNoMore(t *testing.T) {
	f := newFixture(governor.Auto)
	f.Values[plan.Aggregates(port)] = "off"
	f.receives(nic, port)
	f.windows(t, 50, 1)
	f.joins(t, nic, port, tunnel)
	f.receives(nic)
	if err := f.Rescanned(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.windows(t, 1, 1)
	f.joins(t, nic, tunnel)
	f.is(t, true, control.Active, "")
	if f.learned != 2 {
		t.Errorf("what the stages cost was learned anew %d times", f.learned)
	}
}

// A rule that comes is followed at once, not with the next window; one that leaves no device ends it.
func TestARuleThatComesHasADeviceJoinNoMore(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 50, 1)
	f.joins(t, nic, tunnel)
	f.unfit[nic] = "left alone: a rule"
	if err := f.Follow(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
	f.joins(t, tunnel)
	f.unfit[tunnel] = "left alone: another rule"
	f.windows(t, 2, 1)
	f.is(t, false, control.Standby, "a rule; looked at again")
	f.joins(t)
	if len(f.Skipped()) != 2 {
		t.Errorf("left alone: %+v", f.Skipped())
	}
}

// Where none may, it stands by, says why, and looks again after a while.
func TestWhereNoDeviceMayJoinItStandsBy(t *testing.T) {
	f := newFixture(governor.Auto)
	f.unfit[nic], f.unfit[tunnel] = "left alone: a rule", "left alone: a rule"
	f.windows(t, 50, 1)
	f.is(t, false, control.Standby, "a rule; looked at again")
	if len(f.Skipped()) != 2 {
		t.Errorf("left alone: %+v", f.Skipped())
	}
	clear(f.unfit)
	f.windows(t, 200, 1)
	f.is(t, false, control.Standby, "a rule")
	f.windows(t, 200, 1)
	f.is(t, true, control.Active, "")
	f.joins(t, nic, tunnel)
	// Forced, it stays, and says that no device can.
	f.unfit[nic], f.unfit[tunnel] = "left alone: a rule", "left alone: a rule"
	f.Configure(governor.Forced)
	f.check.Again()
	f.windows(t, 1, 1)
	f.is(t, true, control.Standby, "no underlay and no tunnel can do it")
	f.joins(t)
}

// A flow that GRO would not keep in order ends it before the window does, also where it is forced, and keeps it away.
func TestAFlowThatGROTakesInPartEndsIt(t *testing.T) {
	for _, mode := range []governor.Mode{governor.Auto, governor.Forced} {
		f := newFixture(mode)
		f.windows(t, 50, 1)
		f.joins(t, nic, tunnel)
		if err := f.Poll(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
		f.joins(t, nic, tunnel)
		f.program.Mixed++
		if err := f.Poll(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
		f.is(t, false, control.Standby, "which would overtake them")
		f.joins(t)
		f.windows(t, 5000, 1)
		f.is(t, false, control.Standby, "which would overtake them")
		f.windows(t, 2000, 1)
		f.joins(t, nic, tunnel)
	}
	// Seen while it is watched, it does not begin.
	f := newFixture(governor.Auto)
	f.windows(t, 2, 1)
	f.program.Mixed++
	f.windows(t, 50, 1)
	f.is(t, false, control.Standby, "which would overtake them")
	f.joins(t)
}

// Where a host's socket keeps GRO from joining, status says which port, and does not call it active.
func TestAHostsSocketThatTakesThePodsPortIsNamed(t *testing.T) {
	f := newFixture(governor.Auto)
	f.taken = func(port uint16) (string, error) { return fmt.Sprintf("port %d is taken", port), nil }
	f.program.Port = 53
	for range 60 {
		f.now = f.now.Add(100 * time.Millisecond)
		f.program.Packets += 10_000
		f.program.UDP += 10_000
		f.program.Follows += 9000
		f.program.Together += 9000
		f.program.Port = 53
		if err := f.Step(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
		if f.State() == governor.Active {
			t.Fatalf("active, with none joined: %+v", f.Report())
		}
	}
	f.is(t, true, control.Standby, "90 % of the overlay's packets are datagrams that come in a row, and 0 % are joined: port 53 is taken")
	// Forced, it is not asked for in each window.
	f = newFixture(governor.Forced)
	f.taken = func(uint16) (string, error) { t.Error("the host's sockets are read"); return "", nil }
	for range 3 {
		f.now = f.now.Add(100 * time.Millisecond)
		f.program.Packets += 10_000
		f.program.Follows += 9000
		if err := f.Step(t.Context(), f.now); err != nil {
			t.Fatal(err)
		}
	}
}

// The program is told what is longer than any frame that came whole.
func TestWhatDoesNotFitANICIsKnown(t *testing.T) {
	f := newFixture(governor.Forced)
	f.Node.Underlays[0].MTU = 1500
	f.Node.Tunnels[0].Underlays = []node.Dev{node.Dev(nic)}
	for local, want := range map[string]int{"192.0.2.1": 1464, "2001:db8::1": 1444} {
		f.Node.Tunnels[0].Local = netip.MustParseAddr(local)
		f.check.Again()
		f.windows(t, 1, 1)
		if f.program.frame != want {
			t.Errorf("from %s: frames up to %d come whole, want %d", local, f.program.frame, want)
		}
	}
}

// What priority's lanes hold has no numbers yet, and would be another flow to GRO.
func TestWhatLanesHoldIsHandedOnBeforeDatagramsAreJoined(t *testing.T) {
	for _, lanes := range []bool{false, true} {
		f := newFixture(governor.Forced)
		f.lanes = lanes
		f.windows(t, 1, 0)
		if lanes {
			f.joins(t)
			f.windows(t, 1, 0)
		}
		f.joins(t, nic, tunnel)
	}
}

// What the stages cost is another matter once datagrams are joined, and once they are not any more: it is learned anew
// then, and not where nothing was changed.
func TestCostsAreLearnedAnewWhereSomethingChanged(t *testing.T) {
	f := newFixture(governor.Auto)
	f.windows(t, 2, 0)
	if f.learned != 0 || f.Joined() != 0 {
		t.Errorf("learned %d times while it is watched, %.0f joined", f.learned, f.Joined())
	}
	f.windows(t, 50, 0.5)
	if f.learned != 1 || f.Joined() != 50_000 {
		t.Errorf("learned %d times, %.0f joined a second", f.learned, f.Joined())
	}
	f.Configure(governor.Off)
	f.windows(t, 1, 1)
	f.is(t, false, control.Off, "switched off")
	f.joins(t)
	if f.learned != 2 || f.apart || f.Joined() != 0 || len(f.Attached) > 0 {
		t.Errorf("learned %d times; numbers: %t, joined: %.0f, programs on %v", f.learned, f.apart, f.Joined(), f.Attached)
	}
}
