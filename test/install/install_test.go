// SPDX-License-Identifier: Apache-2.0

// Package install tries `make install`, `make uninstall` and the packages in folders
// that take the place of a root. scripts/try-packages.sh does so in a whole Debian.
package install

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/overlane/overlane/test/speed"
)

const repo = "../.."

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = repo
	cmd.Env = append(os.Environ(), "MAKEFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
}

// files lists what is not a folder below root, and folders with overlane's name.
func files(t *testing.T, root string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || d.Name() == "overlane") {
			list = append(list, strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestInstallAndUninstall(t *testing.T) {
	needs(t, "make", "gzip")
	root := t.TempDir()
	make := func(goal string) { t.Helper(); run(t, "make", goal, "DESTDIR="+root, "PREFIX=/opt") }

	make("install")
	got := files(t, root)
	for _, want := range []string{
		"/opt/bin/overlane", "/opt/bin/overlane-lab", "/opt/lib/systemd/system/overlane.service", "/etc/overlane/config.yaml",
		"/opt/share/man/man8/overlane.8.gz", "/opt/share/man/man8/overlane-prio-add.8.gz", "/opt/share/man/man8/overlane-lab-run.8.gz",
		"/opt/share/bash-completion/completions/overlane", "/opt/share/zsh/site-functions/_overlane",
		"/opt/share/fish/vendor_completions.d/overlane.fish", "/opt/share/doc/overlane/README.md",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not installed", want)
		}
	}
	unit := read(t, root+"/opt/lib/systemd/system/overlane.service")
	if strings.Contains(unit, "/usr/bin/overlane") || !strings.Contains(unit, "ExecStart=/opt/bin/overlane run --config /etc/overlane/config.yaml\n") {
		t.Errorf("the unit does not start what was installed:\n%s", unit)
	}

	make("uninstall")
	if left := files(t, root); len(left) > 0 {
		t.Errorf("uninstall leaves %q", left)
	}

	config := root + "/etc/overlane/config.yaml"
	write(t, config, "cores: 2-3\n")
	make("install")
	make("uninstall")
	if left := files(t, root); !slices.Equal(left, []string{"/etc/overlane", "/etc/overlane/config.yaml"}) {
		t.Errorf("with a configuration of the operator's, uninstall leaves %q", left)
	}
	if got := read(t, config); got != "cores: 2-3\n" {
		t.Errorf("the operator's configuration became %q", got)
	}
}

// packages builds both, and returns their paths.
func packages(t *testing.T, version string) (deb, rpm string) {
	t.Helper()
	dir := t.TempDir()
	run(t, "make", "packages", "PKG_VERSION="+version, "PACKAGES="+dir)
	return dir + "/overlane_" + version + "_amd64.deb", dir + "/overlane-" + version + "-1.x86_64.rpm"
}

// root makes a root with a shell, for the packages' scripts.
func root(t *testing.T) string {
	t.Helper()
	needs(t, "busybox")
	box, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"bin", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/rpm"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/bin/busybox", read(t, box))
	if err := os.Chmod(dir+"/bin/busybox", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "rm", "rmdir"} {
		if err := os.Symlink("busybox", dir+"/bin/"+name); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/bin/flock", "#!/bin/sh\nshift 2\nexec \"$@\"\n") // busybox has none
	if err := os.Chmod(dir+"/bin/flock", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/var/lib/dpkg/status", "")
	return dir
}

// of leaves out what the root itself consists of, and the package managers' records.
func of(list []string) []string {
	records := regexp.MustCompile(`^/bin/|^/var/lib/(dpkg|rpm)/|^/var/log/`)
	return slices.DeleteFunc(list, records.MatchString)
}

// The two packages hold the same, in the places that their systems want, and come and go
// without a trace.
func TestPackages(t *testing.T) {
	needs(t, "make", "gzip", "dpkg", "dpkg-deb", "rpm")
	speed.Turn(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: installs packages into a root of its own")
	}
	deb, rpm := packages(t, "1.0.0")
	later, laterRPM := packages(t, "1.1.0")

	inDeb := lines(regexp.MustCompile(`(?m)^-.* \./?(\S+)$`), run(t, "dpkg-deb", "-c", deb))
	inRPM := strings.Fields(run(t, "rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpm))
	var plain []string
	for i := 0; i+1 < len(inRPM); i += 2 {
		if inRPM[i][0] == '-' {
			plain = append(plain, inRPM[i+1])
		}
	}
	for i, path := range plain {
		plain[i] = strings.Replace(path, "zsh/site-functions", "zsh/vendor-completions", 1)
	}
	slices.Sort(inDeb)
	slices.Sort(plain)
	if len(inDeb) < 20 || !slices.Equal(inDeb, plain) {
		t.Errorf("the deb holds\n%s\nand the rpm\n%s", strings.Join(inDeb, "\n"), strings.Join(plain, "\n"))
	}
	if got := run(t, "dpkg-deb", "-I", deb, "conffiles"); got != "/etc/overlane/config.yaml\n" {
		t.Errorf("conffiles are %q", got)
	}

	const operators = "cores: 2-3\n"
	t.Run("deb", func(t *testing.T) {
		dir := root(t)
		dpkg := func(args ...string) {
			t.Helper()
			run(t, "dpkg", append([]string{"--root=" + dir, "--log=" + dir + "/var/lib/dpkg/log"}, args...)...)
		}
		dpkg("-i", deb)
		write(t, dir+"/etc/overlane/config.yaml", operators)
		dpkg("--force-confold", "-i", later)
		if got := read(t, dir+"/etc/overlane/config.yaml"); got != operators {
			t.Errorf("an upgrade made the configuration %q", got)
		}
		dpkg("-r", "overlane")
		if got := read(t, dir+"/etc/overlane/config.yaml"); got != operators {
			t.Errorf("removing made the configuration %q", got)
		}
		write(t, dir+"/run/overlane/4711/journal", "")
		dpkg("-P", "overlane")
		if left := of(files(t, dir)); len(left) > 0 {
			t.Errorf("purge leaves %q", left)
		}
	})
	t.Run("rpm", func(t *testing.T) {
		dir := root(t)
		do := func(args ...string) {
			t.Helper()
			run(t, "rpm", append([]string{"--root", dir, "--dbpath", "/var/lib/rpm", "--nodeps"}, args...)...)
		}
		do("-i", rpm)
		write(t, dir+"/etc/overlane/config.yaml", operators)
		do("-U", laterRPM)
		if got := read(t, dir+"/etc/overlane/config.yaml"); got != operators {
			t.Errorf("an upgrade made the configuration %q", got)
		}
		do("-e", "overlane")
		kept := dir + "/etc/overlane/config.yaml.rpmsave"
		if got := read(t, kept); got != operators {
			t.Errorf("removing made the configuration %q", got)
		}
		if err := os.RemoveAll(dir + "/etc/overlane"); err != nil {
			t.Fatal(err)
		}
		do("-i", rpm)
		do("-e", "overlane")
		if left := of(files(t, dir)); len(left) > 0 {
			t.Errorf("rpm -e leaves %q", left)
		}
	})
}

func lines(pattern *regexp.Regexp, text string) (list []string) {
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		list = append(list, "/"+strings.TrimPrefix(m[1], "/"))
	}
	return list
}

// script runs one of a package's scripts with programs of the test's, and with its folders in the place of the system's.
func script(t *testing.T, name, arg string, folders *strings.Replacer, programs map[string]string) (stderr string, err error) {
	t.Helper()
	bin := t.TempDir()
	for program, text := range programs {
		write(t, bin+"/"+program, "#!/bin/sh\n"+text+"\n")
		if err := os.Chmod(bin+"/"+program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", "-s", arg)
	cmd.Stdin = strings.NewReader(folders.Replace(read(t, filepath.Join(repo, "deploy/package", name))))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	return said.String(), err
}

// A service that does not come up again leaves no half configured package, and one line says where to look.
func TestAnUpgradeOutlivesItsService(t *testing.T) {
	for _, fails := range []string{"", "try-restart", "daemon-reload"} {
		dir := t.TempDir()
		said, err := script(t, "after-install.sh", "configure", strings.NewReplacer("/run/systemd/system", dir),
			map[string]string{"systemctl": `[ "$1" != "` + fails + `" ]`})
		if err != nil || (fails == "") != (said == "") || fails != "" && (strings.Count(said, "\n") != 1 || !strings.Contains(said, "journalctl -u overlane")) {
			t.Errorf("%q fails: %v, %q", fails, err, said)
		}
	}
}

// Off restores what is of its own network namespace. Of another one the journal is all that is known.
func TestRemovalKeepsWhatIsNotRestored(t *testing.T) {
	needs(t, "flock")
	dir := t.TempDir()
	write(t, dir+"/1/journal", "an entry\n")
	write(t, dir+"/1/lock", "")
	write(t, dir+"/2/lock", "")
	write(t, dir+"/3/journal", "of a daemon that lives, and restores when it ends\n")
	write(t, dir+"/3/lock", "")
	held, err := os.Open(dir + "/3/lock")
	if err == nil {
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	said, err := script(t, "after-remove.sh", "remove", strings.NewReplacer("/run/systemd/system", dir+"/none", "/run/overlane", dir), nil)
	if left := files(t, dir); err != nil || !slices.Equal(left, []string{"/1/journal", "/1/lock", "/3/journal", "/3/lock"}) {
		t.Errorf("removing leaves %q: %v", left, err)
	}
	if strings.Count(said, "\n") != 1 || !strings.Contains(said, dir+"/1/journal") || !strings.Contains(said, "install overlane again and run in that namespace: overlane off\n") {
		t.Errorf("removing says %q", said)
	}
}

// A package is not removed while settings could not be restored: the program is needed for that.
func TestRemovalStopsWhereOffFails(t *testing.T) {
	for _, tt := range []struct {
		arg  string
		off  string // what `overlane off` ends with
		runs bool
		ok   bool
	}{
		{"remove", "0", true, true}, {"0", "0", true, true}, {"remove", "1", true, false}, {"0", "1", true, false},
		{"upgrade", "1", false, true}, {"1", "1", false, true},
	} {
		dir := t.TempDir()
		_, err := script(t, "before-remove.sh", tt.arg, strings.NewReplacer("/run/systemd/system", dir+"/none", "/run/overlane", dir),
			map[string]string{"overlane": "echo \"$@\" >" + dir + "/called\nexit " + tt.off})
		called, _ := os.ReadFile(dir + "/called")
		if (err == nil) != tt.ok || (string(called) == "off\n") != tt.runs {
			t.Errorf("%s, off ends with %s: %v, called with %q", tt.arg, tt.off, err, called)
		}
	}
}
