// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/overlane/overlane/test/mutants/worktree"
)

type verdict string

const (
	noticed  verdict = "noticed"
	survived verdict = "SURVIVED"
	void     verdict = "VOID"    // the break or the test is not what the list says
	unjudged verdict = "skipped" // the test cannot run on this machine
)

// treeCopy is what breaks are made in.
type treeCopy struct {
	*worktree.Copy
	sound map[string]error // package and test -> what it said without a break
}

func newCopy(ctx context.Context, root string) (*treeCopy, error) {
	c, err := worktree.New(ctx, root)
	return &treeCopy{c, map[string]error{}}, err
}

// judge makes one break, runs its test, and mends the copy again.
func (c *treeCopy) judge(ctx context.Context, m mutant) (verdict, string) {
	// A test that is red anyway notices nothing.
	at := m.Package + " " + m.Test
	if _, known := c.sound[at]; !known {
		c.sound[at] = c.test(ctx, m)
	}
	switch err := c.sound[at]; {
	case errors.Is(err, errSkipped):
		return unjudged, err.Error()
	case err != nil:
		return void, fmt.Sprintf("without the break the test does not pass: %v", err)
	}

	undo, err := m.apply(c.Dir)
	if err != nil {
		return void, err.Error()
	}
	defer c.mend(undo)
	if m.kernelSide() {
		undo, err := c.Regenerate(ctx, m.Define)
		if undo != nil {
			defer c.mend(undo)
		}
		if err != nil {
			return void, err.Error()
		}
	}
	switch err := c.test(ctx, m); {
	case errors.Is(err, errRed):
		return noticed, ""
	case err != nil:
		return void, err.Error()
	default:
		return survived, m.Breaks
	}
}

// mend undoes a break; a copy that cannot be mended must not be judged by.
func (c *treeCopy) mend(undo func() error) {
	if err := undo(); err != nil {
		c.Remove()
		fmt.Fprintln(os.Stderr, "mutants: mend the copy:", err)
		os.Exit(1)
	}
}

var (
	errRed     = errors.New("the test failed")
	errSkipped = errors.New("the test was skipped")
)

// test runs the one test: nil if it passed, errRed if it ran and did not pass,
// errSkipped, or what kept it from running.
func (c *treeCopy) test(ctx context.Context, m mutant) error {
	parts := strings.Split(m.Test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	// No vet: a break is not held to style.
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-vet=off", "-timeout=5m", "-run", strings.Join(parts, "/"), m.Package)
	cmd.Dir = c.Dir
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()

	ran, result := false, ""
	var said []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var e struct{ Action, Test, Output string }
		if dec.Decode(&e) != nil {
			break
		}
		if e.Output != "" {
			said = append(said, e.Output)
		}
		if e.Test == m.Test {
			switch e.Action {
			case "run":
				ran = true
			case "pass", "fail", "skip":
				result = e.Action
			}
		}
	}
	switch {
	case !ran:
		return fmt.Errorf("the test did not run\n%s%s", tail(said), stderr.String())
	case result == "skip":
		return fmt.Errorf("%w\n%s", errSkipped, tail(said))
	case result == "pass":
		return nil
	case result == "fail" || runErr != nil: // it failed, panicked, or took too long
		return errRed
	}
	return fmt.Errorf("the test began and never ended\n%s", tail(said))
}

func tail(lines []string) string { return strings.Join(lines[max(0, len(lines)-12):], "") }
