// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

const (
	module = "github.com/overlane/overlane"
	judge  = module + "/test/residue"
)

// oneThread are packages whose tests compute for long and share nothing between goroutines: the race detector has
// nothing to find there, and takes several times as long.
var oneThread = []string{module + "/internal/governor", module + "/internal/datapath", module + "/test/parser"}

// startItself are packages whose tests start their own binary hundreds of times, which takes seconds each with the race
// detector: only a full run has it there.
var startItself = []string{module + "/internal/apply", module + "/cmd/overlane"}

// emulated are packages whose longest tests wait for a machine that takes one core: two of them run side by side.
var emulated = []string{module + "/test/manycore", module + "/test/vm", module + "/test/nics"}

// lots are the packages by how they run.
type lots struct {
	emulated, computing []string // side by side, without the race detector
	plain               []string // side by side, with the race detector where there is a C compiler for it
	// alone build networks, and run one after another: they lean on kernel threads and cores that a neighbour would
	// take, and they end with the residue check.
	alone []string
}

// goTests runs the packages in lots, and the checks beside the first.
func goTests(ctx context.Context, t *tally, how speed, run string, patterns []string, withChecks bool) error {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	l, err := split(ctx, how, patterns)
	if err != nil {
		return err
	}
	common := []string{"test", "-json", "-count=1"}
	if how == full {
		// Machines of test/vm have 35 minutes each, and five run one after the other.
		common = append(common, "-timeout=3h")
	} else {
		common = append(common, "-timeout=40m", "-short")
	}
	if run != "" {
		common = append(common, "-run", run)
	}
	if how == unit {
		needsMore := func(pkg string) bool { return strings.HasPrefix(pkg, module+"/test/") }
		return goTest(ctx, t, common, slices.DeleteFunc(slices.Concat(l.computing, l.plain), needsMore))
	}
	race := []string{"-race"}
	if !hasCgo() {
		t.say("      without the race detector: it needs a C compiler")
		race = nil
	}
	var results <-chan checked
	if withChecks {
		results = runChecks(ctx)
	}
	err = goTest(ctx, t, slices.Concat(common, []string{"-p=2"}), slices.Concat(l.emulated, l.computing))
	if results != nil {
		for c := range results {
			if ctx.Err() == nil {
				err = errors.Join(err, c.tell(t))
			}
		}
	}
	return errors.Join(
		err,
		goTest(ctx, t, slices.Concat(common, race), l.plain),
		goTest(ctx, t, slices.Concat(common, []string{"-p=1"}), l.alone),
	)
}

// goTest runs packages, if there are any.
func goTest(ctx context.Context, t *tally, args, packages []string) error {
	if len(packages) == 0 || ctx.Err() != nil {
		return nil
	}
	cmd := command(ctx, "go", slices.Concat(args, packages)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	failed := t.failed
	readErr := t.read(events)
	err = cmd.Wait()
	t.abandon()
	if e := ended(ctx); e != nil {
		return e
	}
	if readErr != nil {
		return readErr
	}
	if err != nil && t.failed == failed {
		return fmt.Errorf("go test: %w\n%s", err, stderr.String())
	}
	return nil
}

// split lists packages by lot: alone are those under test/ and those whose tests call the residue judge.
func split(ctx context.Context, how speed, patterns []string) (l lots, err error) {
	cmd := command(ctx, "go", append([]string{"list", "-f",
		"{{.ImportPath}} {{join .TestImports \",\"}},{{join .XTestImports \",\"}}"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return lots{}, fmt.Errorf("list packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(pkg, module+"/build/"): // what make leaves, and scratch
		case slices.Contains(emulated, pkg):
			l.emulated = append(l.emulated, pkg)
		case slices.Contains(oneThread, pkg), how != full && slices.Contains(startItself, pkg):
			l.computing = append(l.computing, pkg)
		case strings.HasPrefix(pkg, module+"/test/"), strings.Contains(","+imports+",", ","+judge+","):
			l.alone = append(l.alone, pkg)
		default:
			l.plain = append(l.plain, pkg)
		}
	}
	return l, nil
}

func hasCgo() bool {
	out, err := exec.Command("go", "env", "CC").Output()
	if err != nil || os.Getenv("CGO_ENABLED") == "0" {
		return false
	}
	cc, _, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	_, err = exec.LookPath(cc)
	return !errors.Is(err, exec.ErrNotFound) && err == nil
}
