// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/mechanism/mechanismtest"
	"github.com/overlane/overlane/internal/names"
	"github.com/overlane/overlane/internal/netns"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// fixture is a node of two cores and three devices, whose kernel side remembers what it was told last.
type fixture struct {
	*Pipeline
	*mechanismtest.Host
	kernel
	now time.Time

	cores       []int
	onNIC       bool
	latency     []int // cores
	aggregation governor.State
	backlogs    map[int]uint64 // what they have dropped
	places      *xdp.Places
}

// kernel does what is in place and steered; what else it is asked for is a fault of the test.
type kernel struct {
	Kernel
	fails   error
	lanes   map[datapath.Stage][]int
	told    map[int][]datapath.Stage
	counted datapath.Counters
	was     []datapath.Core
	merges  bool // a packet waits for another
	entered uint64
}

func (k *kernel) CPUs() int                                       { return 2 }
func (k *kernel) Cores() ([]datapath.Core, error)                 { return k.was, nil }
func (k *kernel) LanePackets(datapath.Stage, int) (uint64, error) { return 100, nil }
func (k *kernel) SetNeutral(bool) error                           { return nil }
func (k *kernel) SetMergeDevice(int) error                        { return nil }
func (k *kernel) SetSplit(datapath.Split) error                   { return nil }
func (k *kernel) ForgetSplit() error                              { return nil }
func (k *kernel) Counters() (datapath.Counters, error)            { return k.counted, nil }
func (k *kernel) Merges() bool                                    { return true }
func (k *kernel) Resequenced() (uint64, bool, error)              { return k.entered, k.merges, nil }
func (k *kernel) PodSent(uint64) (uint64, error)                  { return k.entered, nil }
func (k *kernel) SetBranches(datapath.Stage, []datapath.Branches, func(int) int) error {
	return nil
}
func (k *kernel) SetLeaving(datapath.Stage, func(int) bool) error { return nil }

// program is one that the fixture has attached.
type program struct{}

func (program) Close() error { return nil }

func (k *kernel) AttachUnderlay(datapath.Device) (io.Closer, error)      { return program{}, nil }
func (k *kernel) AttachUnderlaySplit(datapath.Device) (io.Closer, error) { return program{}, nil }
func (k *kernel) AttachTunnel(datapath.Device) (io.Closer, error)        { return program{}, nil }
func (k *kernel) AttachPod(datapath.Device) (io.Closer, error)           { return program{}, nil }
func (k *kernel) AttachPodLeftAlone(datapath.Device) (io.Closer, error)  { return program{}, nil }

func (k *kernel) SetLanes(s datapath.Stage, cores []int, _ ...int) error {
	k.lanes[s] = cores
	return k.fails
}

func (k *kernel) Steer(core int, stages ...datapath.Stage) error {
	k.told[core] = stages
	return nil
}

// readings are of devices with the masks that the kernel has.
type readings struct {
	node.Reader
	*fixture
}

func (r readings) Settings(d node.Dev) (node.Settings, error) {
	return node.Settings{RPSCPUs: []string{r.Values[mask(d)]}, RPSFlowCnt: []uint32{0}}, nil
}
func (readings) Features(node.Dev) (map[string]ethtool.Feature, error) { return nil, nil }
func (readings) Namespace(uint64) (*netns.Handle, error)               { return nil, node.ErrGone }

