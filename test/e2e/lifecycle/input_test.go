// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/overlane/overlane/internal/control"
	"github.com/overlane/overlane/internal/lab/bed"
	"github.com/overlane/overlane/test/e2e/rig"
)

// runFor runs a daemon that is expected to end by itself.
func runFor(t *testing.T, b *bed.Bed, config string) rig.Result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	return rig.Run(t, rig.Spec{NS: b.Receiver().NS}, "run", "--config", file, "--state-dir", filepath.Join(t.TempDir(), "state"))
}

// refused asserts one line of error that holds all of the words, and the code.
func refused(t *testing.T, r rig.Result, code int, words ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d: %s", r.Code, code, r)
	}
	if strings.Count(r.Err, "\n") != 1 || !strings.HasPrefix(r.Err, "overlane: ") {
		t.Errorf("want one line that begins with overlane: and got:\n%s", r.Err)
	}
	for _, w := range words {
		if !strings.Contains(r.Err, w) {
			t.Errorf("the message does not speak of %q:\n%s", w, r.Err)
		}
	}
}

const (
	failure     = 1
	usage       = 2
	unsupported = 3
)

func TestMistakesInTheConfigurationChangeNothing(t *testing.T) {
	b := lab(t, bed.Options{})
	for _, tc := range []struct {
		name, config string
		words        []string
	}{
		{"no such core", "cores: 0,4095\n", []string{"config.yaml:1:", "4095", "not there"}},
		{"unknown key", "pipeline: forced\nteir: xdp\n", []string{"config.yaml:2:", "teir"}},
		{"bad value", "pipeline: always\n", []string{"config.yaml:1:", "always", "auto"}},
		{"no YAML", "pipeline: [\n", []string{"config.yaml:"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused(t, runFor(t, b, tc.config), usage, tc.words...)
		})
	}
}

// At boot the service may start before its NIC is there. Plan says that it is not; the daemon waits for it.
func TestAnUnderlayThatComesLater(t *testing.T) {
	b := lab(t, bed.Options{})
	const config = "pipeline: forced\nunderlays: [late0]\n"
	file := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(file, []byte(config), 0o600))
	refused(t, rig.Run(t, rig.Spec{NS: b.Receiver().NS}, "plan", "--config", file), usage, "config.yaml:2:", "late0", b.Receiver().Wire)

	d := rig.Start(t, rig.Spec{NS: b.Receiver().NS, Config: config})
	underlay := func(name string) bool {
		return slices.ContainsFunc(d.Status().Devices, func(dev control.Device) bool { return dev.Name == name && dev.Role == control.Underlay })
	}
	d.Says("there is no device late0")
	if underlay("late0") {
		t.Error("an underlay that is not there is found")
	}
	nl := rig.In(t, b.Receiver().NS)
	late := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "late0"}, PeerName: "late1"}
	must(t, nl.LinkAdd(late))
	rig.Until(t, "the underlay is found", func() (bool, string) { return underlay("late0"), d.Log() })
	must(t, nl.LinkDel(late))
	ends(t, d)
}

func TestCallsThatCannotBeMeant(t *testing.T) {
	b := lab(t, bed.Options{})
	state := filepath.Join(t.TempDir(), "state")
	for _, tc := range []struct {
		args  string
		code  int
		words []string
	}{
		{"rnu", usage, []string{"rnu", "run"}},
		{"run --confg x", usage, []string{"--confg", "--help"}},
		{"run now", usage, []string{"now"}},
		{"run --config /nonexistent.yaml", usage, []string{"/nonexistent.yaml"}},
		{"status", failure, []string{"no overlane daemon", "overlane run"}},
		{"run --state-dir /proc/overlane", failure, []string{"--state-dir"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := strings.Fields(tc.args)
			if !strings.Contains(tc.args, "--state-dir") {
				args = append(args, "--state-dir", state)
			}
			refused(t, rig.Run(t, rig.Spec{NS: b.Receiver().NS}, args...), tc.code, tc.words...)
		})
	}
	if _, err := os.Stat(state); err == nil {
		t.Error("a state directory was made")
	}
}

func TestOthersThanRootAreTold(t *testing.T) {
	b := lab(t, bed.Options{})
	for _, verb := range []string{"run", "off", "plan"} {
		t.Run(verb, func(t *testing.T) {
			spec := rig.Spec{NS: b.Receiver().NS, UID: 65534}
			refused(t, rig.Run(t, spec, verb, "--state-dir", "/tmp/overlane-of-nobody"), failure, "root", "sudo overlane "+verb)
		})
	}
}

// A kernel without BTF is one that the daemon does not support.
func TestKernelWithoutBTFIsNotSupported(t *testing.T) {
	b := lab(t, bed.Options{})
	hide := func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		return unix.Mount("none", "/sys/kernel/btf", "tmpfs", 0, "")
	}
	for _, verb := range []string{"run", "plan"} {
		t.Run(verb, func(t *testing.T) {
			spec := rig.Spec{NS: b.Receiver().NS, Before: hide}
			refused(t, rig.Run(t, spec, verb, "--state-dir", filepath.Join(t.TempDir(), "state")), unsupported, "BTF")
		})
	}
}
