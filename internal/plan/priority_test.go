// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// nic is an underlay that is polled by threads, scheduled like that.
func nic(name string, index int, threads ...string) Underlay {
	u := Underlay{Target: Target{42, index, name}, Queues: max(len(threads), 1), Attached: true, Threaded: len(threads) > 0}
	for i, s := range threads {
		sched, err := ParseSched(s)
		if err != nil {
			panic(err)
		}
		u.Threads = append(u.Threads, NAPIThread{ThreadID{100*index + i, 7, fmt.Sprintf("napi/%s-%d", name, i)}, sched})
	}
	return u
}

// other is how a thread is scheduled; at EagerNice, as overlane does it.
func other(nice int, cores string) string {
	s := fmt.Sprintf("policy=other prio=0 nice=%d cores=%s", nice, cores)
	if nice == EagerNice {
		s += " slice=" + EagerSlice.String()
	}
	return s
}

// wrote is what overlane did to the threads of a NIC.
func wrote(u Underlay, first string, values ...string) map[Setting]Owned {
	owned := map[Setting]Owned{}
	for i, v := range values {
		owned[Thread(u.Target, u.Threads[i].ID)] = Owned{First: first, Wrote: v}
	}
	return owned
}

// said is a plan in short: "thread nice cores undo first-cores", and what was left.
func said(p Plan) (steps, skipped []string) {
	for _, s := range p.Steps {
		if s.Kind != ThreadSched {
			steps = append(steps, s.Name+" "+s.Attr+" "+s.Was+"->"+s.Want)
			continue
		}
		id, _ := ParseThread(s.Attr)
		want, _ := ParseSched(s.Want)
		first, _ := ParseSched(s.First)
		line := fmt.Sprintf("%s nice %d core %s undo %d %s", id.Comm, want.Nice, coreList(want.Cores), first.Nice, coreList(first.Cores))
		if s.Unbound {
			line += " unbound"
		}
		steps = append(steps, line)
	}
	for _, s := range p.Skipped {
		what, _, _ := strings.Cut(s.What, " (")
		skipped = append(skipped, what+": "+s.Reason)
	}
	return steps, skipped
}

// Before 6.12 the kernel takes no slice, and a value that it does not keep is an error.
func TestPriorityAsksForSlicesWhereTheKernelKnowsThem(t *testing.T) {
	for _, no := range []bool{false, true} {
		here := PriorityInput{NICs: []Underlay{nic("eth0", 1, other(0, "0-3"))}, Cores: []int{0}, NoSlices: no}
		p := Priority(here)
		if len(p.Steps) != 1 || strings.Contains(p.Steps[0].Want, "slice=100µs") == no {
			t.Errorf("without slices %v: %+v", no, p.Steps)
		}
		soon := PriorityInput{NICs: []Underlay{{Target: Target{42, 2, "eth1"}, Queues: 1}}, Cores: []int{0}, NoSlices: no}
		if p := Priority(soon); len(p.Future) != 1 || strings.Contains(p.Future[0].Want, "slice 100µs") == no {
			t.Errorf("without slices %v: %+v", no, p.Future)
		}
	}
}

// What another program has set stays so in real time, too.
func TestPriorityHasThreadsRunInRealTime(t *testing.T) {
	here := PriorityInput{NICs: []Underlay{nic("eth0", 1, other(0, "0-3"), other(-5, "0-3"))}, Cores: []int{0}, Realtime: true}
	steps := Priority(here).Steps
	if len(steps) != 2 || steps[0].Want != "policy=fifo prio=1 nice=0 cores=0" || steps[1].Want != "policy=other prio=0 nice=-5 cores=0" {
		t.Fatalf("%+v", steps)
	}
	for _, s := range steps {
		if _, err := ParseSched(s.Want); err != nil {
			t.Error(err)
		}
	}
	soon := PriorityInput{NICs: []Underlay{{Target: Target{42, 2, "eth1"}, Queues: 1}}, Cores: []int{0}, Realtime: true}
	if p := Priority(soon); len(p.Future) != 1 || p.Future[0].Want != "real time (fifo 1; nice -13 in a flood), bound to core 0" {
		t.Errorf("%+v", p.Future)
	}
}

