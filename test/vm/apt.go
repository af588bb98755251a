// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// APT asks a distribution's archive through configuration, lists and cache of
// its own: those of the machine stay as they are. Only where the archive is,
// and through which proxy, is taken from the machine.
type APT struct {
	dir string
}

// NewAPT prepares dir for one suite.
func NewAPT(ctx context.Context, dir, suite string) (*APT, error) {
	a := &APT{dir: dir}
	source, err := sourceOf(ctx, suite)
	if err != nil {
		return nil, err
	}
	proxies, err := proxies(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	conf := fmt.Sprintf(`Dir::State %[1]q;
Dir::State::status %[2]q;
Dir::Cache %[3]q;
Dir::Etc::sourcelist %[4]q;
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::main "/dev/null";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
`, filepath.Join(dir, "state"), filepath.Join(dir, "status"), filepath.Join(dir, "cache"), filepath.Join(dir, "sources.list")) + proxies
	for name, text := range map[string]string{"apt.conf": conf, "sources.list": source, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	if _, err := a.run(ctx, "apt-get", "update", "-qq", "--error-on=any"); err != nil {
		return nil, fmt.Errorf("read the package lists of %s: %w; it needs the network, and a keyring that knows the suite (package debian-archive-keyring)", suite, err)
	}
	return a, nil
}

// keyring has the keys of all suites, those newer than the machine's included.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// sourceOf names the archive that has a suite: of those that the machine is
// configured for, the one with the machine's own suite, or its security suite.
func sourceOf(ctx context.Context, suite string) (string, error) {
	release, err := osRelease()
	if err != nil {
		return "", err
	}
	own := release["VERSION_CODENAME"]
	if strings.HasSuffix(suite, "-security") {
		own += "-security"
	}
	if release["ID"] != "debian" {
		return "", fmt.Errorf("find an archive with %s: this is %s; it needs Debian", suite, release["ID"])
	}
	out, err := command(ctx, "apt-get", "indextargets", "--format", "$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("read the machine's package sources: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] == "Packages" && f[1] == own && f[2] == "main" {
			return fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, f[3], suite), nil
		}
	}
	return "", fmt.Errorf("find an archive with %s: the machine has no package source for %s, whose archive it would be in; add one to /etc/apt/sources.list", suite, own)
}

func osRelease() (map[string]string, error) {
	data, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, fmt.Errorf("find out the distribution: %w", err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			fields[k] = strings.Trim(v, `"`)
		}
	}
	return fields, nil
}

// proxies copies what the machine says about the way to archives, and nothing
// else: its hooks would clean its own cache.
func proxies(ctx context.Context) (string, error) {
	out, err := command(ctx, "apt-config", "dump").Output()
	if err != nil {
		return "", fmt.Errorf("read apt's configuration: %w", err)
	}
	var keep strings.Builder
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Acquire::http::") || strings.HasPrefix(line, "Acquire::https::") {
			keep.WriteString(line)
		}
	}
	return keep.String(), nil
}

// names lists packages that begin so.
func (a *APT) names(ctx context.Context, prefix string) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", "pkgnames", prefix)
	return strings.Fields(string(out)), err
}

// needs lists the packages that a package depends on, without alternatives.
func (a *APT) needs(ctx context.Context, pkg string) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", pkg)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		list, ok := strings.CutPrefix(line, "Depends: ")
		if !ok {
			continue
		}
		for _, d := range strings.Split(list, ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(d), " "); !strings.Contains(d, "|") {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// Extract fetches packages, which apt checks against the signed lists, and
// unpacks them over one another.
func (a *APT) Extract(ctx context.Context, to string, pkgs ...string) error {
	debs, err := os.MkdirTemp(a.dir, "debs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	cmd := a.command(ctx, "apt-get", append([]string{"download", "-qq"}, pkgs...)...)
	cmd.Dir = debs
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("fetch %s: %w; it needs the network", strings.Join(pkgs, ", "), err)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil || len(files) != len(pkgs) {
		return errors.Join(err, fmt.Errorf("fetch %s: %d files came", strings.Join(pkgs, ", "), len(files)))
	}
	for _, f := range files {
		if _, err := output(command(ctx, "dpkg-deb", "-x", f, to)); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
	}
	return nil
}

// Source fetches the source of a package, checked in the same way, and unpacks it with the
// distribution's patches. If the archive has that version no more it takes the newest whose version
// begins with series. It returns the version that it took.
func (a *APT) Source(ctx context.Context, to, pkg, version, series string) (string, error) {
	list := filepath.Join(a.dir, "sources.list")
	binary, err := os.ReadFile(list)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(list, append(binary, "deb-src"+strings.TrimPrefix(string(binary), "deb")...), 0o644); err != nil {
		return "", err
	}
	if _, err := a.run(ctx, "apt-get", "update", "-qq", "--error-on=any"); err != nil {
		return "", fmt.Errorf("read the lists of sources: %w; it needs the network", err)
	}
	out, err := a.run(ctx, "apt-cache", "showsrc", pkg)
	if err != nil {
		return "", err
	}
	var there []string
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "Version: "); ok && strings.HasPrefix(v, series) {
			there = append(there, v)
		}
	}
	if !slices.Contains(there, version) {
		if len(there) == 0 {
			return "", fmt.Errorf("the archive has no source of %s %s any more", pkg, series)
		}
		version = slices.MaxFunc(there, func(x, y string) int {
			if command(ctx, "dpkg", "--compare-versions", x, "lt", y).Run() == nil {
				return -1
			}
			return 1
		})
	}
	tmp, err := os.MkdirTemp(a.dir, "source")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	cmd := a.command(ctx, "apt-get", "source", "-qq", "--download-only", pkg+"="+version)
	cmd.Dir = tmp
	if _, err := output(cmd); err != nil {
		return "", fmt.Errorf("fetch the source of %s: %w; it needs the network", pkg, err)
	}
	dsc, err := filepath.Glob(filepath.Join(tmp, "*.dsc"))
	if err != nil || len(dsc) != 1 {
		return "", errors.Join(err, fmt.Errorf("fetch the source of %s: %d descriptions came", pkg, len(dsc)))
	}
	// Signed lists have the description's checksum; that has those of the rest.
	_, err = output(command(ctx, "dpkg-source", "--no-check", "-x", dsc[0], to))
	return version, err
}

func (a *APT) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := command(ctx, name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C.UTF-8")
	return cmd
}

func (a *APT) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	return output(a.command(ctx, name, args...))
}

// output runs a command; what it wrote to stderr becomes part of the error.
func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}
