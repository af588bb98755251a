// SPDX-License-Identifier: Apache-2.0

// Package docs checks what readers click on.
package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchor is what a page of GitHub calls a heading.
func anchor(text string) string {
	return "#" + strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(text)), ""), " ", "-")
}

// Links between pages of the repository lead to a file, and to a heading in it.
func TestLinksLeadSomewhere(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "ls-files", "-z", "*.md").Output()
	if err != nil {
		t.Skip("needs git and the repository: ", err)
	}
	pages := map[string]string{}
	for _, name := range bytes.Split(bytes.TrimRight(out, "\x00"), []byte{0}) {
		data, err := os.ReadFile(filepath.Join("../..", string(name)))
		if err != nil {
			t.Fatal(err)
		}
		pages[string(name)] = string(data)
	}
	anchors := map[string]bool{}
	for name, text := range pages {
		for _, m := range heading.FindAllStringSubmatch(text, -1) {
			anchors[name+anchor(m[1])] = true
		}
	}
	links := 0
	for name, text := range pages {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			to := name
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(name), m[1])
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s: %s leads to no file", name, m[0])
			} else if _, page := pages[to]; page && m[2] != "" && !anchors[to+m[2]] {
				t.Errorf("%s: %s has no such heading", name, m[0])
			}
		}
	}
	if links == 0 {
		t.Error("no link was found")
	}
}
