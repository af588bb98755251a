// SPDX-License-Identifier: Apache-2.0

package manycore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/overlane/overlane/test/vm"
)

// What the emulator is made of: a source package of the distribution, and ours.
const (
	suite   = "trixie"
	version = "1:10.0.13+ds-0+deb13u1"
	series  = "1:10.0."
)

// ours has files that go into the source, hooks.patch, which has the emulator call them, and a plug-in.
//
//go:embed qemu
var ours embed.FS

// places of our files in the source.
var places = map[string]string{
	"manycore.c": "accel/tcg/manycore.c",
	"manycore.h": "include/system/manycore.h",
	// What it has of devices.
	"devices.mak": "configs/devices/x86_64-softmmu/manycore.mak",
}

// configuration is one target, no feature and hardly a device, without what debuggers and tracers read:
// that builds in minutes.
var configuration = []string{
	"--target-list=x86_64-softmmu", "--without-default-features", "--enable-system", "--enable-tcg", "--enable-plugins",
	"--disable-docs", "--disable-werror", "--disable-install-blobs", "--disable-tools", "--enable-fdt=disabled",
	"--without-default-devices", "--with-devices-x86_64=manycore", "--disable-debug-info", "--enable-trace-backends=nop",
}

// firmware are packages whose files the emulator loads, which its source package does not contain.
var firmware = []string{"seabios", "qemu-system-data"}

// meson is younger there than in the oldest distribution that machines are built on.
const meson = "meson"

// tool is something that a build needs, and the package that has it.
type tool struct {
	pkg  string
	have func(context.Context) error
}

var tools = []tool{
	{"gcc", runs("gcc", "--version")},
	{"bison", runs("bison", "--version")},
	{"flex", runs("flex", "--version")},
	{"patch", runs("patch", "--version")},
	{"ninja-build", runs("ninja", "--version")},
	{"dpkg-dev", runs("dpkg-source", "--version")},
	{"pkg-config", runs("pkg-config", "--version")},
	{"libglib2.0-dev", runs("pkg-config", "--exists", "glib-2.0")},
	{"python3", runs("python3", "--version")},
	{"python3-venv", runs("python3", "-c", "import ensurepip")},
	{"python3-packaging", runs("python3", "-c", "import packaging")},
}

func runs(name string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		return system(exec.CommandContext(ctx, "env", append([]string{name}, args...)...)).Run()
	}
}

// system has a command of env find the distribution's programs first: its Python packages are seen by
// its own Python only.
func system(cmd *exec.Cmd, env ...string) *exec.Cmd {
	cmd.Env = append(append(os.Environ(), "PATH=/usr/bin:/bin:"+os.Getenv("PATH"), "LC_ALL=C.UTF-8"), env...)
	return cmd
}

// missing says what a build lacks, and what would mend it.
func missing(ctx context.Context, tools []tool) error {
	var pkgs []string
	for _, t := range tools {
		if t.have(ctx) != nil {
			pkgs = append(pkgs, t.pkg)
		}
	}
	if len(pkgs) == 0 {
		return nil
	}
	list := strings.Join(pkgs, " ")
	return fmt.Errorf("needs %s: apt-get install %s", strings.ReplaceAll(list, " ", ", "), list)
}

// Emulator is the one that runs many cores in guest time.
type Emulator struct {
	// Dir has its files, Key names what it was made of, and Plugin what its plug-in was.
	Dir, Key, Plugin string
}

// plugin is made apart: the emulator takes minutes, and what lines cost may change.
const plugin = "qemu/lines.c"

// keys name all that the emulator is made of, and its plug-in.
func keys() (emulator, lines string, err error) {
	e, p := sha256.New(), sha256.New()
	fmt.Fprintln(e, suite, version, configuration, firmware)
	err = fs.WalkDir(ours, "qemu", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := ours.ReadFile(name)
		if name == plugin {
			p.Write(data)
			return err
		}
		fmt.Fprintln(e, name, len(data))
		e.Write(data)
		return err
	})
	return fmt.Sprintf("%.6x", e.Sum(nil)), fmt.Sprintf("%.6x", p.Sum(nil)), err
}

// cached is the emulator where the cache has it, or would have it.
func cached(cache string) (*Emulator, error) {
	key, lines, err := keys()
	return &Emulator{filepath.Join(cache, "manycore-"+key), key, lines}, err
}

// Lacks says what a build would need that is not there, where there is no emulator in the cache.
func Lacks(ctx context.Context, cache string) error {
	e, err := cached(cache)
	if err != nil || e.there() {
		return err
	}
	return missing(ctx, tools)
}

