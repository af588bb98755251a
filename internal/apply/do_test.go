// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/ethtool"
	"github.com/overlane/overlane/internal/plan"
)

func TestDoThenRestoreIsNoChange(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	rep, err := l.Do(b, b.steps())
	b.must(err)
	wantOutcomes(t, rep, Applied, len(b.steps()))
	after := b.snapshot()
	changed := 0
	for k := range before {
		if before[k] != after[k] {
			changed++
		}
	}
	if changed != len(b.steps()) {
		t.Errorf("%d values changed by %d steps", changed, len(b.steps()))
	}
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, len(b.steps()))
	for i, r := range rep.Results {
		if want := b.steps()[len(b.steps())-1-i].Setting; r.Setting != want {
			t.Errorf("restored %s as number %d, want the reverse order", r.Setting, i+1)
		}
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
	rep, err = l.Restore(b)
	if err != nil || len(rep.Results) != 0 {
		t.Errorf("a second Restore did something: %+v, %v", rep, err)
	}
}

func TestSecondDoKeepsTheValueFirstSeen(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	rep, err := l.Do(b, b.other())
	b.must(err)
	if rep.Count(Applied) != 3 || rep.Count(Already) != 1 {
		t.Errorf("%+v", rep.Results)
	}
	if n := len(l.Entries()); n != len(b.steps()) {
		t.Errorf("%d entries for %d settings", n, len(b.steps()))
	}
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
}

func TestSettingThatReturnsToItsFirstValueLeavesTheJournal(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	step := b.steps()[0]
	_, err := l.Do(b, []plan.Step{step})
	b.must(err)
	step.Want = "0"
	_, err = l.Do(b, []plan.Step{step})
	b.must(err)
	b.wantNoJournal()
}

func TestWantedValueThatIsThereIsNotJournalled(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	step := b.steps()[0]
	step.Want = "00000000"
	rep, err := l.Do(b, []plan.Step{step})
	b.must(err)
	wantOutcomes(t, rep, Already, 1)
	b.wantNoJournal()
}

// A step that the kernel refuses takes those before it back.
func TestDoIsAllOrNothing(t *testing.T) {
	bad := []struct {
		name string
		edit func(*plan.Step)
		says string
	}{
		{"refused by the kernel", func(s *plan.Step) { s.Want = "nonsense" }, "invalid"},
		{"accepted but not kept", func(s *plan.Step) { s.Attr, s.Want = "queues/rx-0/rps_flow_cnt", "1000" }, "the kernel took 1000 and has 1024"},
		{"no such setting", func(s *plan.Step) { s.Attr, s.Want = "queues/rx-0/rps_cores", "1" }, "no such setting"},
		{"no such feature", func(s *plan.Step) { s.Kind, s.Attr, s.Want = plan.EthtoolFeature, "warp", "on" }, "no such setting"},
		{"offload that cannot change", func(s *plan.Step) { s.Kind, s.Attr, s.Want = plan.EthtoolFeature, "tx-lockless", "off" }, ""},
		{"invalid plan", func(s *plan.Step) { s.Attr = "../../../etc/passwd" }, "step 6"},
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			before := b.snapshot()
			l := b.lock()
			steps := b.steps()
			steps[5] = steps[0]
			steps[5].Target = b.target(b.a, "d0")
			tt.edit(&steps[5])
			rep, err := l.Do(b, steps)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("error %v does not say %q; %+v", err, tt.says, rep)
			}
			b.wantSnapshot(before)
			b.wantNoJournal()
		})
	}
}

// Taking a second plan back must lead to the state after the first.
func TestFailedSecondDoReturnsToTheFirst(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	first := b.snapshot()
	steps := b.other()
	steps[3].Want = "nonsense"
	if _, err := l.Do(b, steps); err == nil {
		t.Fatal("nonsense was accepted")
	}
	b.wantSnapshot(first)
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)
}

func TestForeignChangeSincePlanningIsLeftAlone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	step := b.steps()[0]
	step.Was = "0"
	b.set(b.a, "va/queues/rx-0/rps_cpus", "1")
	rep, err := l.Do(b, []plan.Step{step})
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, 1)
	if v := b.get(b.a, "va/queues/rx-0/rps_cpus"); v != "1" {
		t.Errorf("the foreign mask became %s", v)
	}
	b.wantNoJournal()
}

func TestForeignChangeOfOurValueIsLeftAlone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	step := b.steps()[0]
	_, err := l.Do(b, []plan.Step{step})
	b.must(err)
	b.set(b.a, "va/queues/rx-0/rps_cpus", "3")
	step.Want = "1"
	rep, err := l.Do(b, []plan.Step{step})
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, 1)
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, 1)
	if !strings.Contains(rep.Results[0].Reason, "changed by another program from 2 to 3") {
		t.Errorf("reason %q", rep.Results[0].Reason)
	}
	if v := b.get(b.a, "va/queues/rx-0/rps_cpus"); v != "3" {
		t.Errorf("the foreign mask became %s", v)
	}
	b.wantNoJournal()
}

