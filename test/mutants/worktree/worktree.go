// SPDX-License-Identifier: Apache-2.0

// Package worktree copies the working tree, so that it can be broken on purpose.
package worktree

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

// Root is the folder of the working tree.
func Root(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return "", fmt.Errorf("find the tree: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Copy is a copy of the tree, as it stands and not only as committed.
type Copy struct{ Dir string }

// New makes one.
func New(ctx context.Context, root string) (*Copy, error) {
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
	c := &Copy{dir}
	for _, name := range strings.Split(strings.TrimRight(string(files), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
			c.Remove()
			return nil, fmt.Errorf("copy the tree: %w", err)
		}
	}
	return c, nil
}

// Remove ends it.
func (c *Copy) Remove() { os.RemoveAll(c.Dir) }

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

// Regenerate makes the BPF objects anew, with a macro defined if one is named,
// and returns how to put the old ones back. A break that no object shows is an
// error: it would judge nothing.
func (c *Copy) Regenerate(ctx context.Context, define string) (undo func() error, err error) {
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
	cmd := exec.CommandContext(ctx, "make", "generate")
	cmd.Dir = c.Dir
	// The driver of clang appends these to every command line, whatever flags
	// the Makefile gives; a break may well leave something unused.
	options := "# +-Wno-error"
	if define != "" {
		options += " +-D" + define
	}
	cmd.Env = append(os.Environ(), "CCC_OVERRIDE_OPTIONS="+options)
	if out, err := cmd.CombinedOutput(); err != nil {
		return undo, fmt.Errorf("make generate: %w\n%s", err, out)
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

// generated reads what make generate writes.
func (c *Copy) generated() (map[string][]byte, error) {
	found := map[string][]byte{}
	err := filepath.WalkDir(c.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_bpfel.o") && !strings.HasSuffix(path, "_bpfel.go") {
			return err
		}
		found[path], err = os.ReadFile(path)
		return err
	})
	return found, err
}
