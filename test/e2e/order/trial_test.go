// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
	"github.com/overlane/overlane/test/patience"
	"github.com/overlane/overlane/test/residue"
	"github.com/overlane/overlane/test/speed"
)

// A trial switches a mechanism to and fro, ten times a second, under a load that saturates a core:
// packets arrive in order and once, and whatever the verdict, the node is left as it was. By
// itself the pipeline is on trial; with a small, sparse flow beside, so is priority.
func TestTrialsKeepOrder(t *testing.T) {
	b := rig.Lab(t, bed.Options{NIC: bed.Thread})
	turn := speed.Every(t, 3)
	for _, c := range []struct{ name, mechanism, config string }{
		{"pipeline", "pipeline", "aggregate: off\npriority: {mode: off}\n"},
		{"priority", "priority", "pipeline: off\nmicroflows: {mode: off}\naggregate: off\n"},
		{"priority-beside-aggregation", "priority", "pipeline: off\nmicroflows: {mode: off}\naggregate: forced\n"},
	} {
		if !turn() {
			continue
		}
		t.Run(c.name, func(t *testing.T) { onTrial(t, b, c.mechanism, c.config) })
	}
}

func onTrial(t *testing.T, b *bed.Bed, mechanism, config string) {
	rig.NeedCores(t, 2)
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	residue.Check(t, rig.Scope(b))
	s := stall(t)
	flows := 8
	if mechanism == "priority" {
		flows = 1 // whose packets a tunnel's GRO joins
	}
	tr := send(t, b, flows, flooded)
	if mechanism == "priority" {
		tr.besideSparse(t)
	}
	verdict, refused, err := awaitTrials(t, b, mechanism, config)
	if err := errors.Join(err, s.end()); err != nil {
		t.Fatal(err)
	}
	tr.judge(t, account{"lanes": refused})
	t.Logf("%s after %d pairs: packets %.2f, wait %.2f times", verdict.Verdict, verdict.Pairs, measured(verdict.Packets), measured(verdict.Wait))
}

// awaitTrials runs the daemon until the mechanism has had a trial, and ends it.
func awaitTrials(t *testing.T, b *bed.Bed, mechanism, config string) (verdict control.Trial, refused uint64, err error) {
	p := &product{bed: b, cores: steered(b)}
	p.Daemon = rig.Start(t, rig.Spec{NS: b.Receiver().NS, Program: program(t),
		Config: fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\n%s", b.Receiver().Wire, p.cores, config)})
	begin := time.Now()
	err = every(50*time.Millisecond, func() (bool, error) {
		st, err := p.status()
		if err != nil {
			return false, err
		}
		for _, tr := range st.Trials {
			if tr.Mechanism == mechanism {
				verdict = tr
				return true, nil
			}
		}
		if time.Since(begin) > patience.For(tooLong) {
			err = fmt.Errorf("no trial of %s has ended after %s: %+v\n%s", mechanism, time.Since(begin).Round(time.Second), st.Mechanisms, p.Log())
		}
		return false, err
	}, func(int) error { return nil })
	if err != nil {
		return verdict, 0, err
	}
	// What lanes refuse is known to the daemon alone: it may not go before it has been taken off.
	if err := p.configure(fmt.Sprintf("underlays: [%s]\ncores: %s\nmetrics: off\npipeline: off\naggregate: off\nmicroflows: {mode: off}\npriority: {mode: off}\n", b.Receiver().Wire, p.cores)); err != nil {
		return verdict, 0, err
	}
	err = p.await("all is switched off", func(st control.Status) bool {
		refused = st.Counters.Refused + st.Counters.LaneRefused
		for _, m := range st.Mechanisms {
			if m.State == control.Active {
				return false
			}
		}
		return true
	})
	if err != nil {
		return verdict, 0, err
	}
	return verdict, refused, p.end()
}

// measured is 0 for what was not.
func measured(x *float64) float64 {
	if x == nil {
		return 0
	}
	return *x
}
