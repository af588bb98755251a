// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each link between the documents leads to a file, and to a heading of it.
func TestLinksLeadSomewhere(t *testing.T) {
	var names []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found, err := filepath.Glob(filepath.Join(repo, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	heading, other := regexp.MustCompile(`(?m)^#+ (.*)$`), regexp.MustCompile(`[^a-z0-9 _-]`)
	anchors := map[string]map[string]bool{}
	for _, name := range names {
		anchors[name] = map[string]bool{"": true}
		for _, m := range heading.FindAllStringSubmatch(read(t, name), -1) {
			anchors[name][strings.ReplaceAll(other.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
		}
	}
	if len(names) < 8 {
		t.Fatalf("found %q only", names)
	}
	for _, name := range names {
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)#?([^)]*)\)`).FindAllStringSubmatch(read(t, name), -1) {
			to := filepath.Join(filepath.Dir(name), m[1])
			if m[1] == "" {
				to = name
			}
			if strings.Contains(m[1], "://") {
				continue
			}
			known, document := anchors[to]
			if _, err := os.Stat(to); err != nil || document && !known[m[2]] {
				t.Errorf("%s: %s leads nowhere", name, m[0])
			}
		}
	}
}

// The least kernel is one number, wherever it is told: no older one may be asked for.
func TestTheLeastKernelIsOneNumberEverywhere(t *testing.T) {
	number := regexp.MustCompile(`const minRelease = "(\d+)\.(\d+)"`).FindStringSubmatch(read(t, filepath.Join(repo, "internal/probe/kernel.go")))
	if number == nil {
		t.Fatal("internal/probe/kernel.go does not tell the least kernel")
	}
	version := func(major, minor string) [2]int {
		a, err := strconv.Atoi(major)
		b, berr := strconv.Atoi(minor)
		if err := errors.Join(err, berr); err != nil {
			t.Fatal(err)
		}
		return [2]int{a, b}
	}
	want := version(number[1], number[2])
	names, err := filepath.Glob(filepath.Join(repo, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	least := regexp.MustCompile(`(?:Linux|kernel) (?:(?:≥|>=) (\d+)\.(\d+)|(\d+)\.(\d+) or newer)`)
	said := false
	for _, name := range []string{"README.md", "KNOWN_ISSUES.md", "deploy/config.yaml", "deploy/nfpm.yaml"} {
		names = append(names, filepath.Join(repo, name))
	}
	for _, name := range names {
		for _, m := range least.FindAllStringSubmatch(read(t, name), -1) {
			got := version(m[1]+m[3], m[2]+m[4])
			said = said || filepath.Base(name) == "README.md" && got == want
			if slices.Compare(got[:], want[:]) < 0 {
				t.Errorf("%s says %q, the least kernel is %d.%d", name, m[0], want[0], want[1])
			}
		}
	}
	if !said {
		t.Error("README.md does not tell the least kernel")
	}
}
