// SPDX-License-Identifier: Apache-2.0

package order

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/internal/lab/datagram"
	"github.com/overlane/overlane/internal/lab/traffic"
	"github.com/overlane/overlane/test/e2e/rig"
)

// load is what traffic a run gets.
type load string

const (
	// paced traffic fills no queue: the sender knows what is under way.
	paced load = "paced"
	// windowed is as much as that allows, all the time.
	windowed load = "windowed"
	// lossy is the same at a fixed pace, whatever overflows, and with one packet
	// in a thousand dropped inside of the path.
	lossy load = "lossy"
	// open is the same, with nothing dropped on purpose, and no program of the tests on the way.
	open load = "open"
	// flooded is as much as can be sent: every queue overflows.
	flooded load = "flooded"
)

// underWay is less than the wire's ring holds.
const underWay = 224

// stream is traffic under way from the sender's pod to the receiver's, and followed.
type stream struct {
	bed    *bed.Bed
	flows  int
	check  *traffic.Checker
	losses losses
	lives  []*traffic.Live // one for each queue of the NIC
	sparse *traffic.Segments
	before account
	// excused are packets that were allowed to be late.
	excused uint64
	// row is what will be told of it.
	row    row
	chosen *choices // nil where lanes are not chosen by flow
}

// among takes the lanes that there are from a status.
func (tr *stream) among(st control.Status) {
	if len(st.Lanes) > 0 {
		tr.row.Placed = placed(st)
	}
	if tr.chosen != nil {
		tr.chosen.among(st)
	}
}

