// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/overlane/overlane/test/vm/guest"
)

// Outcome is what became of one run inside a machine.
type Outcome struct {
	Run    string
	Output string
	Ended  bool
	Exit   int
	Error  string
}

// Outcomes reads the second serial port, and returns one outcome for each run
// of the plan: one that is not mentioned did not end. The error says that the
// plan was not carried out to its end.
func Outcomes(records string, runs []guest.Run) ([]Outcome, error) {
	out := make([]Outcome, len(runs))
	byName := map[string]*Outcome{}
	for i, r := range runs {
		out[i].Run = r.Name
		byName[r.Name] = &out[i]
	}
	done := false
	var errs []error
	for line := range strings.Lines(records) {
		var r guest.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			errs = append(errs, fmt.Errorf("record %q: %w", line, err))
			continue
		}
		o := byName[r.Run]
		switch {
		case r.Run == "" && r.Error != "":
			errs = append(errs, errors.New("init: "+r.Error))
		case r.Run == "":
			done = done || r.Done
		case o == nil:
			errs = append(errs, fmt.Errorf("a record of %q, which is not in the plan", r.Run))
		case r.Ended:
			o.Ended, o.Exit, o.Error = true, r.Exit, r.Error
		default:
			o.Output += r.Output
		}
	}
	if !done && len(errs) == 0 {
		errs = append(errs, errors.New("the machine ended before its plan did"))
	}
	return out, errors.Join(errs...)
}

// Test is the result of one test inside a machine, with its subtests.
type Test struct {
	Name   string
	Result string // pass, fail, skip; empty: it did not end
	Output string
	Took   float64 // seconds
	Sub    []*Test
}

// Tests takes the output of a test binary apart that ran with
// -test.v=test2json.
func (o *Outcome) Tests(ctx context.Context) (tests []*Test, rest string, err error) {
	cmd := command(ctx, "go", "tool", "test2json", "-t")
	cmd.Stdin = strings.NewReader(o.Output)
	events, err := output(cmd)
	if err != nil {
		return nil, "", err
	}
	var top Test
	all := map[string]*Test{"": &top}
	for line := range bytes.Lines(events) {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, "", fmt.Errorf("event %q: %w", line, err)
		}
		x := place(all, e.Test)
		switch e.Action {
		case "output":
			x.Output += e.Output
		case "pass", "fail", "skip":
			x.Result, x.Took = e.Action, e.Elapsed
		}
	}
	return top.Sub, top.Output, nil
}

// place finds a test by its full name, or makes it below its parent. A slash in
// the name of a subtest does not make one.
func place(all map[string]*Test, full string) *Test {
	if x := all[full]; x != nil {
		return x
	}
	outer := full
	for all[outer] == nil || outer == full {
		outer = outer[:max(0, strings.LastIndexByte(outer, '/'))]
	}
	x := &Test{Name: strings.TrimPrefix(strings.TrimPrefix(full, outer), "/")}
	all[outer].Sub = append(all[outer].Sub, x)
	all[full] = x
	return x
}

// FailedBelow reports whether a subtest explains the failure of x.
func (x *Test) FailedBelow() bool {
	return slices.ContainsFunc(x.Sub, func(s *Test) bool { return s.Result != "pass" && s.Result != "skip" || s.FailedBelow() })
}

var logged = regexp.MustCompile(`(?m)^\s*\S+\.go:\d+: (.*)$`)

// Reason is what a skipped test gave to Skip.
func (x *Test) Reason() string {
	all := logged.FindAllStringSubmatch(x.Output, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}
