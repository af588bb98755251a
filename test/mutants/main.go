// SPDX-License-Identifier: Apache-2.0

// Command mutants breaks the code on purpose, one small break at a time, and
// demands that the test which claims to watch that place turns red.
//
// The breaks are listed in mutants.yaml; its head says how to add one. Each is
// made in a copy of the tree; the tree itself is never touched. The run ends
// with one plain line, as every test run here does:
//
//	N passed, N failed, N skipped
//
// where passed means that the break was noticed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/overlane/overlane/test/mutants/worktree"
)

func main() {
	run := flag.String("run", "", "only mutants whose name matches this expression")
	list := flag.Bool("list", false, "list the mutants and what each breaks")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutants [flags]")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	failed, err := mutants(ctx, *run, *list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func mutants(ctx context.Context, run string, list bool) (failed int, err error) {
	match, err := regexp.Compile(run)
	if err != nil {
		return 0, err
	}
	root, err := worktree.Root(ctx)
	if err != nil {
		return 0, err
	}
	all, err := load(root + "/test/mutants/mutants.yaml")
	if err != nil {
		return 0, err
	}
	if list {
		for _, m := range all {
			fmt.Printf("%-28s %s\n%-28s   %s %s\n", m.Name, m.Breaks, "", m.Package, m.Test)
		}
		return 0, nil
	}
	c, err := newCopy(ctx, root)
	if err != nil {
		return 0, err
	}
	defer c.Remove()

	var passed, skipped int
	for _, m := range all {
		if !match.MatchString(m.Name) {
			continue
		}
		start := time.Now()
		v, why := c.judge(ctx, m)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("interrupted")
		}
		switch v {
		case noticed:
			passed++
		case unjudged:
			skipped++
		default:
			failed++
		}
		fmt.Printf("%-9s %s  (%s %s, %.1fs)\n", v, m.Name, m.Package, m.Test, time.Since(start).Seconds())
		if why != "" {
			fmt.Printf("          %s\n", strings.ReplaceAll(strings.TrimSpace(why), "\n", "\n          "))
		}
	}
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed, nil
}
