// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/overlane/overlane/test/vm/guest"
)

// pack writes the root image. It is not compressed: to unpack it would take the
// emulated kernel longer than to read it.
func (m *Machine) pack(to string) (err error) {
	mods, err := modules(m.Kernel.Modules, m.Modules)
	if err != nil {
		return err
	}
	plan := guest.Plan{Runs: m.Runs}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	c := newCPIO(w)
	for _, mod := range mods {
		plan.Modules = append(plan.Modules, mod.name)
		c.file(guest.ModuleDir+"/"+mod.name, mod.data)
	}
	data, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	c.file(guest.PlanFile, data)
	files := map[string]string{"init": m.Init}
	for name, path := range m.Tests {
		files[guest.TestDir+"/"+name] = path
	}
	for _, p := range m.Programs {
		if err := program(files, p); err != nil {
			return fmt.Errorf("program %s: %w", p, err)
		}
	}
	for _, path := range m.Files {
		files[strings.TrimPrefix(path, "/")] = path
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		c.file(name, data)
	}
	return errors.Join(c.close(), w.Flush())
}

// program adds a program of the machine, and the libraries that the loader
// would find for it, at the places where it would.
func program(files map[string]string, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	files["bin/"+filepath.Base(name)] = path
	out, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") {
			return nil
		}
		return fmt.Errorf("ldd: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line) {
			if filepath.IsAbs(word) {
				files[strings.TrimPrefix(word, "/")] = word
			}
		}
	}
	return nil
}
