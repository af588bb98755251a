// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// Program is the emulator that machines run in.
const Program = "qemu-system-x86_64"

// Emulator is one that is installed, the zero value, or was unpacked into a folder.
type Emulator struct {
	dir string
	env []string
}

// Unpacked is the emulator in a folder, with variables of its environment.
func Unpacked(dir string, env ...string) Emulator { return Emulator{dir, env} }

// firmware comes with the emulator that is installed or, in its folder, with one that was built:
// what was unpacked has none at the place where its package expects it.
const firmware = "/usr/share/seabios"

func (e Emulator) command(ctx context.Context, args ...string) *exec.Cmd {
	if e.dir == "" {
		return command(ctx, Program, args...)
	}
	cmd := command(ctx, filepath.Join(e.dir, "usr/bin", Program),
		append([]string{"-L", filepath.Join(e.dir, "usr/share/qemu"), "-L", filepath.Join(e.dir, firmware), "-L", firmware}, args...)...)
	// Modules are of one build: those of the installed emulator do not fit.
	cmd.Env = append(append(os.Environ(), e.env...), "QEMU_MODULE_DIR="+filepath.Join(e.dir, "usr/lib/x86_64-linux-gnu/qemu"))
	return cmd
}

var version = regexp.MustCompile(`version (\d+)\.`)

// EmulatorSince returns an emulator of at least that major version: the installed one, or the
// distribution's backport of it, unpacked into the cache.
func EmulatorSince(ctx context.Context, major int, cache string) (e Emulator, err error) {
	if err = e.since(ctx, major); err == nil {
		return e, nil
	}
	release, rerr := osRelease()
	if rerr != nil {
		return e, errors.Join(err, rerr)
	}
	suite := release["VERSION_CODENAME"] + "-backports"
	dir := filepath.Join(cache, suite+"-qemu")
	e.dir = filepath.Join(dir, "unpacked")
	if e.since(ctx, major) == nil {
		return e, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return e, err
	}
	unlock, err := Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return e, err
	}
	defer unlock()
	if e.since(ctx, major) == nil {
		return e, nil // another run has unpacked it meanwhile
	}
	a, err := NewAPT(ctx, dir, suite)
	if err != nil {
		return e, err
	}
	tmp, err := os.MkdirTemp(dir, "unpack")
	if err != nil {
		return e, err
	}
	defer os.RemoveAll(tmp)
	if err := a.Extract(ctx, tmp, "qemu-system-x86", "qemu-system-common", "qemu-system-data"); err != nil {
		return e, err
	}
	if err := errors.Join(os.RemoveAll(e.dir), os.Rename(tmp, e.dir)); err != nil {
		return e, err
	}
	return e, e.since(ctx, major)
}

// since tells what is wrong if the emulator is older, or does not run.
func (e Emulator) since(ctx context.Context, major int) error {
	out, err := output(e.command(ctx, "--version"))
	if err != nil {
		return err
	}
	m := version.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("%s does not tell its version: %s", Program, out)
	}
	if is, _ := strconv.Atoi(string(m[1])); is < major { // digits by the expression
		return fmt.Errorf("%s is version %d, and %d is needed", Program, is, major)
	}
	return nil
}
