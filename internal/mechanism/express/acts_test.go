// SPDX-License-Identifier: Apache-2.0

package express

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
	"github.com/overlane/overlane/internal/shortcut"
)

// found is a path to pod n, as it is found with every scan.
func found(n int) *path {
	w := aPath()
	w.pod.Peer.NetnsCookie, w.pod.Host.Ifindex = uint64(100+n), 10+n
	w.key = datapath.ExpressKey{NIC: w.nic.Ifindex, VNI: w.tunnel.VNI, Port: w.tunnel.Port, MAC: shortcut.MAC{2, byte(n)}}
	return w
}

func lands(w *path) plan.Setting { return plan.Lands(plan.Target(w.pod.Peer)) }

// finds has scans find these paths, to pods whose GRO is off.
func (f *fixture) finds(change func(n int, w *path), pods ...int) {
	f.evaluates = func(eligibility) (list []*path, _ error) {
		for _, n := range pods {
			w := found(n)
			change(n, w)
			list = append(list, w)
		}
		return list, nil
	}
	for _, n := range pods {
		if _, ok := f.Values[lands(found(n))]; !ok {
			f.Values[lands(found(n))] = "off"
		}
	}
}

func asFound(int, *path) {}

// opens has flows be on the path to pod n.
func (f *fixture) opens(n int) {
	w := found(n)
	f.open[w.key] = opened{w.pod.Host.Key(), plan.Target(w.pod.Peer), w.to}
}

func (f *fixture) follows(t *testing.T, later time.Duration) {
	t.Helper()
	f.now = f.now.Add(later)
	if err := f.Follow(t.Context(), f.now); err != nil {
		t.Fatal(err)
	}
}

// reasons are what speaks against the paths, in the order in which they were found.
func (f *fixture) reasons() (list []string) {
	for _, w := range f.paths {
		list = append(list, w.reason)
	}
	return list
}

// Flows leave a path that is not safe any more before it is closed, and what lands there stays as it is until then.
func TestAPathIsLeftBeforeItIsClosed(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(asFound, 1, 2)
	f.after(t, time.Second, control.Active, "0 of 2 express paths")
	f.opens(1)
	f.opens(2)
	key, at := found(1).key, lands(found(1))
	f.finds(func(n int, w *path) {
		if n == 1 {
			w.reason = "a rule"
		}
	}, 1, 2)
	f.follows(t, time.Second)
	if !slices.Equal(f.withdrawn, []datapath.ExpressKey{key}) || len(f.closed) > 0 || f.Values[at] != "on" {
		t.Errorf("withdrawn %v, closed %v, GRO is %s", f.withdrawn, f.closed, f.Values[at])
	}
	// Safe again, it is not opened before it is closed.
	f.finds(asFound, 1, 2)
	f.follows(t, closeAfter-time.Millisecond)
	if !f.Polls() || len(f.closed) > 0 || len(f.open) != 1 {
		t.Errorf("closed %v, %d are open", f.closed, len(f.open))
	}
	f.finds(asFound, 2)
	f.follows(t, 2*time.Millisecond)
	if !slices.Equal(f.closed, []datapath.ExpressKey{key}) || f.Values[at] != "off" || f.Values[lands(found(2))] != "on" {
		t.Errorf("closed %v, GRO is %s, and %s at the other pod", f.closed, f.Values[at], f.Values[lands(found(2))])
	}
}

// While express waits for something, a path that is not safe any more is withdrawn all the same: by the evaluation
// alone, without a change of settings.
func TestAnEvaluationAloneWithdraws(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(asFound, 1)
	f.after(t, time.Second, control.Active, "")
	f.opens(1)
	f.finds(func(_ int, w *path) { w.reason = "a rule" }, 1)
	if _, _, err := f.evaluate(f.now); err != nil {
		t.Fatal(err)
	}
	if len(f.withdrawn) != 1 || f.HasPaths() || f.Values[lands(found(1))] != "on" {
		t.Errorf("withdrawn %v, paths: %t, GRO is %s", f.withdrawn, f.HasPaths(), f.Values[lands(found(1))])
	}
}

