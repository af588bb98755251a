// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is a kernel module ready to be loaded.
type module struct {
	name string
	data []byte
}

// modules finds the named modules under /lib/modules/RELEASE and all that they
// need, each behind its needs. The packages have no modules.dep (their scripts
// would make it); the modules themselves say what they need. What is built
// into the kernel is left out.
func modules(dir string, names []string) ([]module, error) {
	s := &shelf{files: map[string]string{}, builtin: map[string]bool{}, taken: map[string]bool{}}
	if err := s.index(dir); err != nil {
		return nil, fmt.Errorf("list kernel modules: %w", err)
	}
	for _, n := range names {
		if err := s.take(n); err != nil {
			return nil, fmt.Errorf("module %s: %w", n, err)
		}
	}
	return s.out, nil
}

type shelf struct {
	files   map[string]string // name -> path
	builtin map[string]bool
	taken   map[string]bool
	out     []module
}

// moduleName turns a file's name into the name the kernel uses.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

func (s *shelf) index(dir string) error {
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(builtin)) {
		s.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			s.files[moduleName(path)] = path
		}
		return err
	})
}

func (s *shelf) take(name string) error {
	name = moduleName(name)
	if s.taken[name] || s.builtin[name] {
		return nil
	}
	s.taken[name] = true
	path, ok := s.files[name]
	if !ok {
		return fmt.Errorf("this kernel has none of that name")
	}
	data, err := unpack(path)
	if err != nil {
		return err
	}
	needs, err := depends(data)
	if err != nil {
		return err
	}
	for _, n := range needs {
		if err := s.take(n); err != nil {
			return fmt.Errorf("needs %s: %w", n, err)
		}
	}
	s.out = append(s.out, module{name + ".ko", data})
	return nil
}

// unpack reads a module, which distributions compress in several ways.
func unpack(path string) ([]byte, error) {
	var tool string
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".gz":
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	case ".xz":
		tool = "xz"
	case ".zst":
		tool = "zstd"
	default:
		return nil, fmt.Errorf("%s: unknown compression", path)
	}
	var stderr strings.Builder
	cmd := exec.Command(tool, "-dcq", path)
	cmd.Stderr = &stderr
	data, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("unpack %s with %s: %w %s", path, tool, err, strings.TrimSpace(stderr.String()))
	}
	return data, nil
}

// depends reads what a module says that it needs.
func depends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	sec := f.Section(".modinfo")
	if sec == nil {
		return nil, fmt.Errorf("no kernel module: it has no section .modinfo")
	}
	info, err := sec.Data()
	if err != nil {
		return nil, err
	}
	for _, kv := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(kv, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
