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

// Line is a line of kernels in one suite of the distribution's archive. The
// newest one in the archive is meant, whichever that is today.
type Line struct {
	Suite string
	// Major and Minor version; a Minor of -1 stands for any.
	Major, Minor int
	// Generic kernels have the drivers of NICs, which cloud kernels lack.
	Generic bool
}

// Lines are the kernels that overlane supports and the distribution builds: the
// oldest and the newest.
var Lines = []Line{
	{Suite: "bookworm-security", Major: 6, Minor: 12},
	{Suite: "trixie-backports", Major: 7, Minor: -1},
}

// Kernel is an unpacked kernel package.
type Kernel struct {
	Release string // as uname -r says
	Image   string // the file to boot
	Modules string // the folder of its modules
}

// freshFor is how long a kernel counts as the newest without asking again.
const freshFor = 24 * time.Hour

// Kernel returns the newest kernel of a line, from the cache if it was looked
// for within a day.
func (l Line) Kernel(ctx context.Context, cache string) (*Kernel, error) {
	dir := filepath.Join(cache, l.Suite)
	if l.Generic {
		dir += "-generic"
	}
	stamp := filepath.Join(dir, "newest")
	if st, err := os.Stat(stamp); err == nil && time.Since(st.ModTime()) < freshFor {
		if release, err := os.ReadFile(stamp); err == nil {
			if k, err := l.open(dir, string(release)); err == nil {
				return k, nil
			}
		}
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
	release, err := l.newest(ctx, a)
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
	return k, errors.Join(os.WriteFile(stamp, []byte(release), 0o644), prune(dir, release))
}

// imagePrefix begins the packages of kernels that are signed, hence not named
// "unsigned" and the like.
const imagePrefix = "linux-image-"

var (
	cloud   = regexp.MustCompile(`^` + imagePrefix + `((\d+)\.(\d+)\.(\d+)[^-\s]*-cloud-amd64)$`)
	generic = regexp.MustCompile(`^` + imagePrefix + `((\d+)\.(\d+)\.(\d+)[^-\s]*-amd64)$`)
)

func (l Line) newest(ctx context.Context, a *APT) (string, error) {
	image := cloud
	if l.Generic {
		image = generic
	}
	names, err := a.names(ctx, imagePrefix)
	if err != nil {
		return "", err
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

// prune removes kernels that are not the newest any more.
func prune(dir, keep string) error {
	old, err := filepath.Glob(filepath.Join(dir, "*-amd64"))
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range old {
		if filepath.Base(o) != keep {
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
