// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
)

// mutant is one break and the test that must notice it.
type mutant struct {
	Name   string `yaml:"name"`
	Breaks string `yaml:"breaks"` // the promise that the break breaks

	// Either an edit of one place in one file...
	File    string `yaml:"file"`
	Find    string `yaml:"find"`
	Replace string `yaml:"replace"`
	// ...or a macro defined for all kernel-side code.
	Define string `yaml:"define"`

	Package string `yaml:"package"`
	Test    string `yaml:"test"`
}

func load(path string) ([]mutant, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []mutant
	if err := yaml.NewDecoder(bytes.NewReader(raw), yaml.Strict()).Decode(&all); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if err := m.valid(); err != nil {
			return nil, fmt.Errorf("read %s: mutant %q: %w", path, m.Name, err)
		}
		if seen[m.Name] {
			return nil, fmt.Errorf("read %s: two mutants are called %q", path, m.Name)
		}
		seen[m.Name] = true
	}
	return all, nil
}

func (m mutant) valid() error {
	switch {
	case m.Name == "" || m.Breaks == "" || m.Package == "" || m.Test == "":
		return errors.New("name, breaks, package and test are all wanted")
	case (m.File == "") == (m.Define == ""):
		return errors.New("either file or define is wanted")
	case m.File != "" && (m.Find == "" || m.Find == m.Replace):
		return errors.New("find is wanted, and replace must differ from it")
	case m.File != "" && !filepath.IsLocal(m.File):
		return errors.New("file must lie in the tree")
	}
	return nil
}

// kernelSide reports whether BPF objects must be made anew.
func (m mutant) kernelSide() bool {
	return m.Define != "" || strings.HasSuffix(m.File, ".c") || strings.HasSuffix(m.File, ".h")
}

// apply makes the break in the tree at root and returns how to undo it.
func (m mutant) apply(root string) (undo func() error, err error) {
	if m.File == "" {
		return func() error { return nil }, nil
	}
	path := filepath.Join(root, m.File)
	was, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(was), m.Find); n != 1 {
		return nil, fmt.Errorf("%s has %d places that read %q, one is wanted", m.File, n, m.Find)
	}
	is := strings.Replace(string(was), m.Find, m.Replace, 1)
	if err := os.WriteFile(path, []byte(is), 0o644); err != nil {
		return nil, err
	}
	return func() error { return os.WriteFile(path, was, 0o644) }, nil
}