// Of two tunnels that a frame could mean none gets it.
func TestPathsThatFramesCannotTellApartStayClosed(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(func(n int, w *path) {
		if n > 1 {
			w.key = found(2).key
		}
	}, 1, 2, 3)
	f.after(t, time.Second, control.Active, "")
	const why = "another tunnel with the same number"
	if r := f.reasons(); r[0] != "" || !strings.HasPrefix(r[1], why) || !strings.HasPrefix(r[2], why) {
		t.Errorf("%q", r)
	}
}

// Senders that are too many for the program's table close the paths of their tunnels, and none is left in it by half.
func TestTooManyFixedSendersCloseTheirPaths(t *testing.T) {
	f := newFixture(governor.Forced)
	f.wanted = true
	senders := func(many int) map[shortcut.MAC]netip.Addr {
		all := map[shortcut.MAC]netip.Addr{}
		for i := range many {
			all[shortcut.MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}] = netip.MustParseAddr("10.0.0.7")
		}
		return all
	}
	for _, tt := range []struct{ many, in int }{{datapath.MaxSenders, datapath.MaxSenders}, {datapath.MaxSenders + 1, 0}} {
		f.finds(func(n int, w *path) {
			w.tunnel.Ifindex = 20 + n
			if n == 1 {
				w.fixed = senders(tt.many)
			}
		}, 1, 2)
		f.follows(t, time.Second)
		if r := f.reasons(); len(f.fixed) != tt.in || (r[0] == "") != (tt.in > 0) || r[1] != "" {
			t.Errorf("%d senders: %d are in the table, against the paths %q", tt.many, len(f.fixed), r)
		}
	}
}

// What the pod's end refuses is said, and closes that path only.
func TestAPodsEndThatRefusesIsLeftAlone(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(asFound, 1, 2)
	f.Refuses[plan.Target(found(1).pod.Peer)] = "not permitted"
	f.after(t, time.Second, control.Active, "")
	if r := f.reasons(); r[0] != "left alone: not permitted" || r[1] != "" || f.Values[lands(found(2))] != "on" {
		t.Errorf("%q, GRO of the other is %s", r, f.Values[lands(found(2))])
	}
	if f.Claims(found(1).pod) || !f.Claims(found(2).pod) {
		t.Error("the pipeline is to leave the second pod alone, and not the first")
	}
}

// What was changed at a pod's end whose namespace is not to be found goes with it, or is taken back when it is found.
func TestAnEndThatIsNotFoundIsNotTouched(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(asFound, 1)
	f.after(t, time.Second, control.Active, "")
	f.finds(asFound)
	f.Lost = true
	f.follows(t, time.Second)
	if f.Values[lands(found(1))] != "on" {
		t.Error("a setting was taken back in a namespace that is not there")
	}
	f.Lost = false
	f.follows(t, time.Second)
	if f.Values[lands(found(1))] != "off" {
		t.Error("a setting was not taken back")
	}
}

// Frames that paths drop have them evaluated: where their landing has gone they would drop all.
func TestDroppedFramesHaveThePathsEvaluated(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(asFound, 1)
	f.after(t, time.Second, control.Active, "")
	f.finds(func(_ int, w *path) { w.reason = "gone" }, 1)
	if err := f.Poll(t.Context(), f.now); err != nil || f.reasons()[0] != "" {
		t.Errorf("evaluated although nothing was dropped: %q, %v", f.reasons(), err)
	}
	f.drops++
	if err := f.Poll(t.Context(), f.now); err != nil || f.reasons()[0] != "gone" {
		t.Errorf("not evaluated at a drop: %q, %v", f.reasons(), err)
	}
}

