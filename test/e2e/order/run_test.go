// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/residue"
)

// run is one stretch of traffic with the product at work in it.
type run struct {
	topology bed.Topology
	nic      bed.NIC
	by       means
	scene    scene
	flows    int
	load     load
}

func (r run) String() string {
	return fmt.Sprintf("%s-%s-%s-%s-%d-%s", r.scene, r.by, r.nic, r.topology, r.flows, r.load)
}

// in plays the run in its bed. Every run has the same story: traffic; the
// product starts and acts; the scene; the product ends; traffic still. Then
// everything that was sent must have come in order, once, or have been counted
// as dropped.
func (r run) in(t *testing.T, b *bed.Bed) {
	rig.NeedCores(t, 2)
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	residue.Check(t, rig.Scope(b))
	s := stall(t)
	tr := send(t, b, r.flows, r.load)
	own, err := r.act(t, b, tr)
	if err := errors.Join(err, s.end()); err != nil {
		t.Fatal(err)
	}
	tr.judge(t, own)
}

// act has the product go through the scene. It returns what it has dropped.
func (r run) act(t *testing.T, b *bed.Bed, tr *stream) (own account, err error) {
	p, err := start(t, b, r.by)
	if err != nil {
		return nil, err
	}
	begun, err := p.status()
	if err != nil {
		return nil, err
	}
	if mechanisms[r.by].name == "pipeline" {
		if tr.chosen, err = watchChoices(p.PID); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, tr.chosen.end(&tr.row)) }()
	}
	tr.among(begun)
	enough := r.enough()
	begin := time.Now()
	over := func() (bool, error) {
		st, err := p.status()
		if err != nil {
			return false, err
		}
		got, err := tr.received()
		if err != nil {
			return false, err
		}
		tr.among(st)
		changes := moves(st.Counters) - moves(begun.Counters)
		tr.row.Changes = changes
		done := got >= enough.packets && changes >= enough.changes
		if !done && time.Since(begin) > time.Duration(*volume)*tooLong {
			// What there was is judged all the same.
			t.Errorf("%d packets and %d lane changes after %s: %d and %d make a test",
				got, changes, time.Since(begin).Round(time.Second), enough.packets, enough.changes)
			done = true
		}
		return done, nil
	}
	if err := scenes[r.scene](p, over); err != nil {
		return nil, err
	}
	// What is dropped at lanes is known to the product alone, so it may not go before the last
	// flow has left them.
	if err := p.enable(false); err != nil {
		return nil, err
	}
	if err := p.await("switched off", mechanisms[r.by].off); err != nil {
		return nil, err
	}
	st, err := p.status()
	if err != nil {
		return nil, err
	}
	c := st.Counters
	if tr.row.Helped = max(c.SteeredPackets, c.SplitPackets, c.ExpressPackets); tr.row.Helped == 0 {
		return nil, errors.New("no packet was helped")
	}
	return ownDrops(c), p.end()
}

// ownDrops are what the product has dropped: what lanes had no room for, or was refused for flows to leave
// full ones, and at the resequencers.
func ownDrops(c control.Counters) account {
	return account{
		"lanes": c.LaneDrops - c.LaneRefused, "refused": c.LaneRefused,
		"before branches": c.MergeNoRoom, "merge queues": c.MergeRefused, "resequencers": c.MergeDropped,
	}
}

// moves are how often flows have changed their way: from lane to lane, or to be split.
func moves(c control.Counters) uint64 { return c.LaneChanges + c.Splits }

// amount is how much has to happen in a run.
type amount struct {
	packets uint64 // received
	changes uint64 // of lanes, completed
}

func (r run) enough() amount {
	a := amount{packets: 150_000, changes: 1000}
	switch {
	case r.scene == steady:
		a.changes = 0 // nothing asks for any
	case mechanisms[r.by].name == "microflows":
		a.changes = 2 * uint64(r.flows) // a flow is split once each time, before which programs are loaded
	case r.scene != resteered:
		a.changes = max(100, 100*uint64(r.flows)/8) // a flow changes lanes but a few times in a second
	}
	a.packets *= uint64(*volume)
	a.changes *= uint64(*volume)
	return a
}

