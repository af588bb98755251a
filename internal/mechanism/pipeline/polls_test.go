// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/governor"
)

// Tier xdp keeps off cores that poll a queue, also while nothing comes to that for a while.
func TestAQueueThatIsQuietIsStillPolled(t *testing.T) {
	var p polls
	begin := time.Unix(1000, 0)
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
	saw := func(s float64, armed bool, rates ...float64) {
		in := governor.Input{Now: at(s), Cores: map[int]governor.Core{}}
		for core, r := range rates {
			in.Cores[core] = governor.Core{Overlay: r}
		}
		p.saw(in, armed)
	}
	saw(0, false, 1000, 0)
	saw(1, false, 0, 1000)
	for s := 2.0; s < 50; s++ {
		saw(s, false, 1000, 0)
	}
	if got := p.lately(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("%v poll", got)
	}
	// Lanes are out for an hour: what polls then is theirs, and what is known stays.
	for s := 50.0; s < 3650; s++ {
		saw(s, true, 0, 0, 1000)
	}
	saw(3649.5, false, 0, 0, 1000)
	if got := p.lately(); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("behind lanes, %v poll", got)
	}
	for s := 3652.0; s < 3720; s++ {
		saw(s, false, 1000, 0)
	}
	if got := p.lately(); !slices.Equal(got, []int{0}) {
		t.Errorf("after a minute, %v poll", got)
	}
}
