// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
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
	tier     config.Tier
	scene    scene
	flows    int
	load     load
}

func (r run) String() string {
	return fmt.Sprintf("%s-%s-%s-%s-%d-%s", r.scene, r.tier, r.nic, r.topology, r.flows, r.load)
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
	p, err := start(t, b, r.tier)
	if err != nil {
		return nil, err
	}
	begun, err := p.status()
	if err != nil {
		return nil, err
	}
	chosen, err := watchChoices(p.PID)
	if err != nil {
		return nil, err
	}
	defer chosen.close()
	tr.row.Placed = placed(begun)
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
		if err := chosen.look(st); err != nil {
			return false, err
		}
		changes := st.Counters.LaneChanges - begun.Counters.LaneChanges
		tr.row.Changes = changes
		done := got >= enough.packets && changes >= enough.changes
		if !done && time.Since(begin) > time.Duration(*volume)*tooLong {
			err = fmt.Errorf("%d packets and %d lane changes after %s: %d and %d make a test",
				got, changes, time.Since(begin).Round(time.Second), enough.packets, enough.changes)
		}
		return done, err
	}
	if err := scenes[r.scene](p, over); err != nil {
		return nil, err
	}
	tr.row.Seen, tr.row.Second, tr.row.Seconds = chosen.hopped, chosen.share(), len(chosen.flows)
	// What is dropped at lanes is known to the product alone, so it may not go before the last
	// flow has left them.
	if err := p.enable(false); err != nil {
		return nil, err
	}
	if err := p.await("switched off", func(st control.Status) bool { return len(st.Lanes) == 0 }); err != nil {
		return nil, err
	}
	st, err := p.status()
	if err != nil {
		return nil, err
	}
	return laneDrops(st.Counters), p.end()
}

// laneDrops are what lanes had no room for, and what was dropped for flows to leave full ones.
func laneDrops(c control.Counters) account {
	return account{"lanes": c.LaneDrops - c.LaneRefused, "refused": c.LaneRefused}
}

// amount is how much has to happen in a run.
type amount struct {
	packets uint64 // received
	changes uint64 // of lanes, completed
}

// tooLong only decides when a run of volume 1 has failed.
const tooLong = time.Minute

func (r run) enough() amount {
	a := amount{packets: 150_000, changes: 1000}
	switch r.scene {
	case steady:
		a.changes = 0 // nothing asks for any
	case toggled, shrunk:
		a.changes = 100 // a flow changes lanes but a few times in a second
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
				return len(st.Mechanisms) > 0 && (st.Mechanisms[0].State == control.Active) == on
			})
		})
		if err != nil {
			return err
		}
		if err := p.enable(true); err != nil {
			return err
		}
		return p.await("switched on", acts)
	},
	shrunk: func(p *product, over func() (bool, error)) error {
		last := p.cores[len(p.cores)-1]
		return every(0, over, func(int) error {
			if err := p.setCores(p.cores.Minus(config.CPUList{last})); err != nil {
				return err
			}
			if err := p.await(fmt.Sprintf("core %d leaves", last), func(st control.Status) bool { return !uses(st, last) }); err != nil {
				return err
			}
			if err := p.setCores(p.cores); err != nil {
				return err
			}
			return p.await(fmt.Sprintf("core %d comes back", last), func(st control.Status) bool { return acts(st) && uses(st, last) })
		})
	},
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
