// SPDX-License-Identifier: Apache-2.0

package governor

import (
	"strings"
	"testing"
	"time"
)

func TestPriorityIsAskedForWhereSparseFlowsComeBesideBulk(t *testing.T) {
	t.Parallel()
	beside := Census{Flows: 3, Sparse: 900, All: 200_000}
	for name, c := range map[string]struct {
		saturated float64
		counted   Census
		want      State
		reason    string
	}{
		"a core with time to spare":  {0.1, beside, Standby, "no core is short of time"},
		"sparse flows beside bulk":   {0.5, beside, Active, "3 small, sparse flows come beside bulk"},
		"bulk alone":                 {0.5, Census{All: 200_000}, Standby, "no small, sparse flow"},
		"nothing but sparse flows":   {0.5, Census{Flows: 500, Sparse: 90_000, All: 100_000}, Standby, "90 % of the packets"},
		"a census of nothing at all": {0.5, Census{}, Standby, "no small, sparse flow"},
	} {
		d, now := &Demand{}, time.Unix(1000, 0)
		censuses := 0
		for range 100 {
			now = now.Add(100 * time.Millisecond)
			if d.Step(now, c.saturated); d.Last().State == Parked && d.Over(now) {
				d.Counted(now, c.counted)
				censuses++
			}
			if d.Last().Reason == "" {
				t.Fatalf("%s: no reason", name)
			}
		}
		if d.Last().State != c.want || !strings.Contains(d.Last().Reason, c.reason) {
			t.Errorf("%s: %v, %q; want %v, %q", name, d.Last().State, d.Last().Reason, c.want, c.reason)
		}
		if censuses > 1 {
			t.Errorf("%s: %d censuses in ten seconds", name, censuses)
		}
	}
}

func TestPriorityStaysForAMinuteWithoutNeed(t *testing.T) {
	t.Parallel()
	d, now := &Demand{}, time.Unix(1000, 0)
	for d.Last().State != Parked {
		now = now.Add(100 * time.Millisecond)
		d.Step(now, 1)
	}
	d.Counted(now, Census{Flows: 1, Sparse: 100, All: 10_000})
	for range 590 {
		now = now.Add(100 * time.Millisecond)
		if d.Step(now, 0).State != Active {
			t.Fatalf("it ended: %s", d.Last().Reason)
		}
	}
	d.Step(now.Add(100*time.Millisecond), 1)
	for range 620 {
		now = now.Add(100 * time.Millisecond)
		d.Step(now, 0)
	}
	if d.Last().State != Standby {
		t.Errorf("a minute without need: %v, %s", d.Last().State, d.Last().Reason)
	}
	// What did not pay is not asked for at once.
	d.Refuse(now, "it did not pay")
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		if d.Step(now, 1); d.Last().State != Standby {
			t.Fatalf("asked for again: %s", d.Last().Reason)
		}
	}
}
