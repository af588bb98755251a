// SPDX-License-Identifier: Apache-2.0

package stages

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
)

func TestMain(m *testing.M) { rig.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watch builds a bed with a tracer on everything in the receiving host.
func watch(t *testing.T, o bed.Options) (*bed.Bed, *Tracer) {
	t.Helper()
	rig.NeedCores(t, 2)
	b := rig.Lab(t, o)
	tr, err := NewTracer()
	must(t, err)
	t.Cleanup(func() { must(t, tr.Close()) })
	rx := b.Receiver()
	must(t, tr.Watch(rx.NS, rx.Wire, Wire))
	must(t, tr.Watch(rx.Overlay, bed.Tunnel, Tunnel))
	for _, p := range rx.Pods {
		must(t, tr.Watch(rx.Overlay, p.HostEnd, HostEnd))
		must(t, tr.Watch(p.NS, bed.PodDev, Pod))
	}
	residue.Check(t, rig.Scope(b))
	return b, tr
}

// daemon starts the product in the receiving host, for the cores that the lab
// leaves to it.
func daemon(t *testing.T, b *bed.Bed, tier string) *rig.Daemon {
	t.Helper()
	var cores []string
	for _, c := range b.PlaceCores().Steer {
		cores = append(cores, fmt.Sprint(c))
	}
	return rig.Start(t, rig.Spec{NS: b.Receiver().NS,
		Config: fmt.Sprintf("pipeline: forced\ntier: %s\nmetrics: off\ncores: %s\n", tier, strings.Join(cores, ","))})
}

func end(t *testing.T, d *rig.Daemon) {
	t.Helper()
	d.Signal(unix.SIGTERM)
	if code := d.Exited().ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.NothingLeft()
}

func counts(t *testing.T, tr *Tracer) Counts {
	t.Helper()
	c, err := tr.Counts()
	must(t, err)
	return c
}

// sample counts the next few thousand packets, from the first poll to the pod.
func sample(t *testing.T, tr *Tracer) Counts {
	t.Helper()
	const enough = 20000
	before := counts(t, tr)
	var c Counts
	rig.Until(t, "packets come by", func() (bool, string) {
		c = counts(t, tr).Since(before)
		return c.Total(InPod) >= enough, fmt.Sprintf("%v", c)
	})
	return c
}

// cores returns those on which packets came by a place.
func (c Counts) cores(p Place) (list []int) {
	for cpu, n := range c[p] {
		if n > 0 {
			list = append(list, cpu)
		}
	}
	return list
}

// lanes are the cores that status names for a stage.
func lanes(st control.Status, stage string) (cores []int) {
	for _, l := range st.Lanes {
		if l.Stage == stage {
			cores = append(cores, l.Core)
		}
	}
	return cores
}

func TestStagesOfThePlainOverlayStayWhereTheNICIsPolled(t *testing.T) {
	b, tr := watch(t, bed.Options{})
	l := rig.StartLoad(t, b, 4)
	c := sample(t, tr)
	t.Logf("plain overlay\n%s", c.Table())
	if nic := b.PlaceCores().NIC; !slices.Equal(c.cores(Polled), nic) {
		t.Errorf("the NIC is polled on cores %v, the lab says %v", c.cores(Polled), nic)
	}
	for place, name := range placeNames {
		if got := c.cores(Place(place)); !slices.Equal(got, c.cores(Polled)) {
			t.Errorf("%s on cores %v, polled on %v", name, got, c.cores(Polled))
		}
	}
	l.Stop()
}

// at is where most of a place's packets must be once flows have found their
// lanes: some may still take the stock path.
const at = 0.95

func TestStagesOfThePipelineRunWhereStatusSays(t *testing.T) {
	for _, tier := range []string{"tc", "xdp"} {
		t.Run(tier, func(t *testing.T) {
			b, tr := watch(t, bed.Options{})
			d := daemon(t, b, tier)
			l := rig.StartLoad(t, b, 4)
			d.Acting()
			sample(t, tr) // flows find their lanes
			before, c0 := d.Status(), counts(t, tr)
			sample(t, tr)
			after, c := d.Status(), counts(t, tr).Since(c0)
			t.Logf("pipeline, tier %s\n%s\nstatus says\n%s", tier, c.Table(), laneTable(before, after))

			where := c.cores(Polled)
			if nic := b.PlaceCores().NIC; !slices.Equal(where, nic) {
				t.Errorf("the NIC is polled on cores %v, the lab says %v", where, nic)
			}
			for _, s := range []struct {
				stage  string
				places []Place
			}{
				{"nic", []Place{Underlay, Cell}},
				{"tunnel", []Place{Inner, Bridged}},
				{"pod", []Place{InPod}},
			} {
				// A stage without lanes goes on where the one before it ran.
				if cores := lanes(after, s.stage); len(cores) > 0 {
					where = cores
				}
				for _, p := range s.places {
					if share := c.Share(p, where...); share < at {
						t.Errorf("%.1f %% of the packets %s on cores %v, where status has the %s stage",
							100*share, placeNames[p], where, s.stage)
					}
				}
			}
			if len(lanes(after, "tunnel"))+len(lanes(after, "pod")) == 0 {
				t.Error("no stage is steered")
			}
			l.Stop()
			end(t, d)
		})
	}
}

// What status counts into a lane comes by there, less what it counts as dropped
// there. Not quite: tracing misses what is received in an interrupt of tasks that
// the kernel does not let it look at.
func TestLanesOfStatusCountWhatComesBy(t *testing.T) {
	b, tr := watch(t, bed.Options{})
	d := daemon(t, b, "tc")
	l := rig.StartLoad(t, b, 4)
	d.Acting()
	l.Stop()
	// Without traffic both accounts stand still while they are read.
	before, c0 := d.Status(), counts(t, tr)
	l = rig.StartLoad(t, b, 4)
	sample(t, tr)
	l.Stop()
	after, c := d.Status(), counts(t, tr).Since(c0)
	t.Logf("pipeline\n%s\nstatus says\n%s", c.Table(), laneTable(before, after))
	for i, lane := range after.Lanes {
		place := map[string]Place{"tunnel": Inner, "pod": InPod}[lane.Stage]
		said, was := lane.Packets-before.Lanes[i].Packets, c[place][lane.Core]
		dropped := lane.Drops - before.Lanes[i].Drops
		if float64(was+dropped) < at*float64(said) || float64(said) < at*float64(was) {
			t.Errorf("status says %d packets in the %s lane of core %d and %d drops, %d came by", said, lane.Stage, lane.Core, dropped, was)
		}
	}
	end(t, d)
}

// laneTable shows what status says of the time between two readings.
func laneTable(before, after control.Status) string {
	var b strings.Builder
	for i, l := range after.Lanes {
		was := before.Lanes[i] // lanes do not change while the pipeline acts
		fmt.Fprintf(&b, "%-8s core %-4d %d packets, %d dropped\n", l.Stage, l.Core, l.Packets-was.Packets, l.Drops-was.Drops)
	}
	return b.String()
}

// flood fills the wire as fast as its core can, in bursts that are larger than
// what one poll takes.
func flood(t *testing.T, b *bed.Bed) (stop func()) { return floodFlow(t, b, 0) }

func floodFlow(t *testing.T, b *bed.Bed, id int) (stop func()) {
	t.Helper()
	l, err := traffic.StartLive(b, traffic.LiveConfig{
		Flows: []traffic.Flow{traffic.NewFlow(b, id, 0, true, false, 0)},
		Size:  64, Core: b.PlaceCores().Gen[0], Batch: 256,
	})
	must(t, err)
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_, err := l.Stop()
			must(t, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// record waits for a record of so many polls.
func record(t *testing.T, tr *Tracer, polls int) []Poll {
	t.Helper()
	must(t, tr.Record())
	var got []Poll
	rig.Until(t, "NAPIs are polled", func() (bool, string) {
		var done bool
		var err error
		got, done, err = tr.Recorded(polls)
		must(t, err)
		return done, ""
	})
	return got
}

// TestPollOrder shows the order in which a busy core polls its NAPIs, as Fig. 6
// of PRISM does: "eth" is the NIC, "br" the tunnel's GRO cell, "veth" the
// backlog, and "br(lane)" a backlog that has packets of the tunnel.
func TestPollOrderInSoftirqMode(t *testing.T) {
	const polls, shown = 2000, 24
	b, tr := watch(t, bed.Options{NIC: bed.Softirq})
	nic := b.PlaceCores().NIC

	stop := flood(t, b)
	plain := record(t, tr, polls)
	stop()

	d := daemon(t, b, "tc")
	stop = flood(t, b)
	st := d.Acting()
	steered := record(t, tr, polls)
	stop()

	t.Logf("order of polls, softirq mode, bursts of 256 frames\n%s",
		Order(shown, []string{"overlay", "pipeline"}, tail(plain), tail(steered)))

	for _, p := range plain {
		if !slices.Contains(nic, p.CPU) || p.ForTunnel() {
			t.Errorf("the plain overlay polls %s on core %d", p, p.CPU)
			break
		}
	}
	count := func(polls []Poll, ok func(Poll) bool) (n int) {
		for _, p := range polls {
			if ok(p) {
				n++
			}
		}
		return n
	}
	// Steered packets are in the backlogs of their lanes' cores; a stage without
	// lanes is in no backlog, or in that of the stage before it.
	for _, s := range []struct {
		stage string
		of    func(Poll) bool
	}{{"tunnel", Poll.ForTunnel}, {"pod", Poll.ForPod}} {
		cores := lanes(st, s.stage)
		if len(cores) == 0 {
			continue
		}
		all := count(steered, s.of)
		on := count(steered, func(p Poll) bool { return s.of(p) && slices.Contains(cores, p.CPU) })
		if on == 0 || float64(on) < at*float64(all) {
			t.Errorf("of %d polls of a backlog with packets of the %s stage, %d on its lanes, cores %v", all, s.stage, on, cores)
		}
	}
	for _, r := range []struct {
		name  string
		polls []Poll
	}{{"overlay", plain}, {"pipeline", steered}} {
		eth := count(r.polls, func(p Poll) bool { return p.Role == Wire })
		br := count(r.polls, func(p Poll) bool { return p.Role == Tunnel })
		veth := count(r.polls, Poll.ForPod)
		if min(eth, br, veth) == 0 {
			t.Errorf("%s: %d polls of eth, %d of br, %d of veth", r.name, eth, br, veth)
		}
	}
	end(t, d)
}

// tail leaves out how a record begins.
func tail(polls []Poll) []Poll { return polls[len(polls)/2:] }
