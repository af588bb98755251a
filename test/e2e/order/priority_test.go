// SPDX-License-Identifier: Apache-2.0

package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/internal/rules"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// ruled is a stretch of traffic in which flows change their class all the time.
type ruled struct {
	nic   bed.NIC
	flows int
	load  load
	kind  string
	brief bool // part of the short series, too
}

var runs = []ruled{
	{bed.Thread, 1, paced, inline, true}, {bed.Thread, 8, lossy, inline, false}, {bed.Thread, 8, flooded, inline, true},
	{bed.Thread, 8, flooded, little, true}, {bed.Thread, 8, paced, straight, false}, {bed.Thread, 8, flooded, straight, true},
	{bed.Thread, 8, paced, both, true}, {bed.Thread, 8, flooded, both, false}, {bed.Thread, 8, paced, bothStraight, true}, {bed.Softirq, 8, lossy, bothTwo, false},
	{bed.Softirq, 8, paced, inline, false}, {bed.Softirq, 8, lossy, twoLanes, true}, {bed.Softirq, 8, flooded, twoLanes, false},
}

// How latency traffic is treated.
const (
	inline   = ""     // in the NIC's poll, which is made a thread's
	twoLanes = "two"  // in a lane, under a NIC that is polled in softirq
	straight = "sync" // like inline, from the tunnel straight to the pod
	little   = "low"  // like inline, with a share of the core that is soon used up
	// With the pipeline, which takes bulk to other cores.
	both         = "both"
	bothStraight = "both-sync"
	bothTwo      = "both-two"
)

func (r ruled) piped() bool { return strings.HasPrefix(r.kind, both) }

func (r ruled) sync() bool { return r.kind == straight || r.kind == bothStraight }

// crossed tells whether packets of each class took the redirect path, and some of latency's the bridge.
// Beside a flood latency's frames have a poll to themselves only until its share of the core is used
// up, and where all of its flows still have frames in the lane not even that: so the run goes on
// until there were some.
func (r ruled) crossed(c control.Counters) bool {
	return !r.sync() || c.ShortCut > 0 && c.Bridged > 0 && (r.kind == bothStraight || c.BulkShortCut > 0)
}

func (r ruled) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%s-%d-%s-%s", r.nic, r.flows, r.load, r.kind), "-")
}

// priority is the configuration of it.
func (r ruled) priority() string {
	switch {
	case r.kind == twoLanes, r.kind == bothTwo:
		return "priority: {threads: off}\n"
	case r.kind == straight, r.kind == bothStraight:
		return "priority: {mode: sync}\n"
	case r.kind == little:
		return "priority: {bulk-share: 95%}\n"
	case r.flows == 1:
		return "priority: {rules: [{name: none, port: 1}]}\n"
	}
	return ""
}

// Packets of a flow arrive in order and once while rules make it overtake bulk and
// be bulk again, and while priority comes and goes; drops are counted.
func TestOrderOfClasses(t *testing.T) {
	turn := speed.Every(t, 3)
	for _, nic := range []bed.NIC{bed.Thread, bed.Softirq} {
		b := rig.Lab(t, bed.Options{NIC: nic, Queues: *queues})
		for _, r := range runs {
			if r.nic == nic && (*volume > 1 || *complete || r.brief) && turn() {
				t.Run(r.String(), func(t *testing.T) { r.in(t, b) })
			}
		}
	}
}

func (r ruled) in(t *testing.T, b *bed.Bed) {
	rig.NeedCores(t, 2)
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	if r.sync() {
		// So that every few milliseconds a frame goes by the bridge, which the next could
		// overtake.
		rig.BridgeForgets(t, b, 40*time.Millisecond)
	}
	residue.Check(t, rig.Scope(b))
	s := stall(t)
	tr := send(t, b, r.flows, r.load)
	changes, counters, err := r.act(t, b, tr)
	if err := errors.Join(err, s.end()); err != nil {
		t.Fatal(err)
	}
	tr.row.Changes, tr.row.Helped = uint64(changes), counters.SteeredPackets
	tr.judge(t, account{"bulk lanes": counters.Refused, "refused": counters.LaneRefused})
	t.Logf("%d changes of class; of %d latency frames %d held, %d beyond their share; %d of %d bulk frames by the lane; %d packets to other cores",
		changes, counters.LatencyPackets, counters.LatencyHeld, counters.LatencyExcess, counters.BulkLane, counters.BulkPackets, counters.SteeredPackets)
}

