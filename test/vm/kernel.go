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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Line is a line of kernels in one suite of the distribution's archive.
type Line struct {
	Suite string
	// Major and Minor version; a Minor of -1 stands for any.
	Major, Minor int
	// Generic kernels have the drivers of NICs, which cloud kernels lack.
	Generic bool
	// Pin is the version that is taken as long as the archive has it: a new one changes no result by itself. Without,
	// or where it has gone, the newest of the line is.
	Pin string
}

// Lines are the kernels that overlane supports and the distribution builds: the
// oldest and the newest.
var Lines = []Line{
	{Suite: "bookworm-security", Major: 6, Minor: 12, Pin: "6.12.117+deb12"},
	{Suite: "trixie-backports", Major: 7, Minor: -1, Pin: "7.3.4+deb13"},
}

// Kernel is an unpacked kernel package.
type Kernel struct {
	Release string // as uname -r says
	Image   string // the file to boot
	Modules string // the folder of its modules
	Warning string // it is another one than was asked for; empty: it is not
}

// freshFor is how long a kernel counts as the newest without asking again.
const freshFor = 24 * time.Hour

// Kernel returns the kernel of a line, from the cache if it is there: the pinned one, or the newest if that was looked
// for within a day.
func (l Line) Kernel(ctx context.Context, cache string) (*Kernel, error) {
	dir := filepath.Join(cache, l.Suite)
	if l.Generic {
		dir += "-generic"
	}
	if k, err := l.cached(dir); err == nil {
		return k, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	unlock, err := Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	a, err := NewAPT(ctx, dir, l.Suite)
	if err != nil {
		return nil, err
	}
	names, err := a.names(ctx, imagePrefix)
	if err != nil {
		return nil, err
	}
	release, err := l.choose(names)
	if err != nil {
		return nil, err
	}
	k, err := l.open(dir, release)
	if errors.Is(err, os.ErrNotExist) {
		if err = fetch(ctx, a, dir, release); err == nil {
			k, err = l.open(dir, release)
		}
	}
	if err != nil {
		return nil, err
	}
	if release != l.pinned() {
		err = os.WriteFile(filepath.Join(dir, newestFile), []byte(release), 0o644)
	}
	return k, errors.Join(err, l.prune(dir, release))
}

// newestFile names the newest kernel of a folder, as of when it was written.
const newestFile = "newest"

// cached is the kernel that needs no archive.
func (l Line) cached(dir string) (*Kernel, error) {
	if l.Pin != "" {
		if k, err := l.open(dir, l.pinned()); err == nil {
			return k, nil
		}
	}
	stamp := filepath.Join(dir, newestFile)
	if st, err := os.Stat(stamp); err != nil || time.Since(st.ModTime()) >= freshFor {
		return nil, os.ErrNotExist
	}
	release, err := os.ReadFile(stamp)
	if err != nil {
		return nil, err
	}
	return l.open(dir, string(release))
}

// pinned is the release of the pinned kernel, empty if none is.
func (l Line) pinned() string {
	switch {
	case l.Pin == "":
		return ""
	case l.Generic:
		return l.Pin + "-amd64"
	}
	return l.Pin + "-cloud-amd64"
}

// imagePrefix begins the packages of kernels that are signed, hence not named
// "unsigned" and the like.
const imagePrefix = "linux-image-"

var (
	cloud   = regexp.MustCompile(`^` + imagePrefix + `((\d+)\.(\d+)\.(\d+)[^-\s]*-cloud-amd64)$`)
	generic = regexp.MustCompile(`^` + imagePrefix + `((\d+)\.(\d+)\.(\d+)[^-\s]*-amd64)$`)
)

// choose takes the release to use of packages' names: the pinned one, or else the newest of the line.
func (l Line) choose(names []string) (string, error) {
	if l.Pin != "" && slices.Contains(names, imagePrefix+l.pinned()) {
		return l.pinned(), nil
	}
	image := cloud
	if l.Generic {
		image = generic
	}
	var best string
	var version []int
	for _, n := range names {
		m := image.FindStringSubmatch(n)
		if m == nil {
			continue
		}
		v := make([]int, 3)
		for i := range v {
			v[i], _ = strconv.Atoi(m[2+i]) // digits by the expression
		}
		if v[0] == l.Major && (l.Minor < 0 || v[1] == l.Minor) && slices.Compare(v, version) > 0 {
			best, version = m[1], v
		}
	}
	if best == "" {
		return "", fmt.Errorf("%s has no kernel %s of this kind", l.Suite, l)
	}
	return best, nil
}

func (l Line) String() string {
	if l.Minor < 0 {
		return fmt.Sprintf("%d.x", l.Major)
	}
	return fmt.Sprintf("%d.%d", l.Major, l.Minor)
}

// fetch unpacks a kernel. Newer ones come in several packages, which bear its
// release in their names.
func fetch(ctx context.Context, a *APT, dir, release string) error {
	main := imagePrefix + release
	needs, err := a.needs(ctx, main)
	if err != nil {
		return err
	}
	pkgs := append(slices.DeleteFunc(needs, func(n string) bool { return !strings.HasSuffix(n, "-"+release) }), main)
	tmp, err := os.MkdirTemp(dir, "unpack")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := a.Extract(ctx, tmp, pkgs...); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, release))
}

func (l Line) open(dir, release string) (*Kernel, error) {
	k := &Kernel{Release: release}
	if l.Pin != "" && release != l.pinned() {
		k.Warning = fmt.Sprintf("the archive has kernel %s no more: %s instead", l.pinned(), release)
	}
	for _, find := range []struct {
		to    *string
		names []string
	}{
		{&k.Image, []string{"boot/vmlinuz-" + release, "usr/lib/modules/" + release + "/vmlinuz"}},
		{&k.Modules, []string{"lib/modules/" + release, "usr/lib/modules/" + release}},
	} {
		i := slices.IndexFunc(find.names, func(n string) bool {
			_, err := os.Stat(filepath.Join(dir, release, n))
			return err == nil
		})
		if i < 0 {
			return nil, fmt.Errorf("kernel %s: no %s: %w", release, strings.Join(find.names, " nor "), os.ErrNotExist)
		}
		*find.to = filepath.Join(dir, release, find.names[i])
	}
	return k, nil
}

// prune removes kernels but this one and the pinned ones of all lines, whatever this one asks for: other tests
// share the folder, and the archive may have them no more.
func (l Line) prune(dir, release string) error {
	keep := []string{release}
	for _, other := range Lines {
		other.Generic = l.Generic
		keep = append(keep, other.pinned())
	}
	old, err := filepath.Glob(filepath.Join(dir, "*-amd64"))
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range old {
		if !slices.Contains(keep, filepath.Base(o)) {
			errs = append(errs, os.RemoveAll(o))
		}
	}
	return errors.Join(errs...)
}

// Lock keeps two runs from filling one cache at the same time.
func Lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// command is a child that ends with ctx.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}
