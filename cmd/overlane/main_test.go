// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/overlane/overlane/internal/cli"
	"github.com/overlane/overlane/internal/netns"
)

// mainVar makes the test binary overlane itself.
const mainVar = "OVERLANE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

// overlane is a way of running the program.
type overlane struct {
	t     *testing.T
	netns *netns.Handle // nil: the test's own
	uid   uint32
	wrap  []string // words before the program
	state string
}

type result struct {
	code           int
	stdout, stderr string
}

func (o overlane) run(args ...string) result {
	o.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		o.t.Fatal(err)
	}
	if o.uid != 0 {
		exe = o.forAll(exe)
	}
	words := append(append(append([]string{}, o.wrap...), exe), args...)
	if o.state != "" {
		words = append(words, "--state-dir", o.state)
	}
	var out, errOut bytes.Buffer
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), mainVar+"=1")
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if o.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.uid, Gid: o.uid}}
	}
	do := func(fn func() error) error { return fn() }
	if o.netns != nil {
		do = o.netns.Do
	}
	err = do(cmd.Run)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// forAll copies the program to where another user may run it.
func (o overlane) forAll(exe string) string {
	o.t.Helper()
	dir, err := os.MkdirTemp("", "overlane-test")
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { os.RemoveAll(dir) })
	data, err := os.ReadFile(exe)
	if err != nil {
		o.t.Fatal(err)
	}
	to := filepath.Join(dir, "overlane")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(to, data, 0o755)); err != nil {
		o.t.Fatal(err)
	}
	return to
}

// emptyNode is a network namespace with nothing but lo, and a state directory
// that does not exist yet.
func emptyNode(t *testing.T) overlane {
	t.Helper()
	needsRoot(t)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return overlane{t: t, netns: h, state: filepath.Join(t.TempDir(), "s")}
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: enters a network namespace of its own")
	}
}

// fails checks that a run ends with a code and says why in one line.
func (r result) fails(t *testing.T, code int, stderr string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	if got := strings.TrimSuffix(r.stderr, "\n"); !strings.Contains(got, stderr) || strings.Contains(got, "\n") || !strings.HasPrefix(got, "overlane: ") {
		t.Errorf("stderr:\n%s\nwant one line with:\n%s", r.stderr, stderr)
	}
}

// untouched checks that a verb that failed has left nothing behind.
func (o overlane) untouched() {
	o.t.Helper()
	if _, err := os.Stat(o.state); !errors.Is(err, os.ErrNotExist) {
		o.t.Errorf("the state directory was created: %v", err)
	}
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrors(t *testing.T) {
	o := overlane{t: t}
	for args, want := range map[string]string{
		"stats":                     `unknown verb "stats"; did you mean status? (see: overlane --help)`,
		"fly":                       `unknown verb "fly"; there are: doctor, run, plan, status, prio, off, lab, version (see: overlane --help)`,
		"status --fly":              `unknown flag: --fly (see: overlane status --help)`,
		"--fly":                     `unknown flag: --fly (see: overlane --help)`,
		"off now":                   `unexpected argument "now" (see: overlane off --help)`,
		"version 1 2":               `unexpected argument "1" (see: overlane version --help)`,
		"run --config":              `flag needs an argument: --config (see: overlane run --help)`,
		"guardian --netns-cookie x": `invalid argument "x" for "--netns-cookie" flag`,
	} {
		t.Run(args, func(t *testing.T) {
			r := o.run(strings.Fields(args)...)
			r.fails(t, cli.ExitUsage, want)
			if r.stdout != "" {
				t.Errorf("stdout: %s", r.stdout)
			}
		})
	}
}

// A mistake in the configuration, or one that only this node makes a mistake,
// is one line with the place and what is allowed, and nothing is changed.
func TestConfigurationErrors(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"bad line":       {"pipeline: auto\ncors: 1", `c.yaml:2: unknown key "cors"; allowed: underlays, `},
		"unknown device": {"# here\nunderlays: [nic7]", `c.yaml:2: underlays: there is no device nic7 in this network namespace; there are: lo`},
		"no such core":   {"cores: 0,8191", `c.yaml:1: cores: core 8191 is not there; there are `},
	} {
		for _, verb := range []string{"run", "plan", "doctor"} {
			if name == "unknown device" && verb == "run" {
				continue // it waits for the device
			}
			t.Run(name+"/"+verb, func(t *testing.T) {
				o := emptyNode(t)
				r := o.run(verb, "--config", configFile(t, tc.file))
				r.fails(t, cli.ExitUsage, tc.want)
				o.untouched()
			})
		}
	}
	t.Run("no file", func(t *testing.T) {
		o := emptyNode(t)
		o.run("run", "--config", "/no/file").fails(t, cli.ExitUsage, "/no/file: cannot be read: no such file or directory")
		o.untouched()
	})
}

