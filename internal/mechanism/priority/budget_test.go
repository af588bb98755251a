// SPDX-License-Identifier: Apache-2.0

package priority

import (
	"strings"
	"testing"
	"time"

	"github.com/overlane/overlane/internal/node"
	"github.com/overlane/overlane/internal/plan"
)

// What is named is what brought most since it last was too much, not most of all; after a minute nothing is.
func TestABudgetNamesWhatGrew(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var b budget
	for _, tt := range []struct {
		frames map[string]uint64
		want   string
	}{
		{map[string]uint64{"ssh": 100, "dns": 5}, `rule "ssh"`},
		{map[string]uint64{"ssh": 101, "dns": 50}, `rule "dns"`},
		{map[string]uint64{"ssh": 101, "dns": 50}, "what is small and sparse"},
		{map[string]uint64{"ssh": 9}, "what is small and sparse"}, // rules that are counted anew
	} {
		b.exceeded(now, 1, tt.frames)
		if got := b.reason(now.Add(exceededFor)); !strings.HasPrefix(got, tt.want+" is over budget") {
			t.Errorf("%v: %q, want %s", tt.frames, got, tt.want)
		}
	}
	if got := b.reason(now.Add(exceededFor + 1)); got != "" {
		t.Errorf("said for too long: %q", got)
	}
}

// A lane's thread that only gets another policy keeps what it holds on its core.
func TestWhichThreadsMove(t *testing.T) {
	fair, alone := plan.Sched{Policy: "other", Cores: []int{0, 1}}, plan.Sched{Policy: "fifo", Priority: 50, Cores: []int{1}}
	there := plan.Sched{Policy: "other", Cores: []int{1}}
	for _, tt := range []struct {
		was, want string
		moves     bool
	}{
		{fair.String(), fair.String(), false},
		{there.String(), alone.String(), false},
		{fair.String(), there.String(), true},
		{"what another version wrote", there.String(), true},
	} {
		if got := moves(plan.Step{Was: tt.was, Want: tt.want}); got != tt.moves {
			t.Errorf("from %q to %q moves: %t", tt.was, tt.want, got)
		}
	}
}

func TestAStatusSaysHowLatencyTrafficGoes(t *testing.T) {
	without := []plan.Skip{{What: node.Dev{Name: "veth0"}.String(), Reason: "no redirect path: a rule"}}
	for want, s := range map[string]shortcuts{
		"sync, as soon as there is a pod with a veth": {},
		"stage by stage, no redirect path: a rule":    {paths: 1, without: without},
		"from the tunnel straight to the pods":        {paths: 2},
		"from the tunnel straight to 2 of 3 pods":     {paths: 3, without: without},
	} {
		if got := s.reason(); got != want {
			t.Errorf("%d of %d: %q, want %q", len(s.without), s.paths, got, want)
		}
	}
}
