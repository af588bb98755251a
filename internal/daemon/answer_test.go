// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/overlane/overlane/internal/mechanism"
	"github.com/overlane/overlane/internal/shortcut"
)

// A caller that asks gets an answer while programs are loaded, one that wants something changed waits:
// the daemon is in the middle of a change.
func TestWhileProgramsAreLoadedQuestionsAreAnsweredAndNothingIsChanged(t *testing.T) {
	d, _ := loop(recorded{steers: mechanism.EachWindow}) // so that no heartbeat is sent, for which there is no program
	d.requests, d.questions, d.ended = make(chan func()), make(chan func()), make(chan struct{})
	loaded, over := make(chan struct{}), make(chan struct{})
	go func() { // the daemon's own
		d.answer(loaded)
		close(over)
		(<-d.requests)()
	}()
	changed := make(chan error)
	go func() { changed <- d.do(t.Context(), func() error { return nil }) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 3 {
		if err := d.ask(ctx, func() error { return nil }); err != nil {
			t.Fatalf("no answer while programs are loaded: %v", err)
		}
		select {
		case <-changed:
			t.Fatal("something was changed while programs were loaded")
		default:
		}
	}
	close(loaded)
	<-over
	if err := <-changed; err != nil {
		t.Errorf("the change that waited for the end of loading: %v", err)
	}
}

// Mechanisms look for policies during a load that takes longer than a policy may be passed by: as often as the loop does.
func TestWhileProgramsAreLoadedMechanismsLookForPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, loaded := make(chan time.Time), make(chan struct{})
		d, _ := loop(recorded{steers: mechanism.EachWindow, looks: looks})
		go d.answer(loaded)
		for last, n := time.Now(), 0; n < 20; n++ {
			select {
			case now := <-looks:
				if gap := now.Sub(last); gap > shortcut.PollEvery {
					t.Errorf("look %d comes %s after the one before", n, gap)
				}
				last = now
			case <-time.After(time.Minute):
				t.Fatal("no mechanism looks while programs are loaded")
			}
		}
		close(loaded)
	})
}
