// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// check is a script that passes, fails, or (exit status 77) cannot run here.
type check struct {
	name string
	args []string
}

var checks = []check{
	{"licence lines", []string{"scripts/lint.sh", "spdx"}},
	{"gofmt", []string{"scripts/lint.sh", "gofmt"}},
	{"go vet", []string{"scripts/lint.sh", "vet"}},
	{"staticcheck", []string{"scripts/lint.sh", "staticcheck"}},
	{"clang-format", []string{"scripts/lint.sh", "clang-format"}},
	{"shell scripts", []string{"scripts/lint.sh", "shell"}},
	{"generated files", []string{"scripts/check-generated.sh"}},
}

const cannotRun = 77

// checked is how a check went.
type checked struct {
	check
	text string
	err  error
	took time.Duration
}

// runChecks runs them one after another, and gives what comes of each.
func runChecks(ctx context.Context) <-chan checked {
	all := make(chan checked, len(checks))
	go func() {
		defer close(all)
		for _, c := range checks {
			start := time.Now()
			out, err := command(ctx, c.args[0], c.args[1:]...).CombinedOutput()
			all <- checked{c, strings.TrimSpace(string(out)), err, time.Since(start)}
		}
	}()
	return all
}

// tell counts it.
func (c checked) tell(t *tally) error {
	var status *exec.ExitError
	switch {
	case c.err == nil:
		t.pass(c.name)
		t.say("ok    check %s  %.1fs", c.name, c.took.Seconds())
	case errors.As(c.err, &status) && status.ExitCode() == cannotRun:
		t.skip(c.name, c.text[strings.LastIndex(c.text, "\n")+1:])
	case errors.As(c.err, &status):
		t.fail("check "+c.name, c.text)
	default:
		return fmt.Errorf("run %s: %w", c.args[0], c.err)
	}
	return nil
}

// maxSkips reads the one line of the file that is not a comment.
func maxSkips(path string) (int, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return strconv.Atoi(line)
		}
	}
	return 0, fmt.Errorf("%s: no number in it", path)
}