func TestForeignChangeBetweenJournalAndWriteIsLeftAlone(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	fault = func(point string) {
		if point == "journal:after" {
			b.set(b.a, "va/queues/rx-0/rps_cpus", "3")
		}
	}
	t.Cleanup(func() { fault = nil })
	rep, err := l.Do(b, b.steps()[:2])
	b.must(err)
	if r := outcome(t, rep, b.steps()[0].Setting); r.Outcome != LeftAlone {
		t.Errorf("%v", r)
	}
	if n := len(l.Entries()); n != 1 {
		t.Errorf("%d entries, want that of the other setting only", n)
	}
}

func TestDeviceThatLeavesIsPassedOver(t *testing.T) {
	b := newBed(t)
	b.add(b.b, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "gone"}})
	mask := func() plan.Step {
		return plan.Step{Setting: plan.RPSMask(b.target(b.b, "gone"), 0), By: plan.ByPipeline, Want: "1"}
	}()
	for _, point := range []string{"journal:before", "journal:after"} {
		l := b.lock()
		fault = func(p string) {
			if p == point {
				b.del(b.b, "gone")
				fault = nil
			}
		}
		rep, err := l.Do(b, append([]plan.Step{mask}, b.steps()[0]))
		fault = nil
		b.must(err)
		if r := outcome(t, rep, mask.Setting); r.Outcome != Gone {
			t.Errorf("gone at %s: %v", point, r)
		}
		if n := len(l.Entries()); n != 1 {
			t.Errorf("gone at %s: %d entries, want 1", point, n)
		}
		rep, err = l.Do(b, []plan.Step{mask})
		b.must(err)
		wantOutcomes(t, rep, Gone, 1)
		_, err = l.Restore(b)
		b.must(err)
		b.must(l.Unlock())
		mask.Target = b.add(b.b, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "gone"}})
	}
}

func TestDoBeforeRestoreIsRefused(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	_, err := l.Do(b, b.steps())
	b.must(err)
	b.must(l.Unlock())
	if _, err := l.Do(b, b.steps()); !errors.Is(err, ErrUnlocked) {
		t.Errorf("Do after Unlock: %v", err)
	}
	l = b.lock()
	if _, err := l.Do(b, b.other()); !errors.Is(err, ErrNotRestored) {
		t.Errorf("Do over the journal of another run: %v", err)
	}
	_, err = l.Restore(b)
	b.must(err)
	_, err = l.Do(b, b.other())
	b.must(err)
	_, err = l.Restore(b)
	b.must(err)
}

// An offload that depends on another is requested, and not done.
func TestRequestOfAnOffloadIsRestored(t *testing.T) {
	const sg, tso = "tx-scatter-gather", "tx-tcp-segmentation"
	b := newBed(t)
	step := func(feature, want string) []plan.Step {
		s := plan.Setting{Target: b.target(b.b, "vb"), Kind: plan.EthtoolFeature, Attr: feature}
		return []plan.Step{{Setting: s, By: plan.ByPipeline, Want: want}}
	}
	set := func(feature string, on bool) {
		t.Helper()
		b.must(b.b.Do(func() error { return ethtool.SetFeature("vb", feature, on) }))
	}
	set(sg, false)
	before := b.snapshot()
	if got := before["b vb "+tso]; got != "off [requested on]" {
		t.Fatalf("%s is %q", tso, got)
	}
	l := b.lock()
	_, err := l.Do(b, step(tso, "off"))
	b.must(err)
	_, err = l.Restore(b)
	b.must(err)
	b.wantSnapshot(before)

	// The other offload goes away in between: the request comes back.
	set(sg, true)
	before = b.snapshot()
	_, err = l.Do(b, step(tso, "off"))
	b.must(err)
	set(sg, false)
	rep, err := l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, 1)
	set(sg, true)
	b.wantSnapshot(before)
	set(sg, false)

	// What does not become active is not applied, and not left requested.
	set(tso, false)
	before = b.snapshot()
	if _, err := l.Do(b, step(tso, "on")); err == nil || !strings.Contains(err.Error(), "requested on") {
		t.Fatalf("an offload that cannot be: %v", err)
	}
	b.wantSnapshot(before)
	b.wantNoJournal()
}

func TestThreadSchedulingIsRestored(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	id, stop := startThread(t)
	s := plan.Thread(plan.Target{}, id)
	was, err := (&settingPlace{Setting: s}).getSched()
	b.must(err)
	_, err = l.Do(b, []plan.Step{{Setting: s, By: plan.ByPipeline, Want: "policy=batch prio=0 nice=10 cores=0 slice=200µs"}})
	b.must(err)
	if a, err := unix.SchedGetAttr(id.PID, 0); err != nil || a.Policy != unix.SCHED_BATCH || a.Nice != 10 || a.Runtime != 200_000 {
		t.Errorf("%+v, %v", a, err)
	}
	rep, err := l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Restored, 1)
	if now, err := (&settingPlace{Setting: s}).getSched(); err != nil || now != was {
		t.Errorf("scheduling is %q, was %q, %v", now, was, err)
	}

	_, err = l.Do(b, []plan.Step{{Setting: s, By: plan.ByPipeline, Want: "policy=batch prio=0 nice=10 cores=0"}})
	b.must(err)
	stop()
	rep, err = l.Restore(b)
	b.must(err)
	wantOutcomes(t, rep, Gone, 1)

	// The number of a thread that has ended may be any other thread's.
	id.PID, id.Start = os.Getpid(), 1 // no process is that old
	rep, err = l.Do(b, []plan.Step{{Setting: plan.Thread(plan.Target{}, id), By: plan.ByPipeline, Want: "policy=idle prio=0 nice=0 cores=0"}})
	b.must(err)
	wantOutcomes(t, rep, Gone, 1)
}

