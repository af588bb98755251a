// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/trial"
	"github.com/overlane/overlane/internal/xdp"
)

// heard is a mechanism that tells when it is asked.
type heard struct {
	recorded
	polled, scanned chan struct{}
}

func (h heard) Poll(context.Context, time.Time) error { h.polled <- struct{}{}; return nil }
func (h heard) Rescanned(context.Context) error       { h.scanned <- struct{}{}; return nil }

// A scan of hundreds of devices takes longer than flows can wait for decisions.
func TestTheLoopGoesOnDuringAScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d, _ := loop()
		d.log, d.guard, d.scanner, d.ended = slog.New(slog.DiscardHandler), &apply.Guardian{}, &node.Scanner{}, make(chan struct{})
		d.host.Changes, d.places = host.NewChanges(d.log, 0), &xdp.Places{}
		d.trials, d.requests = trial.NewTrials(d.log, nil), make(chan func())
		d.sampling = calm
		m := heard{recorded{polls: true, calls: new([]string)}, make(chan struct{}), make(chan struct{})}
		d.mechs.all = append(d.mechs.all, m)
		begun, goOn := make(chan struct{}), make(chan error)
		taken := 0
		d.look = func(ctx context.Context) (func(), error) {
			begun <- struct{}{}
			select {
			case err := <-goOn:
				return func() { taken++ }, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		ended := make(chan error)
		go func() { ended <- d.Run(ctx) }()
		rescan := func() { _ = d.do(ctx, func() error { d.rescan(ctx); return nil }) }

		rescan()
		<-begun
		rescan()      // nothing: one is under way
		for range 3 { // and no window ends, for which there would have to be programs
			<-m.polled
		}
		if taken != 0 || d.pace.Scans != 0 {
			t.Error("a scan that has not ended is taken over")
		}
		goOn <- nil
		<-m.scanned
		_ = d.do(ctx, func() error { return nil })
		if taken != 1 || d.pace.Scans != 1 {
			t.Errorf("the scan was taken over %d times, and counts as %d", taken, d.pace.Scans)
		}

		rescan()
		<-begun
		goOn <- errors.New("rtnetlink is busy")
		<-m.polled
		rescan()
		<-begun // one is under way: the daemon ends without its end
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if taken != 1 {
			t.Error("a scan that failed is taken over")
		}
	})
}