func TestWithoutRoot(t *testing.T) {
	needsRoot(t) // to stop being it
	for verb, want := range map[string]string{
		"run":    "run needs root: sudo overlane run",
		"plan":   "plan needs root: sudo overlane plan",
		"off":    "off needs root: sudo overlane off",
		"doctor": "devices need root to be scanned: sudo overlane doctor",
		"status": "status needs root: sudo overlane status",
	} {
		t.Run(verb, func(t *testing.T) {
			o := overlane{t: t, uid: 65534, state: filepath.Join(t.TempDir(), "s")}
			o.run(verb).fails(t, cli.ExitFailure, want)
			o.untouched()
		})
	}
}

func TestWithoutKernelTypes(t *testing.T) {
	for _, verb := range []string{"run", "plan", "doctor"} {
		t.Run(verb, func(t *testing.T) {
			o := emptyNode(t)
			if _, err := exec.LookPath("unshare"); err != nil {
				t.Skip("needs unshare from util-linux")
			}
			// /boot is where the library looks next.
			o.wrap = []string{"unshare", "-m", "sh", "-c",
				`for d in /sys/kernel/btf /boot /lib/modules; do [ ! -d $d ] || mount -t tmpfs none $d || exit 99; done; exec "$@"`, "sh"}
			r := o.run(verb)
			if r.code == 99 {
				t.Skip("needs mounts in a mount namespace of its own: " + r.stderr)
			}
			r.fails(t, cli.ExitUnsupported, "CONFIG_DEBUG_INFO_BTF")
			o.untouched()
		})
	}
}

func TestAKernelThatIsLockedDown(t *testing.T) {
	if mode, err := os.ReadFile("/sys/kernel/security/lockdown"); err != nil || !strings.Contains(string(mode), "[confidentiality]") {
		t.Skip("needs a kernel that is locked down (boot option lockdown=confidentiality)")
	}
	for _, verb := range []string{"run", "plan", "doctor"} {
		t.Run(verb, func(t *testing.T) {
			o := emptyNode(t)
			o.run(verb).fails(t, cli.ExitUnsupported, "boot with lockdown=integrity")
			o.untouched()
		})
	}
}

func TestVerbsThatFindNothing(t *testing.T) {
	for _, tc := range []struct {
		verb string
		code int
		want string // in stdout, or in stderr if the code is not 0
	}{
		{"status", cli.ExitFailure, "start one with systemctl start overlane, or overlane run"},
		{"off", cli.ExitOK, "nothing to do: nothing of overlane is in place"},
		{"off --json", cli.ExitOK, `"results": []`},
		{"plan", cli.ExitOK, "run would only watch: there is no VXLAN or Geneve tunnel yet"},
		{"plan", cli.ExitOK, "by the defaults; with --config FILE"},
		{"plan --json", cli.ExitOK, `"steps": []`},
		{"doctor", cli.ExitOK, "no VXLAN or Geneve tunnel was found"},
		{"doctor", cli.ExitOK, "priority   no        native-xdp: no underlay was found"},
		{"doctor --json", cli.ExitOK, `"findings": []`},
		{"prio list", cli.ExitFailure, "no overlane daemon is running in this network namespace"},
		{"version", cli.ExitOK, "overlane "},
		{"version --json", cli.ExitOK, `"version": "`},
	} {
		t.Run(tc.verb, func(t *testing.T) {
			o := emptyNode(t)
			r := o.run(strings.Fields(tc.verb)...)
			if tc.code != cli.ExitOK {
				r.fails(t, tc.code, tc.want)
			} else if r.code != cli.ExitOK || !strings.Contains(r.stdout, tc.want) || r.stderr != "" {
				t.Errorf("exit code %d\n%s\n%s", r.code, r.stdout, r.stderr)
			}
			if strings.Contains(tc.verb, "--json") && strings.Contains(r.stdout, "null") {
				t.Errorf("null in:\n%s", r.stdout)
			}
			o.untouched()
		})
	}
}

func TestGuardianIsOnlyStartedByADaemon(t *testing.T) {
	o := overlane{t: t, state: filepath.Join(t.TempDir(), "s")}
	o.run("guardian", "--netns-cookie", "1").fails(t, cli.ExitFailure, "only the daemon starts a guardian")
	o.untouched()
}