// A core that goes offline takes a thread's affinity with it. What the kernel makes of
// it is no program's value; no core can be taken here, so the test plays the kernel.
func TestThreadThatTheKernelHasUnboundIsBoundAgain(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs 2 cores: on one every thread is bound")
	}
	b := newBed(t)
	l := b.lock()
	id, stop := startThread(t)
	s := plan.Thread(plan.Target{}, id)
	was, err := (&settingPlace{Setting: s}).getSched()
	b.must(err)
	nice := "policy=other prio=0 nice=10 cores="
	if strings.HasPrefix(was, nice) { // the test runs so
		nice = "policy=other prio=0 nice=12 cores="
	}
	bound, unbound, again := nice+"0", nice+"0-1", nice+"1"
	step := plan.Step{Setting: s, By: plan.ByPipeline, Was: unbound, Want: again}
	for _, end := range []string{again, unbound} { // written, and not yet
		_, err = l.Do(b, []plan.Step{{Setting: s, By: plan.ByPipeline, Want: bound}})
		b.must(err)
		b.must((&settingPlace{Setting: s}).putSched(unbound))
		step.Unbound = false
		rep, err := l.Do(b, []plan.Step{step})
		b.must(err)
		wantOutcomes(t, rep, LeftAlone, 1)
		step.Unbound = true
		rep, err = l.Do(b, []plan.Step{step})
		b.must(err)
		wantOutcomes(t, rep, Applied, 1)
		b.must((&settingPlace{Setting: s}).putSched(end))
		rep, err = l.Restore(b)
		b.must(err)
		wantOutcomes(t, rep, Restored, 1)
		if now, err := (&settingPlace{Setting: s}).getSched(); err != nil || now != was {
			t.Errorf("scheduling is %q, was %q, %v", now, was, err)
		}
	}

	_, err = l.Do(b, []plan.Step{{Setting: s, By: plan.ByPipeline, Want: bound}})
	b.must(err)
	b.must(l.Forget(Entry.Ended))
	if n := len(l.Entries()); n != 1 {
		t.Errorf("%d entries of a thread that lives", n)
	}
	stop()
	b.must(l.Forget(Entry.Ended))
	b.wantNoJournal()
}

// What one mechanism has changed, another neither changes nor brings back.
func TestSettingOfAnotherMechanismIsLeftAlone(t *testing.T) {
	b := newBed(t)
	before := b.snapshot()
	l := b.lock()
	step := b.steps()[0]
	_, err := l.Do(b, []plan.Step{step})
	b.must(err)
	changed := b.snapshot()

	other := step
	other.By, other.Want = plan.ByPriority, "0"
	rep, err := l.Do(b, []plan.Step{other})
	b.must(err)
	wantOutcomes(t, rep, LeftAlone, 1)
	if why := rep.Results[0].Reason; !strings.Contains(why, "pipeline") {
		t.Errorf("the reason names no owner: %q", why)
	}
	_, err = l.RestoreIf(b, func(e Entry) bool { return e.By == plan.ByPriority })
	b.must(err)
	b.wantSnapshot(changed)
	if len(Owned(l.Entries(), plan.ByPriority)) != 0 || len(Owned(l.Entries(), plan.ByPipeline)) != 1 {
		t.Errorf("it is not the pipeline's alone: %+v", l.Entries())
	}
	_, err = l.RestoreIf(b, func(e Entry) bool { return e.By == plan.ByPipeline })
	b.must(err)
	b.wantSnapshot(before)
	b.wantNoJournal()
}

// Of hundreds of devices each wait for the disk would be one more for which nothing is decided.
func TestTheJournalOfAllDevicesIsWrittenAtOnce(t *testing.T) {
	b := newBed(t)
	l := b.lock()
	devices, journalled, written := map[plan.Target]bool{}, 0, 0
	for _, s := range b.steps() {
		devices[s.Target] = true
	}
	fault = func(point string) {
		switch point {
		case "journal:after":
			if journalled++; written > 0 {
				t.Error("something is written before all of it is journalled")
			}
		case "write:before":
			written++
		}
	}
	defer func() { fault = nil }()
	rep, err := l.DoEach(b, b.steps())
	b.must(err)
	wantOutcomes(t, rep, Applied, len(b.steps()))
	if len(devices) < 2 || journalled != 1 || written != len(b.steps()) {
		t.Errorf("the journal was written %d times for %d devices, %d settings were", journalled, len(devices), written)
	}
}
