// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/apply"
	"github.com/overlane/overlane/internal/host"
	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/trial"
)

// resting is a mechanism that rests on what foreign programs do, and says when it looks.
type resting struct {
	recorded
	look func(what string, now time.Time)
}

func (r resting) Poll(_ context.Context, now time.Time) error   { r.look("poll", now); return nil }
func (r resting) Follow(_ context.Context, now time.Time) error { r.look("follow", now); return nil }

// Within 100 ms nothing passes by what a foreign program plants (docs/faults.md). The loop has half of that to look:
// the look itself and what it leads to take the rest.
func TestTheLoopLooksInTimeForWhatForeignProgramsPlant(t *testing.T) {
	const promised = 100 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		d, _ := loop()
		d.log, d.guard, d.scanner, d.ended = slog.New(slog.DiscardHandler), &apply.Guardian{}, &node.Scanner{}, make(chan struct{})
		d.host.Changes = host.NewChanges(d.log, 0)
		d.trials, d.sampling = trial.NewTrials(d.log, nil), calm
		told := make(chan struct{}, 1)
		planted, polled := time.Now(), time.Now()
		followed, polls := false, 0
		d.mechs.all = append(d.mechs.all, resting{recorded{polls: true, changed: told, calls: new([]string)}, func(what string, now time.Time) {
			if what == "follow" {
				followed = true
				if late := now.Sub(planted); late > 0 {
					t.Errorf("what an event tells of is looked at %s later", late)
				}
				return
			}
			polls++
			if gap := now.Sub(polled); gap > promised/2 {
				t.Errorf("%s lie between two looks for what makes no event", gap)
			}
			polled = now
		}})
		ctx, cancel := context.WithTimeout(t.Context(), d.sampling.window()-time.Millisecond) // no window ends
		defer cancel()
		time.AfterFunc(promised/8, func() {
			planted = time.Now()
			told <- struct{}{}
		})
		if err := d.Run(ctx); err != nil {
			t.Error(err)
		}
		if !followed || polls < 2 {
			t.Errorf("an event was followed: %t; there were %d looks for what makes none", followed, polls)
		}
	})
}