// scene is what happens to the product while traffic flows, until over says
// that enough has.
type scene string

const (
	steady    scene = "steady"    // nothing
	resteered scene = "resteered" // each poll wishes for another lane
	toggled   scene = "toggled"   // the pipeline is switched off and on
	shrunk    scene = "shrunk"    // a core leaves the configured set and comes back
	unplugged scene = "unplugged" // a core goes offline and comes back
)

var scenes = map[scene]func(p *product, over func() (bool, error)) error{
	steady: func(_ *product, over func() (bool, error)) error {
		return every(20*time.Millisecond, over, func(int) error { return nil })
	},
	resteered: func(p *product, over func() (bool, error)) error {
		if err := p.resteer(true); err != nil {
			return err
		}
		if err := every(20*time.Millisecond, over, func(int) error { return nil }); err != nil {
			return err
		}
		return p.resteer(false)
	},
	toggled: func(p *product, over func() (bool, error)) error {
		err := every(0, over, func(i int) error {
			on := i%2 == 1
			if err := p.enable(on); err != nil {
				return err
			}
			return p.await(fmt.Sprintf("acting %t", on), func(st control.Status) bool {
				m := mechanisms[p.by]
				return on && m.acts(st) || !on && m.of(st).State != control.Active
			})
		})
		if err != nil {
			return err
		}
		if err := p.enable(true); err != nil {
			return err
		}
		return p.await("switched on", mechanisms[p.by].acts)
	},
	shrunk: func(p *product, over func() (bool, error)) error {
		last := len(p.cores) - 1
		cores := p.cores[last:]
		if last > 1 {
			cores = p.cores[last-1:]
		}
		return p.without(cores, over, func(core int, there bool) error {
			if there {
				return p.setCores(p.cores)
			}
			return p.setCores(p.cores.Minus(config.CPUList{core}))
		})
	},
	unplugged: func(p *product, over func() (bool, error)) error {
		// Not those that send, nor those that poll.
		mine := p.bed.PlaceCores()
		var cores []int
		err := p.await("two cores are but lanes", func(st control.Status) bool {
			cores = nil
			for _, l := range st.Lanes {
				if !slices.Contains(mine.NIC, l.Core) && !slices.Contains(mine.Gen, l.Core) && !slices.Contains(cores, l.Core) {
					cores = append(cores, l.Core)
				}
			}
			return len(cores) > 1
		})
		if err != nil {
			return err
		}
		return p.without(cores[:2], over, func(core int, there bool) error {
			on := map[bool]string{false: "0", true: "1"}[there]
			return os.WriteFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", core), []byte(on), 0)
		})
	},
}

// without has cores leave and come back, one after the other. Lanes that are in place stay where they are
// when a core comes back: it has lanes again when they are placed anew, which they are when the next one leaves.
// With one core alone there are none without it.
func (p *product) without(cores []int, over func() (bool, error), set func(core int, there bool) error) error {
	others := len(cores) > 1
	return every(0, over, func(i int) error {
		core, last := cores[i%len(cores)], cores[(i+len(cores)-1)%len(cores)]
		if err := set(core, false); err != nil {
			return err
		}
		err := p.await(fmt.Sprintf("core %d leaves", core), func(st control.Status) bool {
			return !uses(st, core) && (!others || mechanisms[p.by].acts(st) && (i == 0 || uses(st, last)))
		})
		if err != nil {
			return err
		}
		if err := set(core, true); err != nil {
			return err
		}
		return p.await(fmt.Sprintf("core %d comes back", core), func(st control.Status) bool {
			return mechanisms[p.by].acts(st) && slices.Contains(st.Cores, core) && (others || uses(st, core))
		})
	})
}

// every calls fn with 0, 1, 2, ... in even steps until it is over.
func every(pause time.Duration, over func() (bool, error), fn func(i int) error) error {
	for i, next := 0, time.Now(); ; i++ {
		if err := fn(i); err != nil {
			return err
		}
		if done, err := over(); done || err != nil {
			return err
		}
		next = next.Add(pause)
		time.Sleep(time.Until(next)) // the beat is the scene, not a wait
	}
}
