// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"testing"
	"time"
)

// at is a window of so many packets each of which took so many units.
func at(packets uint64, units ...int) []uint64 {
	ways := make([]uint64, 128)
	for _, u := range units {
		ways[u] += packets
	}
	return ways
}

func delayAfter(windows int, ways []uint64) *Delay {
	d := NewDelay(10*time.Microsecond, 640*time.Microsecond)
	for range windows {
		d.Step(ways)
	}
	return d
}

func TestDelayIsTwiceTheLongestWay(t *testing.T) {
	d := delayAfter(surely-1, at(1000, 3, 7))
	if got := d.Now(); got != 640*time.Microsecond {
		t.Errorf("before enough was seen: %v", got)
	}
	d.Step(at(1000, 3, 7))
	if got := d.Now(); got != 160*time.Microsecond {
		t.Errorf("with ways of up to 80 us: %v", got)
	}
	d.Step(at(1000, 20))
	if got := d.Now(); got != 420*time.Microsecond {
		t.Errorf("with one window of 210 us: %v", got)
	}
	for range delayWindows {
		d.Step(at(1000, 3))
	}
	if got := d.Now(); got != 80*time.Microsecond {
		t.Errorf("once that is long ago: %v", got)
	}
}

func TestDelayForgetsNothingInAPause(t *testing.T) {
	d := delayAfter(surely, at(1000, 20))
	for range 2 * delayWindows {
		d.Step(at(0))
	}
	if got := d.Now(); got != 420*time.Microsecond {
		t.Errorf("after a pause: %v", got)
	}
}

func TestDelayMindsNoOneInTenThousand(t *testing.T) {
	ways := at(19_999, 3)
	ways[60] = 1
	if got := delayAfter(surely, ways).Now(); got != 80*time.Microsecond {
		t.Errorf("one of 20 000: %v", got)
	}
	ways[60] = 2
	ways[3]--
	ways[60]++
	if got := delayAfter(surely, ways).Now(); got != 640*time.Microsecond {
		t.Errorf("three of 20 000: %v", got)
	}
}

func TestDelayIsExceeded(t *testing.T) {
	if share, is := delayAfter(delayWindows, at(9, 64)).Exceeded(); is {
		t.Errorf("by %v of too few packets", share)
	}
	ways := at(99, 63)
	ways[64] = 1
	d := delayAfter(delayWindows, ways)
	if share, is := d.Exceeded(); is {
		t.Errorf("by %v of the packets, which is not too much", share)
	}
	if got := d.Now(); got != 640*time.Microsecond {
		t.Errorf("more than is allowed: %v", got)
	}
	ways[127] = 1
	if share, is := delayAfter(delayWindows, ways).Exceeded(); !is || share < 0.019 || share > 0.021 {
		t.Errorf("by 2 %% of the packets: %v, %v", share, is)
	}
}