// windows has so much time pass, in which a core is short of time.
func (f *fixture) windows(t *testing.T, d time.Duration) {
	t.Helper()
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(100 * time.Millisecond)
		in := governor.Input{Now: f.now, Cores: map[int]governor.Core{0: {Rate: 1e5, Overlay: 1e5, Saturated: 1}}}
		if err := f.Decide(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fixture) decided(t *testing.T, s governor.State, why string) {
	t.Helper()
	if d := f.gov.Last(); d.State != s || !strings.Contains(d.Reason, why) {
		t.Errorf("%s: %s; want %s: %s", d.State, d.Reason, s, why)
	}
}

// By itself it counts datagrams first, then measures what is delivered, and only then changes something; where no path
// opens within some seconds, it leaves no trace.
func TestItCountsAndMeasuresBeforeItChangesSomething(t *testing.T) {
	f := newFixture(governor.Auto)
	f.finds(asFound, 1)
	at := lands(found(1))
	f.after(t, time.Second, control.Standby, "")
	f.census.packets, f.census.datagrams = 100_000, 90_000
	f.windows(t, 2*time.Second)
	f.decided(t, governor.Parked, "how much comes without")
	f.follows(t, time.Millisecond)
	if f.census.begun != 1 || f.census.ended != 1 || !f.unread || f.Restored > 0 {
		t.Errorf("census %+v, unread datagrams counted: %t, settings taken back: %d", f.census, f.unread, f.Restored)
	}
	f.windows(t, time.Second)
	f.decided(t, governor.Active, "for a trial")
	if !f.wanted || !f.held || f.Values[at] != "off" {
		t.Errorf("wanted: %t, flows are held back: %t, GRO is %s", f.wanted, f.held, f.Values[at])
	}
	f.after(t, time.Millisecond, control.Active, "0 of 1 express paths")
	if f.Values[at] != "on" {
		t.Error("no frame can land")
	}
	f.windows(t, 6*time.Second)
	f.decided(t, governor.Standby, "no express path could be opened")
	if f.wanted || f.held || f.unread || f.Values[at] != "off" {
		t.Errorf("wanted: %t, held: %t, unread counted: %t, GRO is %s", f.wanted, f.held, f.unread, f.Values[at])
	}
}

func TestItStandsByWhereItCannotPay(t *testing.T) {
	for what, tt := range map[string]struct {
		change func(*fixture)
		why    string
		counts bool
	}{
		"TCP only": {
			func(f *fixture) { f.census.packets = 100_000 }, "other packets take the full path", true,
		},
		"packets cannot be counted": {
			func(f *fixture) { f.census.fails = errors.New("no memory") }, "no memory", true,
		},
		"aggregation is watched": {
			func(f *fixture) { f.aggregation = governor.Parked }, "another mechanism", false,
		},
		"a rule at each pod": {
			func(f *fixture) { f.finds(func(_ int, w *path) { w.reason = "a rule" }, 1) }, "no express path is open", false,
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(governor.Auto)
			f.finds(asFound, 1)
			tt.change(f)
			f.after(t, time.Second, control.Standby, "")
			f.windows(t, 3*time.Second)
			f.decided(t, governor.Standby, tt.why)
			if (f.census.begun > 0) != tt.counts || f.unread || f.wanted {
				t.Errorf("census %+v, unread counted: %t, wanted: %t", f.census, f.unread, f.wanted)
			}
			if f.census.fails == nil && f.census.begun != f.census.ended {
				t.Errorf("a census is left under way: %+v", f.census)
			}
		})
	}
}

// A pod whose path waits for the pipeline is claimed: else neither would let go of it.
func TestAPodThatThePipelineHasIsClaimed(t *testing.T) {
	f := newFixture(governor.Forced)
	f.finds(func(_ int, w *path) { w.reason, w.waits = "the pipeline", true }, 1)
	f.after(t, time.Second, control.Active, "0 of 1 express paths")
	if !f.Claims(found(1).pod) || f.Claims(node.Pod{Peer: found(2).pod.Peer}) {
		t.Error("the pod that waits is not claimed, or another one is")
	}
}

// What cannot be counted is no frame: the next window is not given all frames since the daemon started.
func TestAFailedCountLeavesTheLastOne(t *testing.T) {
	f := newFixture(governor.Auto)
	step := func(now datapath.Counters, err error) {
		t.Helper()
		f.counted, f.uncounted = now, err
		if got := f.count(); !errors.Is(got, err) {
			t.Errorf("error %v, want %v", got, err)
		}
		if f.acted != 50 || f.of != 90 {
			t.Errorf("%d of %d, want 50 of 90", f.acted, f.of)
		}
	}
	step(datapath.Counters{Express: 50, XDPOverlay: 90}, nil)
	step(datapath.Counters{}, errors.New("no memory"))
}
