// SPDX-License-Identifier: Apache-2.0

// Package faults holds docs/faults.md to the tree: a test that it names is there.
package faults

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// named is a test in the table: `folder.TestName`, or `folder.TestName/subtest`.
var named = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)(?:/([^`]+))?`")

// open begins what is said of a fault that no test provokes, and why.
const open = "No test:"

// rot lists what of a table is not true of a tree, and counts the tests that it names.
func rot(table io.Reader, root string) (bad []string, tests int) {
	lines := bufio.NewScanner(table)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| fault ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || slices.Contains(cells, "") {
			bad = append(bad, fmt.Sprintf("line %d: %d cells, want fault, how, outcome, tests", n, len(cells)))
			continue
		}
		found := named.FindAllStringSubmatch(cells[3], -1)
		if len(found) == 0 && !strings.Contains(cells[3], open) {
			bad = append(bad, fmt.Sprintf("line %d: neither a test nor %q", n, open))
		}
		for _, t := range found {
			tests++
			if !declared(filepath.Join(root, t[1]), t[2], t[3]) {
				bad = append(bad, fmt.Sprintf("line %d: there is no %s", n, t[0]))
			}
		}
	}
	return bad, tests
}

// declared tells whether a folder's tests declare one, and speak of its subtest.
func declared(dir, test, sub string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go"))
	there, spoken := false, sub == ""
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			return false
		}
		there = there || strings.Contains(string(source), "\nfunc "+test+"(")
		spoken = spoken || strings.Contains(string(source), `"`+sub+`"`)
	}
	return there && spoken
}

func TestEveryFaultHasItsTest(t *testing.T) {
	table, err := os.Open(filepath.Join(root, "docs/faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	bad, tests := rot(table, root)
	for _, b := range bad {
		t.Error(b)
	}
	if tests < 60 {
		t.Errorf("%d tests in the table: it is not read any more", tests)
	}
}

func TestWhatIsRottenIsSeen(t *testing.T) {
	tree := t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "a_test.go"), []byte("package a\n\nfunc TestHere(t *testing.T) { run(\"part\") }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Base(tree)
	for row, want := range map[string]string{
		"| kill | kill -9 | restored | `%s.TestHere` |":          "",
		"| kill | kill -9 | restored | `%s.TestHere/part` |":     "",
		"| kill | kill -9 | restored | No test: not possible. |": "",
		"| kill | kill -9 | restored | `%s.TestGone` |":          "there is no",
		"| kill | kill -9 | restored | `%s.TestHere/gone` |":     "there is no",
		"| kill | kill -9 | restored | by hand |":                "neither a test",
		"| kill | restored | `%s.TestHere` |":                    "cells",
	} {
		row = strings.ReplaceAll(row, "%s", strings.ToLower(dir))
		bad, _ := rot(strings.NewReader(row+"\n"), filepath.Dir(tree))
		if got := strings.Join(bad, "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", row, got, want)
		}
	}
}
