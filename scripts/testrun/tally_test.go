// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	testspeed "github.com/overlane/overlane/test/speed"
)

type counts struct{ Passed, Failed, Skipped int }

func stream(t *testing.T, events ...event) *tally {
	t.Helper()
	var in, out strings.Builder
	for _, e := range events {
		if err := json.NewEncoder(&in).Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	r := newTally(&out)
	if err := r.read(strings.NewReader(in.String())); err != nil {
		t.Fatal(err)
	}
	r.abandon()
	r.close()
	t.Log(out.String())
	if !strings.HasSuffix(out.String(), " skipped\n") {
		t.Error("the plain line is not the last")
	}
	return r
}

func TestLeavesAreCounted(t *testing.T) {
	ev := func(action, test string) event { return event{Action: action, Package: "p", Test: test} }
	out := func(test, text string) event {
		return event{Action: "output", Package: "p", Test: test, Output: text + "\n"}
	}
	for _, tt := range []struct {
		name   string
		events []event
		want   counts
	}{
		{"a test", []event{ev("run", "A"), ev("pass", "A"), ev("pass", "")}, counts{1, 0, 0}},
		{"a parent is none", []event{ev("run", "A"), ev("run", "A/x"), ev("run", "A/x/y"), ev("pass", "A/x/y"), ev("pass", "A/x"), ev("pass", "A"), ev("pass", "")}, counts{1, 0, 0}},
		{"a parent fails with its child once", []event{ev("run", "A"), ev("run", "A/x"), ev("fail", "A/x"), ev("fail", "A"), ev("fail", "")}, counts{0, 1, 0}},
		{"a parent that fails by itself", []event{ev("run", "A"), ev("run", "A/x"), ev("pass", "A/x"), ev("fail", "A"), ev("fail", "")}, counts{1, 1, 0}},
		{"a prefix is no parent", []event{ev("run", "A"), ev("pass", "A"), ev("run", "AB"), ev("pass", "AB"), ev("pass", "")}, counts{2, 0, 0}},
		{"a skip with a reason", []event{ev("run", "A"), out("A", "    a_test.go:3: chatter"), out("A", "    a_test.go:4: needs root: makes a namespace"), out("A", "--- SKIP: A (0.00s)"), ev("skip", "A"), ev("pass", "")}, counts{0, 0, 1}},
		{"a parent that leaves itself out", []event{ev("run", "A"), ev("run", "A/x"), ev("pass", "A/x"), out("A", "    a_test.go:4: needs root"), ev("skip", "A"), ev("pass", "")}, counts{1, 0, 1}},
		{"one that is left to another run", []event{ev("run", "A"), out("A", "    a_test.go:4: "+testspeed.OtherRun+"each has every second one"), ev("skip", "A"), ev("pass", "")}, counts{0, 0, 0}},
		{"a skip without a reason is a failure", []event{ev("run", "A"), out("A", "    a_test.go:4: "), ev("skip", "A"), ev("pass", "")}, counts{0, 1, 0}},
		{"a skip for another reason is a failure", []event{ev("run", "A"), out("A", "    a_test.go:4: flaky"), ev("skip", "A"), ev("pass", "")}, counts{0, 1, 0}},
		{"a package that does not build", []event{{Action: "build-output", ImportPath: "p [p.test]", Output: "x.go:1: no\n"}, {Action: "build-fail", ImportPath: "p [p.test]"}, {Action: "fail", Package: "p", FailedBuild: "p [p.test]"}}, counts{0, 1, 0}},
		{"a test that never ends", []event{ev("run", "A"), ev("run", "B"), ev("pass", "B"), ev("fail", "")}, counts{1, 1, 0}},
		{"a run that was killed", []event{ev("run", "A"), ev("run", "B"), ev("pass", "B")}, counts{1, 1, 0}},
		{"a failure of TestMain", []event{ev("run", "A"), ev("pass", "A"), out("", "leaked"), ev("fail", "")}, counts{1, 1, 0}},
		{"no tests", []event{ev("start", ""), ev("skip", "")}, counts{0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := stream(t, tt.events...)
			if d := cmp.Diff(tt.want, counts{r.passed, r.failed, r.skipped}); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestMaxSkipsIsANumber(t *testing.T) {
	if _, err := maxSkips("../max-skips"); err != nil {
		t.Error(err)
	}
}

func TestTheSlowestAreTold(t *testing.T) {
	var out strings.Builder
	tl := newTally(&out)
	for _, e := range []event{
		{Action: "run", Test: "A"}, {Action: "run", Test: "A/x"}, {Action: "pass", Test: "A/x", Elapsed: 6}, {Action: "pass", Test: "A", Elapsed: 6},
		{Action: "run", Test: "B"}, {Action: "pass", Test: "B", Elapsed: 70},
		{Action: "run", Test: "C"}, {Action: "pass", Test: "C", Elapsed: 4},
		{Action: "pass"},
	} {
		e.Package = "p"
		tl.take(e)
	}
	tl.close()
	if want := "slowest:\n    70.0s  p B\n     6.0s  p A/x\n\n3 passed"; !strings.Contains(out.String(), want) {
		t.Errorf("want %q in:\n%s", want, out.String())
	}
}

// A test that passes warns as well as one that fails by a subtest.
func TestWarningsAreTold(t *testing.T) {
	for _, tt := range []struct{ name, result string }{{"passes", "pass"}, {"a subtest fails", "fail"}} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			tl := newTally(&out)
			for _, e := range []event{
				{Action: "run", Test: "A"},
				{Action: "output", Test: "A", Output: "    a_test.go:3: chatter\n"},
				{Action: "output", Test: "A", Output: "    a_test.go:4: warning: another kernel\n"},
				{Action: "output", Test: "A", Output: "            b_test.go:1: than asked for\n"},
				{Action: "run", Test: "A/x"},
				{Action: "output", Test: "A", Output: "    a_test.go:5: more chatter\n"},
				{Action: tt.result, Test: "A/x"}, {Action: tt.result, Test: "A"}, {Action: tt.result},
			} {
				e.Package = "p"
				tl.take(e)
			}
			tl.close()
			for _, want := range []string{
				"WARN  p A\n      a_test.go:4: warning: another kernel\n      b_test.go:1: than asked for\n",
				"\nwarnings: 1 (WARN above)\n\n",
			} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("want %q in:\n%s", want, out.String())
				}
			}
			if strings.Contains(out.String(), "chatter") {
				t.Errorf("more than the warning is told:\n%s", out.String())
			}
		})
	}
}

// A number that is none is one error, and the plain line is the last all the same.
func TestABadDrawEndsTheRun(t *testing.T) {
	cmd := exec.Command("go", "run", ".", "-strict=false", "-unit")
	cmd.Env = append(os.Environ(), testspeed.Draw+"=half")
	out, err := cmd.Output()
	if said := string(out); err == nil || !strings.Contains(said, testspeed.Draw) || !strings.HasSuffix(said, "\n0 passed, 1 failed, 0 skipped\n") {
		t.Errorf("%v\n%s", err, said)
	}
}
