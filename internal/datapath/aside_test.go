// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"testing"
)

// A load that does not end before a question has been answered: it ends, and says how.
func TestWhatIsToBeDoneMeanwhileDoesNotWaitForALoad(t *testing.T) {
	var d Datapath
	answered := make(chan struct{})
	d.Meanwhile(func(loaded <-chan struct{}) {
		close(answered)
		<-loaded
	})
	want := errors.New("refused by the verifier")
	if err := d.aside(func() error { <-answered; return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}