// latency is a rule for one flow, by its source port.
func latency(name string, id int) rules.Rule {
	return rules.Rule{Name: name, Class: rules.Latency, Proto: 17, Port: uint16(traffic.BasePort + id)}
}

// act changes the class of one flow after the other: in each round it makes those latency
// that were bulk in the last, every second one. With several flows it takes all rules away
// each fiftieth time, so that priority ends, and begins anew. It goes on until the guard
// has had something to do.
func (r ruled) act(t *testing.T, b *bed.Bed, tr *stream) (changes int, c control.Counters, err error) {
	p := &product{bed: b, cores: steered(b)}
	mode := config.ModeOff
	if r.piped() {
		mode = config.ModeForced
	}
	text := fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\npipeline: %s\naggregate: off\n", b.Receiver().Wire, p.cores, mode)
	p.Daemon = rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: program(t), Config: text + r.priority()})
	if r.piped() {
		if tr.chosen, err = watchChoices(p.PID); err != nil {
			return 0, c, err
		}
		defer func() { err = errors.Join(err, tr.chosen.end(&tr.row)) }()
	}
	fast := make([]bool, r.flows)
	set := func(id int, on bool) error {
		name := fmt.Sprintf("flow-%d", id)
		changes++
		fast[id] = on
		return p.call(func(ctx context.Context, c *control.Client) error {
			if on {
				return c.AddRule(ctx, latency(name, id))
			}
			return c.DelRule(ctx, name)
		})
	}
	none := func() error {
		for id, on := range fast {
			if on {
				if err := set(id, false); err != nil {
					return err
				}
			}
		}
		return nil
	}
	begin := time.Now()
	over := func() (bool, error) {
		if changes%50 != 0 || changes < 200**volume {
			return false, nil
		}
		st, err := p.status()
		tr.among(st)
		got, rerr := tr.received()
		inLane := st.Counters.LatencyHeld + st.Counters.LatencyExcess
		done := got >= 75_000*uint64(*volume) && inLane >= 10*uint64(*volume) && r.crossed(st.Counters) && (r.kind != little || st.Counters.LatencyExcess > 0) && (!r.piped() || st.Counters.SteeredPackets >= 10_000*uint64(*volume))
		if err == nil && !done && time.Since(begin) > time.Duration(*volume)*tooLong {
			err = fmt.Errorf("%d packets and %d changes of class after %s are no test yet: lanes %+v, mechanisms %+v, counters %+v",
				got, changes, time.Since(begin).Round(time.Second), st.Lanes, st.Mechanisms, st.Counters)
		}
		return done, errors.Join(err, rerr)
	}
	err = every(3*time.Millisecond, over, func(i int) error {
		if i%50 == 49 && r.flows > 1 {
			return none()
		}
		id, round := i%r.flows, i/r.flows
		if on := (id+round)%2 == 0; on != fast[id] {
			return set(id, on)
		}
		return nil
	})
	if err == nil {
		err = none()
	}
	if err != nil {
		return changes, c, err
	}
	// A lane that does not run empty is emptied by refusing what comes, as the last thing
	// that priority does.
	if err := p.configure(text + "priority: {mode: off}\n"); err != nil {
		return changes, c, err
	}
	err = p.await("priority ends", func(st control.Status) bool {
		c = st.Counters
		return !slices.ContainsFunc(st.Mechanisms, func(m control.Mechanism) bool {
			return m.Name == "priority" && m.State == control.Active
		})
	})
	if err != nil {
		return changes, c, err
	}
	return changes, c, p.end()
}
