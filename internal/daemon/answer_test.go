// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"testing"
	"time"
)

// A caller that asks gets an answer while programs are loaded, one that wants something changed waits:
// the daemon is in the middle of a change.
func TestWhileProgramsAreLoadedQuestionsAreAnsweredAndNothingIsChanged(t *testing.T) {
	d := &Daemon{requests: make(chan func()), questions: make(chan func()), ended: make(chan struct{})}
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