func (f *fixture) Readings() (node.Reader, map[plan.Setting]plan.Owned) { return readings{nil, f}, nil }
func (f *fixture) Entries() []apply.Entry                               { return nil }
func (f *fixture) SetTunnels(node.Snapshot) error                       { return nil }
func (f *fixture) Places() *xdp.Places                                  { return f.places }
func (f *fixture) Passed(context.Context) error                         { return nil }
func (f *fixture) Offline(int) bool                                     { return false }
func (f *fixture) Cores() []int                                         { return f.cores }
func (f *fixture) BacklogDrops() (map[int]uint64, error)                { return f.backlogs, nil }
func (f *fixture) Window() time.Duration                                { return 0 }
func (f *fixture) Trials() *trial.Trials {
	none := func(trial.Share, []int) (trial.Totals, error) { return trial.Totals{}, nil }
	return trial.NewTrials(slog.New(slog.DiscardHandler), none, f.Tries()...)
}
func (f *fixture) PriorityOnNIC() bool         { return f.onNIC }
func (f *fixture) PriorityCores() []int        { return f.latency }
func (f *fixture) Aggregation() governor.State { return f.aggregation }
func (f *fixture) Joined() float64             { return 0 }
func (f *fixture) Express(node.Pod) bool       { return false }
func (f *fixture) Meanwhile()                  {}

func newFixture(opts Options) *fixture {
	memory, _ := xdp.Remember(nil)
	f := &fixture{
		places: xdp.New(nil, memory, slog.New(slog.DiscardHandler)),
		Host:   mechanismtest.New(map[plan.Setting]string{}), now: time.Unix(1_800_000_000, 0), cores: []int{0, 1}, aggregation: governor.Standby,
		kernel: kernel{lanes: map[datapath.Stage][]int{}, told: map[int][]datapath.Stage{}},
	}
	f.Node = mechanismtest.Served()
	f.Values[mask(f.Node.Tunnels[0].Dev)], f.Values[mask(f.Node.Pods[0].Peer)] = "0", "0"
	opts.Tier, opts.Limits = governor.TC, governor.DefaultLimits()
	f.Pipeline = New(f, &f.kernel, opts)
	return f
}

// after takes a window, so much later, in which core 0 polls packets of the overlay.
func (f *fixture) after(t *testing.T, d time.Duration) {
	t.Helper()
	f.now = f.now.Add(d)
	in := governor.Input{Now: f.now, Configured: f.cores, Cores: map[int]governor.Core{0: {Rate: 2e5, Overlay: 2e5}, 1: {}}}
	if err := f.Decide(t.Context(), in); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) is(t *testing.T, armed bool, state control.MechanismState, reason string) {
	t.Helper()
	if f.Armed() != armed {
		t.Errorf("in place: %t, want %t", f.Armed(), armed)
	}
	if m := f.Report()[0]; m.Name != "pipeline" || m.State != state || !strings.Contains(m.Reason, reason) {
		t.Errorf("status: %+v; want %s, %s", m, state, reason)
	}
}

// Forced, it is in place as soon as a core polls, with lanes on the other one.
func TestForcedItSteersToTheCoreThatDoesNotPoll(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	f.after(t, time.Second)
	f.is(t, true, control.Active, "forced")
	if got := f.lanes[datapath.Tunnel]; !slices.Equal(got, []int{1}) {
		t.Errorf("the tunnel stage's lanes are on cores %v", got)
	}
	if got := f.told[0]; !slices.Contains(got, datapath.Tunnel) {
		t.Errorf("core 0 steers %v", got)
	}
	if f.Steers() != mechanism.EachWindow || !f.Tracing().Always {
		t.Error("flows are steered, and would not drain without a daemon that decides")
	}
}

