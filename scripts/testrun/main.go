// SPDX-License-Identifier: Apache-2.0

// Command testrun runs everything that CI runs and ends with one plain line:
//
//	N passed, N failed, N skipped
//
// It has three speeds: -unit in a minute, the usual one, and -full.
//
// Checks (formatting, vet, generated files) count as one test each; of Go tests
// the leaves count. A skip must say what it needs. With CI set, more skips than
// the number in scripts/max-skips fail the run, and so does anything that the
// run as a whole left behind on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/overlane/overlane/test/residue"
	testspeed "github.com/overlane/overlane/test/speed"
)

// speed is how much is run.
type speed int

const (
	usual speed = iota // what CI runs
	unit
	full
)

func (s *speed) set(to speed) func(string) error {
	return func(string) error { *s = to; return nil }
}

func main() {
	ci := os.Getenv("CI") != ""
	strict := flag.Bool("strict", ci, "fail on more skips than scripts/max-skips, and on anything left on the machine (default: with CI set)")
	limit := flag.Duration("limit", 80*time.Minute, "end the run after this time, as failed")
	run := flag.String("run", "", "only Go tests that match this expression, and no checks")
	how := usual
	flag.BoolFunc("unit", "only packages whose tests need no root, without checks and the race detector", how.set(unit))
	flag.BoolFunc("full", "also what tests leave out with -short", how.set(full))
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: testrun [flags] [packages]   (default: checks, then ./...)")
		flag.PrintDefaults()
	}
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("the run took longer than %v", *limit))
	defer cancel()

	t := newTally(os.Stdout)
	if err := everything(ctx, t, how, *strict, *run, flag.Args()); err != nil {
		t.fail("testrun", err.Error())
	}
	if *strict {
		if allowed, err := maxSkips("scripts/max-skips"); err != nil {
			t.fail("scripts/max-skips", err.Error())
		} else if t.skipped > allowed {
			t.fail("scripts/max-skips", fmt.Sprintf("%d tests were skipped, %d are allowed", t.skipped, allowed))
		}
	}
	t.close()
	if t.failed > 0 {
		os.Exit(1)
	}
}

// everything runs checks and tests; what it returns kept it from going on.
func everything(ctx context.Context, t *tally, how speed, strict bool, run string, patterns []string) error {
	if how != full {
		drawn, err := testspeed.Drawn()
		if err != nil {
			return err
		}
		os.Setenv(testspeed.Draw, fmt.Sprint(drawn))
		t.say("      %s=%d: which of the slow tests this run has", testspeed.Draw, drawn)
	}
	var before residue.Snapshot
	whole := residue.Scope{Machine: true}
	if strict = strict && os.Geteuid() == 0; strict {
		var err error
		if before, err = residue.Read(whole); err != nil {
			return fmt.Errorf("look at the machine before: %w", err)
		}
	}
	withChecks := len(patterns) == 0 && run == "" && how != unit
	if err := goTests(ctx, t, how, run, patterns, withChecks); err != nil {
		return err
	}
	if strict {
		left, err := residue.Settled(before, whole)
		if err != nil {
			return fmt.Errorf("look at the machine after: %w", err)
		}
		if len(left) > 0 {
			t.fail("nothing is left on the machine", strings.Join(left, "\n"))
		} else {
			t.pass("nothing is left on the machine")
		}
	}
	return nil
}

// command is a child in a process group of its own, all of which ends with ctx.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// ended says why ctx ended, nil while it has not.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.New("interrupted")
}
