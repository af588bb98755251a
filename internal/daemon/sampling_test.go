// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"math"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/governor"
)

// A load for which there is nothing to do is traced until that is known, and again when it
// changes, or after a while.
func TestAnIdleLoadIsSampledNowAndThen(t *testing.T) {
	const rate = 20000
	begin := time.Unix(1000, 0)
	at := func(since time.Duration) governor.Input { return governor.Input{Now: begin.Add(since)} }
	var l idleBackoff
	if l.holds(begin, 0) {
		t.Error("nothing was seen, and it holds")
	}
	for _, since := range []time.Duration{0, idleAfter - 1, idleAfter} {
		l = idleBackoff{}
		l.seen(at(0), rate)
		l.seen(at(0), rate/2)
		if got, enough := l.seen(at(since), rate), since == idleAfter; got != enough {
			t.Errorf("seen for %s: enough is %t", since, got)
		}
	}
	for _, tc := range []struct {
		name string
		now  time.Time
		rate float64
		want bool
	}{
		{"at once", begin.Add(idleAfter), rate, true},
		{"as little as once", begin.Add(idleAfter), rate / 2, true},
		{"a larger load", begin.Add(idleAfter), changedLoad * rate, false},
		{"nearly larger", begin.Add(idleAfter), changedLoad*rate - 1, true},
		{"a smaller load", begin.Add(idleAfter), rate / 2 / changedLoad, false},
		{"nearly smaller", begin.Add(idleAfter), rate/2/changedLoad + 1, true},
		{"no rate", begin.Add(idleAfter), math.Inf(1), false},
		{"in time", begin.Add(idleAfter + backoffFor - 1), rate, true},
		{"later", begin.Add(idleAfter + backoffFor), rate, false},
		{"a clock that jumps back", begin, rate, false},
	} {
		if got := l.holds(tc.now, tc.rate); got != tc.want {
			t.Errorf("%s: it holds is %t", tc.name, got)
		}
	}
	before := l
	if l.seen(at(time.Hour), math.Inf(1)) || l.most != before.most {
		t.Error("a window without a rate counts")
	}
}