// Build returns the emulator from the cache, or builds it, which takes minutes; say tells how far it is.
func Build(ctx context.Context, cache string, say func(string, ...any)) (*Emulator, error) {
	e, err := cached(cache)
	if err != nil || e.there() {
		return e, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	unlock, err := vm.Lock(filepath.Join(cache, "manycore.lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if e.there() {
		return e, nil // another run has built it meanwhile
	}
	if err := missing(ctx, tools); err != nil {
		return nil, fmt.Errorf("build the emulator: %w", err)
	}
	if exists(e.program()) {
		return e, compile(ctx, e)
	}
	work, err := os.MkdirTemp(cache, "manycore-build")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	done := filepath.Join(work, "done")
	if err := build(ctx, work, say); err != nil {
		return nil, err
	}
	if err := compile(ctx, &Emulator{done, e.Key, e.Plugin}); err != nil {
		return nil, err
	}
	return e, errors.Join(os.RemoveAll(e.Dir), os.Rename(done, e.Dir))
}

func (e *Emulator) there() bool { return exists(e.program()) && exists(e.lines()) }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (e *Emulator) program() string { return filepath.Join(e.Dir, "usr/bin", vm.Program) }

// lines is the plug-in that counts cache lines.
func (e *Emulator) lines() string {
	return filepath.Join(e.Dir, "usr/lib/manycore/lines-"+e.Plugin+".so")
}

// header is what plug-ins are made with.
func (e *Emulator) header() string { return filepath.Join(e.Dir, "usr/include/qemu-plugin.h") }

// build leaves the emulator and what it needs in work/done, laid out as packages are.
func build(ctx context.Context, work string, say func(string, ...any)) error {
	source, out, done, python := filepath.Join(work, "source"), filepath.Join(work, "build"), filepath.Join(work, "done"), filepath.Join(work, "python")
	apt, err := vm.NewAPT(ctx, work, suite)
	if err != nil {
		return err
	}
	say("fetching the source of qemu %s", version)
	got, err := apt.Source(ctx, source, "qemu", version, series)
	if err != nil {
		return err
	}
	if got != version {
		say("WARNING: the archive has qemu %s no more: building %s", version, got)
	}
	if err := errors.Join(apt.Extract(ctx, python, meson), apt.Extract(ctx, done, firmware...)); err != nil {
		return err
	}
	if err := alter(ctx, source); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	modules := "PYTHONPATH=" + filepath.Join(python, "usr/lib/python3/dist-packages")
	say("configuring it")
	configure := system(exec.CommandContext(ctx, filepath.Join(source, "configure"), configuration...), modules)
	configure.Dir = out
	if text, err := configure.CombinedOutput(); err != nil {
		return fmt.Errorf("configure the emulator: %w\n%s", err, last(text, 30))
	}
	ninja := system(exec.CommandContext(ctx, "env", "ninja", vm.Program), modules)
	ninja.Dir = out
	if err := watched(ninja, say); err != nil {
		return fmt.Errorf("compile the emulator: %w", err)
	}
	return place(ctx, source, out, done)
}

// alter puts ours into the source.
func alter(ctx context.Context, source string) error {
	for name, to := range places {
		data, err := ours.ReadFile("qemu/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(source, to), data, 0o644); err != nil {
			return err
		}
	}
	hooks, err := ours.ReadFile("qemu/hooks.patch")
	if err != nil {
		return err
	}
	patch := exec.CommandContext(ctx, "patch", "-p1", "--no-backup-if-mismatch")
	patch.Dir, patch.Stdin = source, bytes.NewReader(hooks)
	if text, err := patch.CombinedOutput(); err != nil {
		return fmt.Errorf("patch the emulator: %w\n%s", err, text)
	}
	return nil
}

// place puts what was built where its package would, and what plug-ins are made with.
func place(ctx context.Context, source, out, done string) error {
	e := &Emulator{Dir: done}
	header, err := os.ReadFile(filepath.Join(source, "include/qemu/qemu-plugin.h"))
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(e.program()), 0o755), os.MkdirAll(filepath.Dir(e.header()), 0o755), os.WriteFile(e.header(), header, 0o644)); err != nil {
		return err
	}
	return tell(ctx, "strip", "-o", e.program(), filepath.Join(out, vm.Program))
}

// compile makes the plug-in.
func compile(ctx context.Context, e *Emulator) error {
	data, err := ours.ReadFile(plugin)
	if err != nil {
		return err
	}
	// The plug-in appears when it is whole: other runs look for it without the lock.
	code, half := e.lines()+".c", e.lines()+".half"
	if err := errors.Join(os.MkdirAll(filepath.Dir(code), 0o755), os.WriteFile(code, data, 0o644)); err != nil {
		return err
	}
	glib, err := system(exec.CommandContext(ctx, "env", "pkg-config", "--cflags", "glib-2.0")).Output()
	if err != nil {
		return fmt.Errorf("find GLib: %w", err)
	}
	args := append([]string{"-O2", "-fPIC", "-shared", "-o", half, code, "-I", filepath.Dir(e.header())}, strings.Fields(string(glib))...)
	if err := tell(ctx, "gcc", args...); err != nil {
		return err
	}
	return os.Rename(half, e.lines())
}

// tell runs a program, and says what it said where it fails.
func tell(ctx context.Context, name string, args ...string) error {
	if text, err := system(exec.CommandContext(ctx, "env", append([]string{name}, args...)...)).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	return nil
}

// watched runs ninja and says each tenth of its way.
func watched(cmd *exec.Cmd, say func(string, ...any)) error {
	r, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	var text []byte
	said := -1
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text = append(append(text, lines.Bytes()...), '\n')
		if at, of, ok := step(lines.Text()); ok && 10*at/of > said {
			said = 10 * at / of
			say("compiled %d of %d files", at, of)
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("%w\n%s", err, last(text, 30))
	}
	return nil
}

// step reads the counter that a line of ninja begins with: [3/970].
func step(line string) (at, of int, ok bool) {
	inner, _, ok := strings.Cut(strings.TrimPrefix(line, "["), "]")
	a, b, slash := strings.Cut(inner, "/")
	at, err1 := strconv.Atoi(a)
	of, err2 := strconv.Atoi(b)
	return at, of, ok && slash && strings.HasPrefix(line, "[") && err1 == nil && err2 == nil && of > 0
}

// last is the end of a text.
func last(text []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