// A flood on one core takes that core's threads out of real time, and no other's.
func TestPriorityTakesThreadsOfAFloodedCoreOutOfRealTime(t *testing.T) {
	two := nic("eth0", 2, other(0, "0-3"), other(0, "0-3"), other(0, "2"))
	steps := Priority(PriorityInput{NICs: []Underlay{two}, Cores: []int{0, 1}, Realtime: true, Flooded: []int{1, 2}}).Steps
	var got []string
	for _, s := range steps {
		got = append(got, s.Want)
	}
	want := []string{"policy=fifo prio=1 nice=0 cores=0", "policy=other prio=0 nice=-13 cores=1 slice=100µs", "policy=other prio=0 nice=-13 cores=2 slice=100µs"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestPriorityBindsThreadsThatNoOtherProgramHasBound(t *testing.T) {
	free := other(0, "0-3")
	two := nic("eth0", 1, free, free)
	bound := func(cores ...string) Underlay {
		var list []string
		for _, c := range cores {
			list = append(list, other(EagerNice, c))
		}
		return nic("eth0", 1, list...)
	}
	tests := []struct {
		name           string
		in             PriorityInput
		steps, skipped []string
	}{
		{
			name:  "a NIC in softirq is threaded first",
			in:    PriorityInput{NICs: []Underlay{nic("eth0", 1)}, Cores: []int{0, 1}},
			steps: []string{"eth0 threaded 0->1"},
		}, {
			name:  "a veth that polls only with GRO",
			in:    PriorityInput{NICs: []Underlay{{Target: Target{42, 1, "eth0"}, GRO: "on [requested off]"}}, Cores: []int{0}},
			steps: []string{"eth0 rx-gro on [requested off]->on", "eth0 threaded 0->1"},
		}, {
			name:  "a veth that has it",
			in:    PriorityInput{NICs: []Underlay{{Target: Target{42, 1, "eth0"}, GRO: "on"}}, Cores: []int{0}},
			steps: []string{"eth0 threaded 0->1"},
		}, {
			name:    "another program has switched it back",
			in:      PriorityInput{NICs: []Underlay{nic("eth0", 1)}, Cores: []int{0, 1}, Owned: map[Setting]Owned{Threaded(Target{42, 1, "eth0"}): {"0", "1"}}},
			skipped: []string{"threaded of eth0: left alone: another program has switched it off again"},
		}, {
			name: "a core each", in: PriorityInput{NICs: []Underlay{two}, Cores: []int{2, 3}},
			steps: []string{"napi/eth0-0 nice -13 core 2 undo 0 0-3", "napi/eth0-1 nice -13 core 3 undo 0 0-3"},
		}, {
			name: "two NICs share the cores", in: PriorityInput{NICs: []Underlay{nic("eth0", 1, free), nic("eth1", 2, free)}, Cores: []int{0, 1}},
			steps: []string{"napi/eth0-0 nice -13 core 0 undo 0 0-3", "napi/eth1-0 nice -13 core 1 undo 0 0-3"},
		}, {
			name: "bound by another program, it stays there and counts", in: PriorityInput{NICs: []Underlay{nic("eth0", 1, free, other(0, "0"))}, Cores: []int{0, 1}},
			steps: []string{"napi/eth0-0 nice -13 core 1 undo 0 0-3", "napi/eth0-1 nice -13 core 0 undo 0 0"},
		}, {
			name: "a nice value of another program stays", in: PriorityInput{NICs: []Underlay{nic("eth0", 1, other(-5, "0-3"))}, Cores: []int{1}},
			steps: []string{"napi/eth0-0 nice -5 core 1 undo -5 0-3"},
		}, {
			name:    "both set by another program",
			in:      PriorityInput{NICs: []Underlay{nic("eth0", 1, "policy=fifo prio=50 nice=0 cores=2")}, Cores: []int{1}},
			skipped: []string{"scheduling of napi/eth0-0: left alone: another program has set policy=fifo prio=50 nice=0 cores=2"},
		}, {
			name: "a core is not configured any more: undo leads to the first value",
			in: PriorityInput{NICs: []Underlay{bound("0", "1")}, Cores: []int{0},
				Owned: wrote(two, free, other(EagerNice, "0"), other(EagerNice, "1"))},
			steps: []string{"napi/eth0-1 nice -13 core 0 undo 0 0-3"},
		}, {
			name: "a core comes back: only one thread moves there",
			in: PriorityInput{NICs: []Underlay{bound("0", "0")}, Cores: []int{0, 1},
				Owned: wrote(two, free, other(EagerNice, "0"), other(EagerNice, "0"))},
			steps: []string{"napi/eth0-1 nice -13 core 1 undo 0 0-3"},
		}, {
			name: "the kernel let it run anywhere",
			in: PriorityInput{NICs: []Underlay{nic("eth0", 1, other(EagerNice, "0"), other(EagerNice, "0-3"))}, Cores: []int{0, 2}, Lost: []int{1},
				Owned: wrote(two, free, other(EagerNice, "0"), other(EagerNice, "1"))},
			steps: []string{"napi/eth0-1 nice -13 core 2 undo 0 0-3 unbound"},
		}, {
			name: "another program let it run anywhere: no core was lost",
			in: PriorityInput{NICs: []Underlay{nic("eth0", 1, other(EagerNice, "0"), other(EagerNice, "0-3"))}, Cores: []int{0, 1},
				Owned: wrote(two, free, other(EagerNice, "0"), other(EagerNice, "1"))},
			skipped: []string{"scheduling of napi/eth0-1: left alone: changed by another program from policy=other prio=0 nice=-13 cores=1 slice=100µs to policy=other prio=0 nice=-13 cores=0-3 slice=100µs"},
		}, {
			name: "another program bound it elsewhere when its core was lost",
			in: PriorityInput{NICs: []Underlay{nic("eth0", 1, other(EagerNice, "3"))}, Cores: []int{0}, Lost: []int{1},
				Owned: wrote(two, free, other(EagerNice, "1"))},
			skipped: []string{"scheduling of napi/eth0-0: left alone: changed by another program from policy=other prio=0 nice=-13 cores=1 slice=100µs to policy=other prio=0 nice=-13 cores=3 slice=100µs"},
		}, {
			name: "no core is left: it runs where the kernel lets it",
			in: PriorityInput{NICs: []Underlay{nic("eth0", 1, other(EagerNice, "0-3"))}, Lost: []int{1},
				Owned: wrote(two, free, other(EagerNice, "1"))},
		}, {
			name:    "threads that cannot be read are left as they are",
			in:      PriorityInput{NICs: []Underlay{{Target: Target{42, 1, "eth0"}, Unread: "left alone: because"}}, Cores: []int{0}},
			skipped: []string{"threaded of eth0: left alone: because"},
		}, {
			name:    "what cannot be used is left as it is",
			in:      PriorityInput{NICs: []Underlay{{Target: Target{42, 1, "eth0"}, Unfit: "left alone: because"}}, Cores: []int{0}},
			skipped: []string{"eth0: left alone: because"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Priority(tt.in)
			steps, skipped := said(p)
			if !slices.Equal(steps, tt.steps) || !slices.Equal(skipped, tt.skipped) {
				t.Fatalf("got\n steps %q\n skipped %q\nwant\n steps %q\n skipped %q", steps, skipped, tt.steps, tt.skipped)
			}
			if err := ValidateSteps(p.Steps); err != nil {
				t.Fatalf("the plan is not valid: %v", err)
			}
		})
	}
}

// A NIC that no thread of ours will poll gets the program that has two lanes; threads that the program brings are to
// come.
func TestPriorityGivesANICTheProgramForItsPolls(t *testing.T) {
	at := Target{42, 1, "eth0"}
	for name, tt := range map[string]struct {
		nic     Underlay
		owned   map[Setting]Owned
		program string
		steps   int
		future  int
	}{
		"in softirq":                    {nic: Underlay{Target: at, Queues: 2}, program: PriorityProgram, steps: 1, future: 2},
		"threaded, and without threads": {nic: Underlay{Target: at, Queues: 2, Threaded: true}, program: PriorityProgram, future: 2},
		"its threads cannot be read":    {nic: Underlay{Target: at, Queues: 2, Unread: "left alone: because"}, program: TwoLanesProgram},
		"another program took threads away": {nic: Underlay{Target: at, Queues: 2}, owned: map[Setting]Owned{Threaded(at): {"0", "1"}},
			program: TwoLanesProgram},
		"a bond": {nic: Underlay{Target: at, Master: true}, program: TwoLanesProgram},
	} {
		p := Priority(PriorityInput{NICs: []Underlay{tt.nic}, Cores: []int{0, 1}, Owned: tt.owned})
		future := 0
		for _, f := range p.Future {
			future += f.Count
		}
		if len(p.Attach) != 1 || p.Attach[0].Program != tt.program || len(p.Steps) != tt.steps || future != tt.future {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// Carrying out a plan and planning again comes to rest; cores get as many threads as
// others, and no more threads move than have to.
func TestThreadsAreSpreadAndStay(t *testing.T) {
	for range 300 {
		cores := rand.Perm(8)[:1+rand.IntN(8)]
		slices.Sort(cores)
		now := make([]int, 1+rand.IntN(20))
		for i := range now {
			now[i] = rand.IntN(9) - 1
		}
		to := spread(now, nil, cores)
		load, kept := map[int]int{}, map[int]int{}
		for i, c := range to {
			if !slices.Contains(cores, c) {
				t.Fatalf("thread %d goes to core %d of %v", i, c, cores)
			}
			load[c]++
			if c == now[i] {
				kept[c]++
			}
		}
		share := (len(now) + len(cores) - 1) / len(cores)
		for _, c := range cores {
			there := 0
			for _, n := range now {
				if n == c {
					there++
				}
			}
			if load[c] > share || kept[c] < min(there, share) {
				t.Fatalf("from %v to %v on %v: core %d has %d, and %d of %d have stayed", now, to, cores, c, load[c], kept[c], there)
			}
		}
		if again := spread(to, nil, cores); !slices.Equal(again, to) {
			t.Fatalf("%v becomes %v on %v", to, again, cores)
		}
	}
}

func TestPriorityTextShowsProgramsThenStepsAndWhatIsToCome(t *testing.T) {
	fresh := Underlay{Target: Target{42, 2, "eth0"}, Queues: 4, Cost: "attaching one to eth0 (ice) restarts the link"}
	other := Underlay{Target: Target{42, 3, "eth1"}, Unfit: "left alone: a foreign XDP program is attached"}
	p := Priority(PriorityInput{NICs: []Underlay{fresh, other}, Cores: []int{0, 1}})
	want := `programs:
      ol_priority_xdp at xdp (native) of eth0 (ifindex 2 in network namespace 42)
      why   tells latency frames from bulk, which makes way; attaching one to eth0 (ice) restarts the link
      undo  detached by the kernel when the process ends
steps, in this order (undone in the reverse order):
   1  threaded of eth0 (ifindex 2 in network namespace 42)
      set   0 -> 1
      why   the NIC's polls preempt bulk
      undo  set 0, unless the operator or another program has changed it by then
threads that come with that, one per receive queue:
      4 of eth0 (ifindex 2 in network namespace 42)
      set   nice -13, slice 100µs, each bound to one of cores 0-1
      why   the NIC's polls preempt bulk, each on a core of its own
      undo  set what they were when they came, unless the operator or another program has changed it by then
left as it is:
      eth1 (ifindex 3 in network namespace 42)
      why   left alone: a foreign XDP program is attached
`
	if text := p.Text(); text != want {
		t.Error(text)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	const future = `"future_threads":[{"netns":42,"ifindex":2,"device":"eth0","threads":4,"want":"nice -13, slice 100µs, each bound to one of cores 0-1",`
	if !strings.Contains(string(text), future) || !strings.Contains(string(text), `"attr":"threaded","by":"priority","was":"0","undo":"0","want":"1"`) {
		t.Errorf("JSON is %s", text)
	}
	if text, err = json.Marshal(Priority(PriorityInput{})); err != nil || strings.Contains(string(text), "null") {
		t.Errorf("JSON of an empty plan is %s, %v", text, err)
	}
}
