// SPDX-License-Identifier: Apache-2.0

package order

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/config"
	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/governor"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/residue"
)

// run is one stretch of traffic with the product at work in it.
type run struct {
	bed   *bed.Bed
	tier  governor.Tier
	flows int
	lossy bool
	start starter
	scene scene
	// until is how much must have happened before the run may end.
	until progress
}

// progress is how far a run is.
type progress struct {
	packets uint64 // sent
	changes uint64 // of lanes, completed
}

// offered is the packet rate of all flows together: queues fill in bursts, and
// no core is saturated for long.
const offered = 150_000

// do has one story for every scene: traffic; the product starts and acts; the
// scene; the product ends; traffic still. Then everything that was sent must
// have come in order, once, or have been counted as dropped.
func (r run) do(t *testing.T) {
	needRoot(t)
	if err := r.bed.Reset(); err != nil {
		t.Fatal(err)
	}
	residue.Check(t, r.scope())
	tr := r.offer(t)
	defer tr.close(t)

	p := r.start(t, setup{bed: r.bed, tier: r.tier, cores: r.bed.PlaceCores().Steer, dir: stateDir(t)})
	changes, err := r.act(t, p, tr)
	if err := errors.Join(err, p.Stop()); err != nil {
		t.Fatal(err)
	}
	tr.settle(t, changes)
}

// act plays the scene and calls the flows home. It returns the number of lane
// changes.
func (r run) act(t *testing.T, p product, tr *offer) (uint64, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if err := await(ctx, p, "start", acts); err != nil {
		return 0, err
	}
	begun, err := p.Status(ctx)
	if err != nil {
		return 0, err
	}
	enough := func() (bool, error) {
		st, err := p.Status(ctx)
		if err != nil {
			return false, err
		}
		s, err := tr.live.Sent()
		done := s.Frames >= r.until.packets && st.Counters.LaneChanges-begun.Counters.LaneChanges >= r.until.changes
		if err == nil && !done && ctx.Err() != nil {
			err = fmt.Errorf("%d packets and %d lane changes in all that time: %w", s.Frames, st.Counters.LaneChanges, ctx.Err())
		}
		return done, err
	}
	if err := r.scene(ctx, p, r.bed.PlaceCores().Steer, enough); err != nil {
		return 0, err
	}
	if r.tier != governor.XDP {
		st, err := p.Status(ctx)
		return st.Counters.LaneChanges, err // and ends as it is, with flows on lanes
	}
	// What lanes drop is known to the product alone, so it may not go before
	// it has told.
	if err := p.Enable(ctx, false); err != nil {
		return 0, err
	}
	if err := await(ctx, p, "switch off", func(st control.Status) bool { return len(st.Lanes) == 0 }); err != nil {
		return 0, err
	}
	st, err := p.Status(ctx)
	return st.Counters.LaneChanges, err
}

func (r run) scope() residue.Scope {
	rx := r.bed.Receiver()
	s := residue.Scope{Namespaces: []string{residue.FD(rx.NS.FD())}}
	if rx.Overlay != rx.NS {
		s.Namespaces = append(s.Namespaces, residue.FD(rx.Overlay.FD()))
	}
	for _, p := range rx.Pods {
		s.Namespaces = append(s.Namespaces, residue.FD(p.NS.FD()))
	}
	return s
}

// offer is traffic under way and what is known of it.
type offer struct {
	run    run
	check  *traffic.Checker
	losses losses
	live   *traffic.Live
	before account
}

func (r run) offer(t *testing.T) *offer {
	t.Helper()
	o := &offer{run: r}
	var err error
	defer func() {
		if t.Failed() {
			o.close(t)
		}
	}()
	if o.check, err = traffic.NewChecker(-1); err != nil {
		t.Fatal(err)
	}
	var flows []traffic.Flow
	for id := range r.flows {
		flows = append(flows, traffic.NewFlow(r.bed, id, 0, true, false, 0))
	}
	to := netip.AddrPortFrom(flows[0].Dst, flows[0].DstPort)
	if err := o.check.Listen(r.bed.Receiver().Pods[0].NS, to); err != nil {
		t.Fatal(err)
	}
	if r.lossy {
		o.losses = lose(t, r.bed)
	}
	if o.before, err = drops(r.bed); err != nil {
		t.Fatal(err)
	}
	cfg := traffic.LiveConfig{Flows: flows, Size: traffic.MinSize, Core: r.bed.PlaceCores().Gen[0], Gap: time.Second / offered}
	if r.bed.NIC == bed.Softirq {
		cfg.Batch = 128 // longer than a poll's budget
	}
	if o.live, err = traffic.StartLive(r.bed, cfg); err != nil {
		t.Fatal(err)
	}
	return o
}

