// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// The list must not rot: a break whose place is gone judges nothing.
func TestEveryMutantStillApplies(t *testing.T) {
	all, err := load("mutants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			if m.File != "" {
				source, err := os.ReadFile(filepath.Join(root, m.File))
				if err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(string(source), m.Find); n != 1 {
					t.Errorf("%s has %d places that read %q, one is wanted", m.File, n, m.Find)
				}
			} else if !mentioned(t, m.Define) {
				t.Errorf("no kernel-side file asks for %s", m.Define)
			}
			name, _, _ := strings.Cut(m.Test, "/")
			if !declared(t, filepath.Join(root, m.Package), name) {
				t.Errorf("%s has no %s", m.Package, name)
			}
		})
	}
}

func mentioned(t *testing.T, define string) bool {
	t.Helper()
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(define) + `\b`)
	files, err := filepath.Glob(filepath.Join(root, "bpf", "*.[ch]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if source, err := os.ReadFile(f); err == nil && word.Match(source) {
			return true
		}
	}
	return false
}

func declared(t *testing.T, dir, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if source, err := os.ReadFile(f); err == nil && strings.Contains(string(source), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}

// A small tree to judge in.
var tree = map[string]string{
	"go.mod":    "module example\n\ngo 1.26\n",
	"Makefile":  "generate:\n", // has no objects to make
	"a/a.go":    "package a\n\nfunc Two() int { return 2 }\nfunc Unwatched() int { return 3 }\n",
	"a/text.go": "package a\n\nconst text = `Two Two`\n",
	"a/a_test.go": `package a

import "testing"

func TestTwo(t *testing.T) {
	t.Run("is two", func(t *testing.T) {
		if Two() != 2 {
			t.Fatal()
		}
	})
}
func TestRed(t *testing.T)  { t.Fatal() }
func TestSkip(t *testing.T) { t.Skip("needs luck") }
`,
}

func TestVerdicts(t *testing.T) {
	dir := t.TempDir()
	for name, content := range tree {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := newCopy(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Remove()

	base := mutant{File: "a/a.go", Find: "return 2", Replace: "return 1", Package: "./a", Test: "TestTwo"}
	for _, tt := range []struct {
		name   string
		change func(*mutant)
		want   verdict
		why    string
	}{
		{"noticed", func(m *mutant) {}, noticed, ""},
		{"noticed by a subtest", func(m *mutant) { m.Test = "TestTwo/is_two" }, noticed, ""},
		{"no test looks", func(m *mutant) { m.Find, m.Replace = "return 3", "return 4" }, survived, ""},
		{"a panic is red", func(m *mutant) { m.Replace = `panic("")` }, noticed, ""},
		{"what does not build proves nothing", func(m *mutant) { m.Replace = "return none" }, void, "undefined: none"},
		{"the place is gone", func(m *mutant) { m.Find = "return 7" }, void, "0 places"},
		{"the place is not one", func(m *mutant) { m.File, m.Find = "a/text.go", "Two" }, void, "2 places"},
		{"the file is gone", func(m *mutant) { m.File = "a/b.go" }, void, "no such file"},
		{"the test is gone", func(m *mutant) { m.Test = "TestThree" }, void, "did not run"},
		{"the test is red anyway", func(m *mutant) { m.Test = "TestRed" }, void, "without the break"},
		{"the test cannot run here", func(m *mutant) { m.Test = "TestSkip" }, unjudged, "needs luck"},
		{"no object to change", func(m *mutant) { m.File, m.Find, m.Define = "", "", "X" }, void, "no BPF object changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := base
			tt.change(&m)
			v, why := c.judge(t.Context(), m)
			if v != tt.want || !strings.Contains(why, tt.why) {
				t.Errorf("%s %q, want %s because of %q", v, why, tt.want, tt.why)
			}
			if got, err := os.ReadFile(filepath.Join(c.Dir, "a/a.go")); err != nil || string(got) != tree["a/a.go"] {
				t.Errorf("the copy was not mended: %q, %v", got, err)
			}
		})
	}
}

func TestBadEntriesAreRefused(t *testing.T) {
	for _, tt := range []struct{ name, list string }{
		{"unknown key", "- {name: a, breaks: b, file: f, find: x, package: p, test: t, tset: u}"},
		{"no promise", "- {name: a, file: f, find: x, package: p, test: t}"},
		{"nothing broken", "- {name: a, breaks: b, package: p, test: t}"},
		{"broken twice", "- {name: a, breaks: b, file: f, find: x, define: D, package: p, test: t}"},
		{"same before and after", "- {name: a, breaks: b, file: f, find: x, replace: x, package: p, test: t}"},
		{"outside of the tree", "- {name: a, breaks: b, file: ../f, find: x, package: p, test: t}"},
		{"same name", "- {name: a, breaks: b, define: D, package: p, test: t}\n- {name: a, breaks: b, define: E, package: p, test: t}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "list.yaml")
			if err := os.WriteFile(path, []byte(tt.list), 0o644); err != nil {
				t.Fatal(err)
			}
			if all, err := load(path); err == nil {
				t.Errorf("accepted: %+v", all)
			}
		})
	}
}
