// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"regexp"
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