// dropped is what counters say did not come, and why.
func (o *offer) dropped() (account, error) {
	now, err := drops(o.run.bed)
	if err != nil {
		return nil, err
	}
	all := now.since(o.before)
	lost, err := o.losses.account()
	maps.Copy(all, lost)
	return all, err
}

// settle ends the traffic and judges it.
func (o *offer) settle(t *testing.T, changes uint64) {
	t.Helper()
	live := o.live
	o.live = nil
	sent, err := live.Stop()
	if err != nil {
		t.Fatal(err)
	}
	var v traffic.Verdict
	var a account
	// What is in queues comes yet; nothing tells that they are empty.
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		v, err = o.check.Total(o.run.flows)
		if err != nil {
			t.Fatal(err)
		}
		if a, err = o.dropped(); err != nil {
			t.Fatal(err)
		}
		if v.Received+a.sum() == sent.Frames || time.Now().After(deadline) {
			break
		}
	}
	t.Logf("%d packets sent, %d received in order, %d lane changes; drops: %s",
		sent.Frames, v.Received-v.Reordered, changes, a)
	if v.Reordered > 0 || v.Duplicated > 0 || v.Stale > 0 {
		t.Errorf("%d packets came after a later one of their flow, %d came twice, %d so late that nobody knows", v.Reordered, v.Duplicated, v.Stale)
	}
	if n := v.Received + a.sum(); n != sent.Frames {
		t.Errorf("of %d packets %d were received and %d were counted as dropped: %+d", sent.Frames, v.Received, a.sum(), int64(n-sent.Frames))
	}
	if changes < o.run.until.changes {
		t.Errorf("%d lane changes, at least %d make a test", changes, o.run.until.changes)
	}
}

func (o *offer) close(t *testing.T) {
	t.Helper()
	var errs []error
	if o.live != nil {
		_, err := o.live.Stop()
		errs = append(errs, err)
	}
	errs = append(errs, o.losses.close())
	if o.check != nil {
		errs = append(errs, o.check.Close())
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	o.live, o.losses, o.check = nil, nil, nil
}

// scene is what happens to the product while traffic flows, until enough has.
type scene func(ctx context.Context, p product, cores config.CPUList, enough func() (bool, error)) error

// steady: nothing happens.
func steady(ctx context.Context, _ product, _ config.CPUList, enough func() (bool, error)) error {
	return every(50*time.Millisecond, enough, func(int) error { return nil })
}

// resteered: each poll wishes for another lane.
func resteered(ctx context.Context, p product, _ config.CPUList, enough func() (bool, error)) error {
	if err := p.Resteer(ctx, true); err != nil {
		return err
	}
	if err := every(50*time.Millisecond, enough, func(int) error { return nil }); err != nil {
		return err
	}
	return p.Resteer(ctx, false)
}

// toggled: the pipeline is switched off and on.
func toggled(ctx context.Context, p product, _ config.CPUList, enough func() (bool, error)) error {
	err := every(100*time.Millisecond, enough, func(i int) error { return p.Enable(ctx, i%2 == 1) })
	if err != nil {
		return err
	}
	if err := p.Enable(ctx, true); err != nil {
		return err
	}
	return await(ctx, p, "switch on", acts)
}

// shrunk: a core leaves the configured set, and comes back once no lane is left
// on it.
func shrunk(ctx context.Context, p product, cores config.CPUList, enough func() (bool, error)) error {
	last := cores[len(cores)-1]
	fewer := cores.Minus(config.CPUList{last})
	return every(0, enough, func(int) error {
		if err := p.SetCores(ctx, fewer); err != nil {
			return err
		}
		if err := await(ctx, p, fmt.Sprintf("core %d leaves", last), func(st control.Status) bool { return !uses(st, last) }); err != nil {
			return err
		}
		if err := p.SetCores(ctx, cores); err != nil {
			return err
		}
		return await(ctx, p, fmt.Sprintf("core %d comes back", last), func(st control.Status) bool { return acts(st) && uses(st, last) })
	})
}

// every calls fn with 0, 1, 2, ... in even steps until enough has happened.
func every(pause time.Duration, enough func() (bool, error), fn func(i int) error) error {
	for i, next := 0, time.Now(); ; i++ {
		if err := fn(i); err != nil {
			return err
		}
		if done, err := enough(); done || err != nil {
			return err
		}
		next = next.Add(pause)
		time.Sleep(time.Until(next)) // the beat is the scene, not a wait
	}
}