func send(t *testing.T, b *bed.Bed, flows int, l load) *stream {
	t.Helper()
	tr := &stream{bed: b, flows: flows, row: row{Name: t.Name()}}
	t.Cleanup(func() {
		if err := tr.close(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if tr.check, err = traffic.NewChecker(-1); err != nil {
		t.Fatal(err)
	}
	// Flows come by the queues in turn: a flow stays on one.
	list := make([][]traffic.Flow, min(b.Queues, flows))
	for id := range flows {
		q := id % len(list)
		list[q] = append(list[q], traffic.NewFlow(b, id, 0, true, false, 0))
	}
	to := netip.AddrPortFrom(list[0][0].Dst, list[0][0].DstPort)
	if err := tr.check.Listen(b.Receiver().Pods[0].NS, to); err != nil {
		t.Fatal(err)
	}
	if l == lossy {
		if tr.losses, err = lose(b); err != nil {
			t.Fatal(err)
		}
	}
	if tr.before, err = drops(b); err != nil {
		t.Fatal(err)
	}
	if (l == lossy || l == open) && *machine && b.NIC == bed.Thread {
		// In a machine that is emulated, waiting for a pace costs as much as any work. This one sleeps.
		cfg := traffic.SegmentConfig{Flows: slices.Concat(list...), Size: datagram.MinSize, Rate: float64(*rate), Burst: 4, Core: b.PlaceCores().Paced}
		if tr.sparse, err = traffic.StartSegments(b, cfg); err != nil {
			t.Fatal(err)
		}
		return tr
	}
	cfg := traffic.LiveConfig{Size: datagram.MinSize, Gap: time.Duration(len(list)) * time.Second / time.Duration(*rate)}
	switch l {
	case paced, windowed:
		if err := tr.check.CountArrivals(b.Receiver().Pods[0].NS, podIndex(t, b)); err != nil {
			t.Fatal(err)
		}
		cfg.Window, cfg.UnderWay = underWay, tr.check.UnderWay()
		if l == windowed {
			cfg.Gap = 0
		}
	case flooded:
		cfg.Gap = 0
	}
	if b.NIC == bed.Softirq {
		cfg.Batch = 128 // longer than a poll's budget
	}
	for q, flows := range list {
		cfg.Flows, cfg.Core = flows, b.PlaceCores().Gen[q]
		live, err := traffic.StartLive(b, cfg)
		if err != nil {
			t.Fatal(err)
		}
		tr.lives = append(tr.lives, live)
	}
	return tr
}

// besideSparse adds one flow of few datagrams, each some time after the one before.
func (tr *stream) besideSparse(t *testing.T) {
	t.Helper()
	f := traffic.NewFlow(tr.bed, tr.flows, 0, true, false, 0)
	var err error
	cfg := traffic.SegmentConfig{Flows: []traffic.Flow{f}, Size: datagram.MinSize, Rate: 500, Burst: 1, Core: tr.bed.PlaceCores().Apps}
	if tr.sparse, err = traffic.StartSegments(tr.bed, cfg); err != nil {
		t.Fatal(err)
	}
	tr.flows++
}

func podIndex(t *testing.T, b *bed.Bed) (index int) {
	t.Helper()
	err := b.Receiver().Pods[0].NS.Do(func() error {
		dev, err := net.InterfaceByName(bed.PodDev)
		if err == nil {
			index = dev.Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func (tr *stream) received() (uint64, error) {
	v, err := tr.check.Total(tr.flows)
	return v.Received, err
}

// late is how many packets came after a later one of their flow so far.
func (tr *stream) late(t *testing.T) uint64 {
	t.Helper()
	v, err := tr.check.Total(tr.flows)
	if err != nil {
		t.Fatal(err)
	}
	return v.Reordered
}

// dropped is what counters say did not come, and why.
func (tr *stream) dropped() (account, error) {
	now, err := drops(tr.bed)
	if err != nil {
		return nil, err
	}
	all := now.since(tr.before)
	lost, err := tr.losses.account()
	maps.Copy(all, lost)
	return all, err
}

// judge ends the traffic and accounts for every packet of it; own is what the product says that it has
// dropped.
func (tr *stream) judge(t *testing.T, own account) {
	t.Helper()
	sent, err := tr.stop()
	if err != nil {
		t.Fatal(err)
	}
	var v traffic.Verdict
	var a account
	rig.AwaitAll(sent, func() uint64 {
		if v, err = tr.check.Total(tr.flows); err != nil {
			t.Fatal(err)
		}
		if a, err = tr.dropped(); err != nil {
			t.Fatal(err)
		}
		maps.Copy(a, own)
		return v.Received + a.sum()
	})
	r := &tr.row
	r.Sent, r.Received, r.Late, r.Twice, r.Drops = sent, v.Received, v.Reordered-tr.excused, v.Duplicated, a
	r.Lost = int64(sent - v.Received - a.sum())
	r.tell(t)
	if late := r.Late; late > 0 {
		t.Errorf("%d packets came after a later one of their flow", late)
	}
	if v.Duplicated > 0 {
		t.Errorf("%d packets came twice", v.Duplicated)
	}
	if v.Stale > 0 {
		t.Errorf("%d packets came so late that the checker does not know whether they came twice", v.Stale)
	}
	if r.Lost != 0 {
		t.Errorf("of %d packets %d came and %d were counted as dropped: %d are not accounted for", sent, v.Received, a.sum(), r.Lost)
	}
}

// stop ends what sends, and returns how many frames were sent in all.
func (tr *stream) stop() (sent uint64, err error) {
	for _, l := range tr.lives {
		s, serr := l.Stop()
		err = errors.Join(err, serr)
		tr.row.Queues = append(tr.row.Queues, s.Frames)
	}
	tr.lives = nil
	if g := tr.sparse; g != nil {
		err = errors.Join(err, g.Stop())
		tr.row.Queues, tr.sparse = append(tr.row.Queues, g.Sent()), nil
	}
	for _, n := range tr.row.Queues {
		sent += n
	}
	return sent, err
}

func (tr *stream) close() error {
	_, err := tr.stop()
	errs := []error{err, tr.losses.close()}
	if tr.check != nil {
		errs = append(errs, tr.check.Close())
	}
	return errors.Join(errs...)
}