// Costs that were measured while the machine stood still say that nothing is worth it. Forced, it acts, as plan shows it.
func TestForcedItAsksForNoMeasuredCosts(t *testing.T) {
	for _, costs := range []governor.Costs{{NIC: 100_000, Tunnel: 100, Pod: 100}, {NIC: 100, Tunnel: 100, Pod: 100_000}} {
		f := newFixture(Options{Mode: governor.Forced})
		in := governor.Input{Now: f.now, Configured: f.cores, Cores: map[int]governor.Core{0: {Rate: 2e5, Overlay: 2e5}, 1: {}}, Costs: costs}
		if err := f.Decide(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		f.is(t, true, control.Active, "forced")
		if got := f.lanes[datapath.Tunnel]; !slices.Equal(got, []int{1}) {
			t.Errorf("costs %+v: the tunnel stage's lanes are on cores %v", costs, got)
		}
	}
}

// What the kernel refuses is tried again after a pause, and leaves nothing in place.
func TestWhatTheKernelRefusesIsTriedAgain(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	f.fails = errors.New("no memory")
	f.after(t, time.Second)
	f.fails = nil
	f.is(t, false, control.Standby, "no memory")
	f.after(t, time.Second)
	f.is(t, false, control.Standby, "no memory")
	f.after(t, mechanism.RetryAfter)
	f.is(t, true, control.Active, "forced")
}

// A daemon that is told to end, while it waits until the programs have seen a packet, spreads no flow. That is no
// failure, and what is in place already stays for Stop, which waits for flows.
func TestADaemonThatEndsMeanwhileSpreadsNothing(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := f.Decide(ctx, governor.Input{Now: f.now, Configured: f.cores, Cores: map[int]governor.Core{0: {Rate: 2e5, Overlay: 2e5}, 1: {}}})
	if len(f.lanes) > 0 || len(f.told) > 0 {
		t.Errorf("lanes of each stage %v; each core steers %v", f.lanes, f.told)
	}
	if err != nil || f.err != nil || !f.retry.IsZero() {
		t.Errorf("told as a failure: %v, %v", err, f.err)
	}
	if !f.Armed() {
		t.Error("taken off without a wait")
	}
	if _, err := f.Stop(t.Context()); err != nil || f.Armed() {
		t.Errorf("in place after Stop: %t, %v", f.Armed(), err)
	}
}

// A core that is to take nothing any more has the pipeline taken off; as long as flows are on their way nothing goes.
func TestItStaysInPlaceUntilFlowsAreDrained(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	f.after(t, time.Second)
	f.cores = []int{0}
	f.after(t, time.Second)
	if !f.Armed() || f.Steers() != mechanism.NotSteered {
		t.Errorf("in place: %t, steers: %v; want flows called back, and all in place until they are drained", f.Armed(), f.Steers())
	}
}

// Flows leave the tunnel stage before the pod stage. They are drained when nothing is sent to a lane of any stage, flows
// that were split are whole, and nothing is left at a resequencer.
func TestFlowsDrainFromTheTunnelStageFirst(t *testing.T) {
	f := newFixture(Options{Mode: governor.Forced})
	drained := func(windows int) (is bool) {
		t.Helper()
		for range windows {
			f.now = f.now.Add(datapath.Settled)
			var err error
			if is, err = f.actuator.lookDrained(f.now); err != nil {
				t.Fatal(err)
			}
		}
		return is
	}
	f.merges = true
	for what, sent := range map[string]*uint64{
		"to lanes of the tunnel stage": &f.counted.Steered, "to lanes of the nic stage": &f.counted.XDPLane,
		"of flows that are split": &f.counted.Split,
	} {
		for range 5 {
			*sent++
			drained(1)
		}
		if len(f.told) > 0 {
			t.Errorf("pods' packets go to no lanes any more, while packets are sent %s", what)
		}
	}
	for range 5 {
		f.entered++
		drained(1)
	}
	if got, told := f.told[1]; !told || len(got) > 0 {
		t.Errorf("core 1 steers %v: %t; want none, once the tunnel stage is left", got, told)
	}
	if drained(5) {
		t.Error("flows are drained, and a packet waits at a resequencer")
	}
	f.merges = false
	for what, sent := range map[string]*uint64{"is split": &f.counted.Split, "goes to a lane of the pod stage": &f.entered} {
		if !drained(5) {
			t.Error("flows are not drained, and nothing is left")
		}
		if *sent++; drained(1) {
			t.Errorf("flows are drained, and one %s", what)
		}
	}
}

func TestWhereAggregationIsWatchedThePipelineWaits(t *testing.T) {
	f := newFixture(Options{Mode: governor.Auto})
	f.aggregation = governor.Parked
	for range 20 {
		f.after(t, 100*time.Millisecond)
	}
	f.is(t, false, control.Standby, "")
	if !f.useless {
		t.Error("a core that is saturated is watched closely, though nothing is tried")
	}
}

// Rules whose program no NIC takes are in no mechanism's way.
func TestPriorityWithoutANICLeavesTheCoresToOthers(t *testing.T) {
	f := newFixture(Options{Mode: governor.Auto, Microflows: Microflows{Mode: governor.Auto, Batch: 64}})
	f.actuator.layout = governor.Layout{Tunnel: []int{1}, Pod: []int{0}}
	f.latency = []int{0}
	if f.inTheWay() {
		t.Error("it makes way, and priority is on no NIC")
	}
	if _, why := f.noMicroflows(); why != "" {
		t.Errorf("micro-flows stand back: %s", why)
	}
	f.onNIC = true
	if !f.inTheWay() {
		t.Error("it does not make way for latency traffic on its cores")
	}
	if _, why := f.noMicroflows(); why == "" {
		t.Error("micro-flows act beside priority")
	}
}

// What was steered is never more than the overlay's, whatever counted either.
func TestNoMoreIsSteeredThanTheOverlayHas(t *testing.T) {
	for _, c := range []datapath.Counters{
		{Overlay: 980, Steered: 980, Pod: 960, PodSteered: 960},
		{XDPOverlay: 980, XDPLane: 980},
		{Pod: 980, PodSteered: 970},
	} {
		f := newFixture(Options{})
		if acted, of, err := f.Pipeline.steered(c); err != nil || acted > of {
			t.Errorf("%+v: %d of %d, %v", c, acted, of, err)
		}
	}
}

// A trial is held against each packet that was lost through what is tried out, wherever that was.
func TestATrialCountsWhatIsLostInEachPlace(t *testing.T) {
	f := newFixture(Options{})
	c := datapath.Counters{Overlay: 9000, XDPDrop: 1, Refused: 2, NoRoom: 4, MergedLost: 8}
	f.actuator.merged = datapath.MergeCounters{Passed: 9000, Refused: 16, Dropped: 32}
	if n, err := f.Drops(c); err != nil || n != 63 {
		t.Errorf("%d packets were lost, %v; want each counter once, 63", n, err)
	}
}

// A status gives each lane its own losses and its own queue.
func TestEachLaneHasItsOwnDrops(t *testing.T) {
	f := newFixture(Options{})
	f.actuator.layout = governor.Layout{NIC: []int{0, 1}, Pod: []int{1}}
	f.counted.XDPDrop = 7
	f.was = []datapath.Core{{LaneLost: 5, LaneQueue: 50, Queue: 1}, {LaneLost: 2, LaneQueue: 20, Queue: 3}}
	f.backlogs = map[int]uint64{1: 9}
	var st control.Status
	if err := f.Fill(&st, names.Names{}); err != nil {
		t.Fatal(err)
	}
	want := []control.Lane{
		{Stage: "nic", Core: 0, Packets: 100, Queue: 50, Drops: 5}, {Stage: "nic", Core: 1, Packets: 100, Queue: 20, Drops: 2},
		{Stage: "pod", Core: 1, Packets: 100, Queue: 3, Drops: 9},
	}
	if !slices.Equal(st.Lanes, want) || st.Counters.LaneDrops != 7 {
		t.Errorf("%+v, %d in all; want %+v, 7", st.Lanes, st.Counters.LaneDrops, want)
	}
}

// A core that was offline is back before its lane is looked at: the lane's thread runs anywhere since.
func TestLanesThatHaveStrayedAreLeft(t *testing.T) {
	for _, tc := range []struct {
		layout governor.Layout
		want   bool
	}{
		{governor.Layout{NIC: []int{1}}, true}, {governor.Layout{NIC: []int{0}, Pod: []int{1}}, false}, {governor.Layout{Tunnel: []int{1}}, false},
	} {
		a := &actuator{layout: tc.layout, lost: map[int]bool{1: true}}
		if got := a.stale([]int{0, 1}); got != tc.want {
			t.Errorf("%+v is to be left: %t", tc.layout, got)
		}
	}
}
