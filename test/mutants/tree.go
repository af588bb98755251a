// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func treeRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("find the tree: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// treeCopy is a copy of the tree, as it stands and not only as committed.
type treeCopy struct {
	dir   string
	sound map[string]error // package and test -> what it said without a break
}

func newCopy(ctx context.Context, root string) (*treeCopy, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	files, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tree: %w", err)
	}
	dir, err := os.MkdirTemp("", "overlane-mutants-")
	if err != nil {
		return nil, err
	}
	c := &treeCopy{dir: dir, sound: map[string]error{}}
	for _, name := range strings.Split(strings.TrimRight(string(files), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
			c.remove()
			return nil, fmt.Errorf("copy the tree: %w", err)
		}
	}
	return c, nil
}

func (c *treeCopy) remove() { os.RemoveAll(c.dir) }

func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, st.Mode().Perm())
}

// regenerate makes the BPF objects anew, with a macro defined if one is named,
// and returns how to put the old ones back. A break that no object shows is an
// error: it would judge nothing.
func (c *treeCopy) regenerate(ctx context.Context, define string) (undo func() error, err error) {
	was, err := c.generated()
	if err != nil {
		return nil, err
	}
	undo = func() error {
		for path, data := range was {
			if err := os.WriteFile(path, data, 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "generate", "./...")
	cmd.Dir = c.dir
	// The driver of clang appends these to every command line, whatever flags
	// the generate directives give; a break may well leave something unused.
	options := "# +-Wno-error"
	if define != "" {
		options += " +-D" + define
	}
	cmd.Env = append(os.Environ(), "CCC_OVERRIDE_OPTIONS="+options)
	if out, err := cmd.CombinedOutput(); err != nil {
		return undo, fmt.Errorf("go generate: %w\n%s", err, out)
	}
	is, err := c.generated()
	if err != nil {
		return undo, err
	}
	for path, data := range is {
		if strings.HasSuffix(path, ".o") && !bytes.Equal(data, was[path]) {
			return undo, nil
		}
	}
	return undo, fmt.Errorf("no BPF object changed")
}

// generated reads what go generate writes.
func (c *treeCopy) generated() (map[string][]byte, error) {
	found := map[string][]byte{}
	err := filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_bpfel.o") && !strings.HasSuffix(path, "_bpfel.go") {
			return err
		}
		found[path], err = os.ReadFile(path)
		return err
	})
	return found, err
}
