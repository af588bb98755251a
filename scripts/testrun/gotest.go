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

// oneThread are packages without a goroutine, whose tests compute for long: the race detector has nothing to find
// there, and takes several times as long.
var oneThread = []string{module + "/internal/governor"}

// goTests runs the packages in lots. Plain ones run side by side, with the
// race detector where there is a C compiler for it. Those that build networks
// run one after another: they lean on kernel threads and cores that a
// neighbour would take, and they end with the residue check.
func goTests(ctx context.Context, t *tally, run string, patterns []string) error {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	plain, alone, err := split(ctx, patterns)
	if err != nil {
		return err
	}
	common := []string{"test", "-json", "-count=1", "-timeout=40m"}
	if run != "" {
		common = append(common, "-run", run)
	}
	race := hasCgo()
	var pure []string
	if race {
		pure = slices.DeleteFunc(slices.Clone(plain), func(p string) bool { return !slices.Contains(oneThread, p) })
		plain = slices.DeleteFunc(plain, func(p string) bool { return slices.Contains(oneThread, p) })
		plain = append([]string{"-race"}, plain...)
	} else {
		t.say("      without the race detector: it needs a C compiler")
	}
	for _, lot := range []struct {
		args []string
		any  bool
	}{
		{slices.Concat(common, pure), len(pure) > 0},
		{slices.Concat(common, plain), len(plain) > 1 || !race && len(plain) > 0},
		{slices.Concat(common, []string{"-p=1"}, alone), len(alone) > 0},
	} {
		if !lot.any {
			continue
		}
		if err := goTest(ctx, t, lot.args); err != nil {
			return err
		}
	}
	return nil
}

func goTest(ctx context.Context, t *tally, args []string) error {
	cmd := command(ctx, "go", args...)
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

// split lists packages: alone are those under test/ and those whose tests call
// the residue judge.
func split(ctx context.Context, patterns []string) (plain, alone []string, err error) {
	cmd := command(ctx, "go", append([]string{"list", "-f",
		"{{.ImportPath}} {{join .TestImports \",\"}},{{join .XTestImports \",\"}}"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list packages: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(pkg, module+"/build/"): // what make leaves, and scratch
		case strings.HasPrefix(pkg, module+"/test/"), strings.Contains(","+imports+",", ","+judge+","):
			alone = append(alone, pkg)
		default:
			plain = append(plain, pkg)
		}
	}
	return plain, alone, nil
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
