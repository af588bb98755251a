// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"log/slog"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/datapath"
	"github.com/overlane/overlane/internal/governor"
)

// node delivers so many frames in each window of 35 ms: more while the mechanism acts.
type node struct {
	*Trials
	sum     Totals
	off, on uint64
	cores   []int // asked for last
	now     time.Time
}

func newNode(off, on uint64, all ...*Trial) *node {
	n := &node{off: off, on: on, now: time.Unix(1_800_000_000, 0)}
	n.Trials = NewTrials(slog.New(slog.DiscardHandler), n.count, all...)
	return n
}

func (n *node) count(_ Share, cores []int) (Totals, error) {
	n.cores = cores
	return n.sum, nil
}

// pass lets a window pass in which the mechanism acted, or did not.
func (n *node) pass(acts bool) governor.Input {
	n.now = n.now.Add(measures)
	came := n.off
	if acts {
		came = n.on
	}
	n.sum.At, n.sum.All[datapath.NIC] = n.now, n.sum.All[datapath.NIC]+came
	n.sum.Could += came
	if acts {
		n.sum.Acted += came
	}
	return governor.Input{Now: n.now, Cores: map[int]governor.Core{0: {Rate: 1e5, Saturated: 1}}}
}

func (n *node) verdict(t *testing.T, of *Trial) governor.Outcome {
	t.Helper()
	for range 1000 {
		in := n.pass(of.On())
		if _, err := n.Try(of, in, Situation(in), nil, nil); err != nil {
			t.Fatal(err)
		}
		if known := of.Judge.Known(); len(known) > 0 && n.Trying() == nil {
			return known[0].Outcome
		}
		for only := true; only; {
			var err error
			if only, err = n.Settled(); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("no verdict in 1000 windows")
	return 0
}

func TestWhatBringsMoreStaysAndWhatBringsLessGoes(t *testing.T) {
	for name, tt := range map[string]struct {
		on   uint64
		want governor.Outcome
		acts bool
	}{
		"half as much again": {15_000, governor.Better, true},
		"half":               {5_000, governor.Worse, false},
	} {
		t.Run(name, func(t *testing.T) {
			of := New("pipeline", ForGoodput, Settles)
			n := newNode(10_000, tt.on, of)
			if got := n.verdict(t, of); got != tt.want || of.On() != tt.acts {
				t.Errorf("%s, and it acts: %t; want %s, %t", got, of.On(), tt.want, tt.acts)
			}
			if list := n.Report(); len(list) != 1 || list[0].Mechanism != "pipeline" || list[0].Verdict != tt.want.String() {
				t.Errorf("reported: %+v", list)
			}
		})
	}
}

// While one is on trial another one does not change: each would measure the other's switch.
func TestOneTrialAtATime(t *testing.T) {
	first, second := New("pipeline", ForGoodput, Settles), New("express", ForGoodput, time.Second)
	n := newNode(10_000, 15_000, first, second)
	in := n.pass(false)
	if _, err := n.Try(first, in, Situation(in), nil, []int{0, 1}); err != nil {
		t.Fatal(err)
	}
	if n.Trying() != first || !n.Tries("pipeline") || n.Tries("express") {
		t.Fatal("the first one is not on trial")
	}
	n.cores = nil
	if on, err := n.Try(second, in, Situation(in), nil, nil); on || err != nil || second.Judge.Trying() || n.cores != nil {
		t.Errorf("the second one acts: %t, is on trial: %t, read %v: %v", on, second.Judge.Trying(), n.cores, err)
	}
	first.Leave()
	if n.Trying() != nil {
		t.Error("a trial that was left goes on")
	}
	if _, err := n.Try(second, in, Situation(in), nil, nil); err != nil || n.Trying() != second {
		t.Errorf("the second one is not on trial after the first: %v", err)
	}
}

// Between a switch and its window flows follow; where nothing is tried the daemon waits as long as it likes.
func TestWindowsWaitForFlowsToFollow(t *testing.T) {
	of := New("express", ForGoodput, 110*time.Millisecond)
	n := newNode(10_000, 15_000, of)
	if got := n.Window(time.Minute); got != time.Minute {
		t.Errorf("with nothing on trial: %s", got)
	}
	for range 100 {
		in := n.pass(of.On())
		if _, err := n.Try(of, in, Situation(in), nil, nil); err != nil {
			t.Fatal(err)
		}
		if got := n.Window(time.Minute); of.settling && got != 110*time.Millisecond {
			t.Fatalf("after a switch: %s", got)
		} else if of.settling {
			if only, err := n.Settled(); !only || err != nil || of.settling {
				t.Fatalf("it begins: %t, settles on: %t: %v", only, of.settling, err)
			}
			return
		}
	}
	t.Fatal("nothing was switched in 100 windows")
}
