// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Run runs a machine to its end, and gives each test that ran inside a place as a subtest. What
// these said is shown where they failed, or where it is to be loud.
func Run(t *testing.T, m *Machine, limit time.Duration, loud bool) []Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	start := time.Now()
	records, err := m.Start(ctx)
	t.Logf("%s ran for %.0f s", m.Kernel.Release, time.Since(start).Seconds())
	if err != nil {
		t.Error(err)
	}
	outcomes, err := Outcomes(records, m.Runs)
	if err != nil {
		t.Errorf("%v\n%s", err, m.Tail())
	}
	for _, o := range outcomes {
		t.Run(o.Run, func(t *testing.T) {
			tests, rest, err := o.Tests(context.WithoutCancel(t.Context()))
			if err != nil {
				t.Fatal(err)
			}
			failed := false
			for _, x := range tests {
				t.Run(x.Name, func(t *testing.T) { report(t, x, loud) })
				failed = failed || x.Result != "pass" && x.Result != "skip"
			}
			switch {
			case !o.Ended:
				t.Errorf("did not end\n%s", rest)
			case len(tests) == 0:
				t.Errorf("no test ran: %s\n%s", o.Error, rest)
			case o.Exit != 0 && !failed:
				t.Errorf("%s\n%s", o.Error, rest)
			}
		})
	}
	return outcomes
}

// report gives a test that ran inside a machine the same place outside.
func report(t *testing.T, x *Test, loud bool) {
	for _, s := range x.Sub {
		t.Run(s.Name, func(t *testing.T) { report(t, s, loud) })
	}
	if x.Took >= 1 {
		t.Logf("took %.1f s inside", x.Took)
	}
	if loud {
		t.Logf("\n%s", x.Output)
	}
	switch {
	case x.Result == "skip":
		t.Skip(x.Reason())
	case x.Result == "":
		t.Errorf("did not end\n%s", x.Output)
	case x.Result == "fail" && !x.FailedBelow():
		t.Errorf("\n%s", x.Output)
	}
}

// Build builds a static program.
func Build(t *testing.T, to string, args ...string) {
	t.Helper()
	last := len(args) - 1
	cmd := exec.Command("go", append(args[:last:last], "-trimpath", "-ldflags=-s -w", "-o", to, args[last])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", args[last], err, out)
	}
}
