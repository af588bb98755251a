// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
)

func TestExpressChangesOnlyPodsThatHaveAPath(t *testing.T) {
	nic, pod := Target{42, 2, "u0"}, Target{43, 7, "eth0"}
	ours := map[Setting]Owned{Lands(pod): {First: "off", Wrote: "on"}, Joins(pod): {First: "off", Wrote: "on"}}
	ready := Landing{Target: pod, GRO: "off", List: "off", Path: true}
	with := func(change func(*Landing)) Landing {
		l := ready
		change(&l)
		return l
	}
	for _, tt := range []struct {
		what  string
		pod   Landing
		join  bool
		owned map[Setting]Owned
		steps string // features that are switched on
		skip  string // why there is no path
	}{
		{what: "one that frames can come to", pod: ready, steps: "rx-gro"},
		{what: "beside aggregation", pod: ready, join: true, steps: "rx-gro rx-gro-list"},
		{what: "GRO is on", pod: with(func(l *Landing) { l.GRO = "on" })},
		{what: "all is on, by us", pod: with(func(l *Landing) { l.GRO, l.List = "on", "on" }), join: true, owned: ours},
		{what: "GRO was switched off again", pod: ready, owned: ours, skip: "another program has switched GRO off again"},
		{what: "lists were switched off again", pod: with(func(l *Landing) { l.GRO = "on" }), join: true, owned: ours},
		{what: "a kernel without lists", pod: with(func(l *Landing) { l.List = "" }), join: true, steps: "rx-gro"},
		{what: "a policy", pod: with(func(l *Landing) { l.Path, l.Unfit = false, "nftables" }), join: true, skip: "nftables"},
		{what: "lists are ours, and no longer to be", pod: with(func(l *Landing) { l.GRO, l.List = "on", "on" }), owned: ours, steps: "rx-gro-list back"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			p := Express(ExpressInput{NICs: []HandingNIC{{Target: nic, Pods: []Target{pod}}}, Pods: []Landing{tt.pod}, Join: tt.join, Owned: tt.owned})
			if err := ValidateSteps(p.Steps); err != nil {
				t.Fatal(err)
			}
			var steps []string
			for _, s := range p.Steps {
				what := s.Attr
				if s.Want == "off" && s.Was == "on" {
					what += " back"
				}
				if steps = append(steps, what); s.Target != pod || s.Want == s.Was || s.First != "off" || s.Reason == "" {
					t.Errorf("step %+v", s)
				}
			}
			if got := strings.Join(steps, " "); got != tt.steps {
				t.Errorf("steps %q, want %q", got, tt.steps)
			}
			if attached := len(p.Attach) == 1; attached != (tt.skip == "") || attached && p.Attach[0].Target != nic {
				t.Errorf("attach %+v", p.Attach)
			}
			if skipped := len(p.Skipped) == 1; skipped != (tt.skip != "") || skipped && !strings.Contains(p.Skipped[0].Reason, tt.skip) {
				t.Errorf("skipped %+v, want %q", p.Skipped, tt.skip)
			}
		})
	}
}
