// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	testspeed "github.com/overlane/overlane/test/speed"
)

// tally counts, and says what a reader wants to know at once: failures with
// their output, packages as they finish.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	left                    int                 // to other runs
	warnings                int                 // of tests whose output is not shown
	skips                   map[string][]string // reason -> tests
	slow                    []timed
	open                    map[string]*pkg
}

// timed is a test that took long.
type timed struct {
	name    string
	seconds float64
}

const (
	slowAfter = 5  // seconds
	mostSlow  = 25 // that are told of
)

// pkg is a package whose tests run.
type pkg struct {
	tests                   map[string]*test
	output                  []string // of no test in particular
	passed, failed, skipped int
	left                    int // to other runs
}

type test struct {
	output []string
	parent bool   // it has subtests
	result string // "" while it runs
}

// event is what go test -json writes; see go doc test2json.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

func newTally(out io.Writer) *tally {
	return &tally{out: out, skips: map[string][]string{}, open: map[string]*pkg{}}
}

func (t *tally) say(format string, args ...any) { fmt.Fprintf(t.out, format+"\n", args...) }

func (t *tally) pass(string) { t.passed++ }

func (t *tally) fail(name, why string) {
	t.failed++
	t.say("FAIL  %s\n      %s", name, strings.ReplaceAll(strings.TrimRight(why, "\n"), "\n", "\n      "))
}

// skip counts a skip; one that does not say what it needs is a failure.
func (t *tally) skip(name, reason string) {
	if !strings.HasPrefix(reason, "needs ") {
		t.fail(name, fmt.Sprintf("skipped for %q; a reason begins with \"needs \"", reason))
		return
	}
	t.skipped++
	t.skips[reason] = append(t.skips[reason], name)
}

// close prints the slowest tests, the skips with their reasons, and the plain line.
func (t *tally) close() {
	slices.SortStableFunc(t.slow, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	if len(t.slow) > 0 {
		t.say("\nslowest:")
		for _, x := range t.slow[:min(len(t.slow), mostSlow)] {
			t.say("  %6.1fs  %s", x.seconds, x.name)
		}
	}
	if t.skipped > 0 {
		t.say("\nskipped:")
		for _, reason := range slices.Sorted(maps.Keys(t.skips)) {
			t.say("  %s", reason)
			for _, name := range t.skips[reason] {
				t.say("    %s", name)
			}
		}
	}
	if t.left > 0 {
		t.say("\nleft to other runs, by chance: %d (make full has all)", t.left)
	}
	if t.warnings > 0 {
		t.say("\nwarnings: %d (WARN above)", t.warnings)
	}
	t.say("\n%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

// read follows the events of one go test.
func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				t.take(e)
			} else {
				t.say("%s", strings.TrimSpace(string(line)))
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read events of go test: %w", err)
		}
	}
}

func (t *tally) take(e event) {
	name := e.Package
	if name == "" {
		name, _, _ = strings.Cut(e.ImportPath, " ") // of a build: "pkg [pkg.test]"
	}
	p := t.open[name]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		t.open[name] = p
	}
	if e.Test == "" {
		switch e.Action {
		case "output", "build-output":
			p.output = append(p.output, e.Output)
		case "pass", "fail", "skip":
			t.finish(name, p, e)
		}
		return
	}
	x := p.tests[e.Test]
	if x == nil {
		x = &test{}
		p.tests[e.Test] = x
		if i := strings.LastIndex(e.Test, "/"); i > 0 {
			for outer := e.Test[:i]; outer != ""; outer = outer[:max(strings.LastIndex(outer, "/"), 0)] {
				if p.tests[outer] != nil {
					p.tests[outer].parent = true
				}
			}
		}
	}
	switch e.Action {
	case "output":
		x.output = append(x.output, e.Output)
	case "pass", "fail", "skip":
		x.result = e.Action
		t.result(name, e.Test, p, x)
		if !x.parent && e.Elapsed >= slowAfter {
			t.slow = append(t.slow, timed{strings.TrimPrefix(name, module+"/") + " " + e.Test, e.Elapsed})
		}
	}
}

// result counts one finished test. A parent counts only when it failed by itself, in a clean-up for example, or left
// itself out after some of its subtests.
func (t *tally) result(name, testName string, p *pkg, x *test) {
	where := strings.TrimPrefix(name, module+"/") + " " + testName
	switch {
	case x.result == "pass" && !x.parent:
		p.passed++
		t.pass(where)
	case x.result == "skip" && strings.HasPrefix(reason(x.output), testspeed.OtherRun):
		p.left++
		t.left++
	case x.result == "skip":
		p.skipped++
		t.skip(where, reason(x.output))
	case x.result == "fail" && !(x.parent && failedBelow(p, testName)):
		p.failed++
		t.fail(where, strings.Join(x.output, ""))
		return
	}
	t.warn(where, x.output)
}

// warn tells what a test warns of whose output is not shown: what it logged that begins so, with the lines of that.
func (t *tally) warn(where string, output []string) {
	warns := false
	for _, line := range output {
		if !warns || !strings.HasPrefix(line, "        ") { // a further line
			m := logged.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if warns = m != nil && strings.HasPrefix(m[1], "warning:"); !warns {
				continue
			}
			t.warnings++
			t.say("WARN  %s", where)
		}
		t.say("      %s", strings.TrimSpace(line))
	}
}

func failedBelow(p *pkg, outer string) bool {
	for name, x := range p.tests {
		if strings.HasPrefix(name, outer+"/") && x.result == "fail" {
			return true
		}
	}
	return false
}

// finish ends a package: tests that never ended, and failures that belong to no
// test (it does not build, it panicked, TestMain failed), count too.
func (t *tally) finish(name string, p *pkg, e event) {
	delete(t.open, name)
	short := strings.TrimPrefix(name, module+"/")
	if e.Action == "fail" {
		for _, testName := range slices.Sorted(maps.Keys(p.tests)) {
			if x := p.tests[testName]; x.result == "" && !x.parent {
				p.failed++
				t.fail(short+" "+testName, "did not end\n"+strings.Join(x.output, ""))
			}
		}
		if p.failed == 0 {
			p.failed++
			why := p.output
			if b := t.open[e.FailedBuild]; b != nil {
				why = b.output
			}
			t.fail(short, strings.Join(why, ""))
		}
	}
	if p.passed+p.failed+p.skipped+p.left == 0 {
		return // no tests
	}
	mark := "ok  "
	if p.failed > 0 {
		mark = "FAIL"
	}
	left := ""
	if p.left > 0 {
		left = fmt.Sprintf(", %d left to other runs", p.left)
	}
	t.say("%s  %s  %d passed, %d failed, %d skipped%s  %.1fs", mark, short, p.passed, p.failed, p.skipped, left, e.Elapsed)
}

// abandon counts what still ran when go test was killed.
func (t *tally) abandon() {
	for _, name := range slices.Sorted(maps.Keys(t.open)) {
		if p := t.open[name]; len(p.tests) > 0 {
			t.finish(name, p, event{Action: "fail"})
		}
		delete(t.open, name)
	}
}

var logged = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)`)

// reason is the last thing a skipped test logged: what it gave to Skip.
func reason(output []string) string {
	last := ""
	for _, line := range output {
		if m := logged.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			last = m[1]
		}
	}
	return last
}
