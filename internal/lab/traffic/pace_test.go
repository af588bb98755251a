// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// handClock stands still but for sleeps and what a test adds.
type handClock struct{ t uint64 }

func (c *handClock) now() uint64         { return c.t }
func (c *handClock) sleepUntil(t uint64) { c.t = max(c.t, t) }

// ms are the milliseconds that each slot took.
func ms(took []time.Duration) (list []int) {
	for _, d := range took {
		list = append(list, int(d/time.Millisecond))
	}
	return list
}

const tick = uint64(time.Millisecond)

func TestPaceCountsFromTheIntendedTime(t *testing.T) {
	for name, tc := range map[string]struct {
		pace   pace
		takes  map[int]uint64 // ms for an answer, where it is not 1
		never  int            // the slot that is not answered, from 1
		took   []int
		missed int
		open   int
	}{
		"nothing special": {pace: pace{slots: 4}, took: []int{1, 1, 1, 1}},
		// Slots 2 and 3 had to wait, and are not to look as if they had not.
		"one answer is slow":                    {pace: pace{slots: 5}, takes: map[int]uint64{1: 25}, took: []int{1, 25, 16, 7, 1}, missed: 1},
		"the slow one comes before what counts": {pace: pace{slots: 5, skip: 2}, takes: map[int]uint64{1: 25}, took: []int{16, 7, 1}, missed: 1},
		"late, but within patience":             {pace: pace{slots: 3, patience: 100}, takes: map[int]uint64{2: 90}, took: []int{1, 1, 90}},
		// The last answer comes at 54; slot 2 was due at 20, and 3 and 4 after it.
		"later than patience": {pace: pace{slots: 5, patience: 3}, takes: map[int]uint64{1: 44}, took: []int{1, 44, 34, 24, 14}, open: 3},
		"never":               {pace: pace{slots: 4, patience: 5}, never: 2, took: []int{1, 35, 25, 15}, open: 3},
	} {
		t.Run(name, func(t *testing.T) {
			c := &handClock{t: 7 * tick}
			p := tc.pace
			p.first, p.every, p.patience = c.t, 10*tick, p.patience*tick
			got, err := p.keep(c, new(atomic.Bool), func(slot int) (bool, error) {
				if slot == tc.never-1 {
					c.t = p.until()
					return false, nil
				}
				d, ok := tc.takes[slot]
				if !ok {
					d = 1
				}
				c.t += d * tick
				return true, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(ms(got.took), tc.took) || got.missed != tc.missed || got.open != tc.open {
				t.Errorf("took %v, %d missed, %d open; want %v, %d, %d", ms(got.took), got.missed, got.open, tc.took, tc.missed, tc.open)
			}
		})
	}
}

func TestPaceSendsNoRequestEarly(t *testing.T) {
	c := &handClock{t: 100}
	p := pace{first: 1000, every: 10, slots: 3}
	var at []uint64
	if _, err := p.keep(c, new(atomic.Bool), func(int) (bool, error) {
		at = append(at, c.t)
		return true, nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{1000, 1010, 1020}; !slices.Equal(at, want) {
		t.Errorf("sent at %v, want %v", at, want)
	}
}

func TestPaceThatIsStoppedLeavesOutWhatWasNotDue(t *testing.T) {
	c := &handClock{}
	var stop atomic.Bool
	p := pace{every: 10 * tick, slots: 100}
	got, err := p.keep(c, &stop, func(slot int) (bool, error) {
		stop.Store(slot == 2)
		c.t += tick
		return true, nil
	})
	if err != nil || len(got.took) != 3 || got.open != 0 {
		t.Errorf("%v, %d open, %v; want three answers", ms(got.took), got.open, err)
	}
	broken := errors.New("broken")
	if _, err := p.keep(&handClock{}, new(atomic.Bool), func(int) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("error of the exchange: %v", err)
	}
}
